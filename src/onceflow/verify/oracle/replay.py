"""Runs the batches of a run once more, one after the other, and collects what they give.

A fresh checkpoint gets the run's ``offsets/N``. Spark, started for one batch, finds a batch that was planned and not finished,
runs exactly that, with the state that batch N - 1 left, and ends::

    fresh checkpoint   metadata, sources/K/0 (where the run began), then for N = 0, 1, 2, …
        offsets/N      of the run: the same source offsets, watermark and time of the batch
        start, once    Spark runs batch N, calls our function with its rows, writes commits/N and ends

What differs between two runs of one batch does not follow from the input: such a plan cannot be judged. So some batches are run
twice, the second time with ``commits/N`` taken away again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.pipeline.local_checkpoint import end_of_entry
from onceflow.verify.oracle.expected import RECORDS, Expected
from onceflow.verify.oracle.how_far import OnBatch
from onceflow.verify.oracle.offsets import OffsetLog, Planned
from onceflow.verify.oracle.order import Shuffled
from onceflow.verify.oracle.ranges import ranges_of
from onceflow.verify.oracle.rows import TASK, expected_rows
from onceflow.verify.private import local_uri

_ENTRIES = 2  # of a log: the newest batch, and the one that it begins behind
_RECORD_COLUMNS = ("topic", "partition", "key", "value", "headers")


class Replay:
    """Replays one plan. ``frame`` is its records as a streaming DataFrame, ``mode`` its output mode.

    ``on_batch`` is called after each batch.
    """

    def __init__(
        self,
        frame: DataFrame,
        mode: str,
        directory: Path,
        partitions: Mapping[str, int],
        shuffled: Shuffled,
        on_batch: OnBatch = lambda done, total: None,
    ) -> None:
        columns = [name for name in _RECORD_COLUMNS if name in frame.columns]
        self._frame = frame.select(*columns, F.spark_partition_id().alias(TASK))
        self._mode = mode
        self._directory = directory
        self._partitions = partitions
        self._shuffled = shuffled
        self._on_batch = on_batch
        self._stateful = False

    def expected(self, log: OffsetLog, again_at_ms: int | None = None) -> Expected:
        """The output of all batches of the log, or an Expected that says why there is none.

        ``again_at_ms``: the time of the batches that run twice, the second time; their own, if it is not given.
        """
        self._begin(log)
        repeated = _to_repeat(log)
        tables = [RECORDS.empty_table()]
        for done, batch in enumerate(log.batches, start=1):
            records = self._run(batch)
            if batch.number in repeated:
                difference = self._run_again(batch if again_at_ms is None else batch.at(again_at_ms), records)
                if difference:
                    return self._result(log, RECORDS.empty_table(), refused=difference)
            tables.append(records)
            self._forget(batch.number - _ENTRIES)
            self._on_batch(done, len(log.batches))
        return self._result(log, pa.concat_tables(tables))

    def _result(self, log: OffsetLog, records: pa.Table, refused: str = "") -> Expected:
        return Expected(
            records,
            ranges_of(log),
            query_id=log.query_id,
            finished=log.finished,
            digests=tuple(end_of_entry(batch.text) for batch in log.batches),
            unordered=tuple(sorted(name for name in _topics(records) if name in self._shuffled)),
            stateful=self._stateful,
            refused=refused,
        )

    def _begin(self, log: OffsetLog) -> None:
        for name in ("offsets", "commits"):
            (self._directory / name).mkdir(parents=True)
        (self._directory / "metadata").write_text(json.dumps({"id": log.query_id}), encoding="utf-8")
        for number, offsets in log.initial.items():
            source = self._directory / "sources" / str(number)
            source.mkdir(parents=True)
            (source / "0").write_text(f"\0v1\n{json.dumps(offsets)}", encoding="utf-8")

    def _run(self, batch: Planned) -> pa.Table:
        (self._directory / "offsets" / str(batch.number)).write_text(batch.text, encoding="utf-8")
        collected: list[pa.Table] = []
        writer = (
            self._frame.writeStream.foreachBatch(lambda rows, _: collected.append(rows.toArrow()))
            .outputMode(self._mode)
            .trigger(once=True)
        )
        query = writer.option("checkpointLocation", local_uri(self._directory)).start()
        query.awaitTermination()
        self._look_at(query)
        assert len(collected) == 1, f"Spark ran batch {batch.number} {len(collected)} times"
        assert not (self._directory / "offsets" / str(batch.number + 1)).exists(), "Spark planned a batch of its own"
        return expected_rows(batch.number, collected[0], self._partitions, self._shuffled)

    def _run_again(self, batch: Planned, before: pa.Table) -> str:
        """Why the batch cannot be foretold; empty if it can."""
        for name in (str(batch.number), f".{batch.number}.crc"):
            (self._directory / "commits" / name).unlink(missing_ok=True)
        again = self._run(batch)
        return difference(batch.number, before, again)

    def _forget(self, number: int) -> None:
        """An entry that no later batch looks at. Spark lists a whole log at each start, and does not thin it in single batches::

        a run of 2,381 batches, all entries and all state of which were kept: 24 batches a minute behind the first thousand
        the same, when all but those of the newest 150 were removed: 45
        """
        for log in ("offsets", "commits"):
            for name in (str(number), f".{number}.crc"):
                (self._directory / log / name).unlink(missing_ok=True)

    def _look_at(self, query: StreamingQuery) -> None:
        """By what the batch has to tell of its operators: the plan's text ends after ``spark.sql.maxPlanStringLength``."""
        told = query.lastProgress
        assert told is not None, "Spark tells of each batch, here of one"
        self._stateful = bool(told.stateOperators)


def _topics(records: pa.Table) -> list[str]:
    topics: list[str] = pc.unique(records["topic"].cast(pa.string())).to_pylist()
    return topics


def difference(number: int, before: pa.Table, again: pa.Table) -> str:
    """Whether two runs of a batch gave different records; their order inside of the batch does not count."""
    columns = ["topic", "partition", "key", "content"]
    one, other = (
        sorted(map(tuple, zip(*(t[name].to_pylist() for name in columns), strict=True)), key=repr)
        for t in (before, again)
    )
    if one == other:
        return ""
    odd = next(iter(set(one) ^ set(other)), one[0] if one else other[0])
    return (
        f"batch {number} gave other records when it ran again (first difference in topic {odd[0]}): the plan uses something "
        "that does not follow from its input, such as rand(), uuid() or the order of rows"
    )


def _to_repeat(log: OffsetLog) -> set[int]:
    """The first batch that read anything, the largest, and the last."""
    sizes: dict[int, int] = {}
    for row in ranges_of(log).to_pylist():
        sizes[row["batch"]] = sizes.get(row["batch"], 0) + row["until"] - row["start"]
    busy: Sequence[int] = [number for number, size in sorted(sizes.items()) if size]
    return {busy[0], max(busy, key=lambda number: sizes[number]), busy[-1]} if busy else set()
