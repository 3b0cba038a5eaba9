"""A zombie's state files come late: under the names of its batch, which its successor has planned anew and committed (F12).

::

    zombie     plans batch 1 over records 40 to 69, writes its state, stands still; neither its plan nor its files are there yet
    successor  plans batch 1 over records 40 to 99, and commits it
    zombie     its files arrive: in format 1 they have the names of the successor's

Spark's own query in format 1 goes on with the zombie's state then. In format 2 each attempt's files have names of their own, and
the commit log tells which are those of the batch: what comes late is read by nobody.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.test_state import expected, last_totals, records, totals

from onceflow.transaction.writing import BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Workbench

pytestmark = pytest.mark.faults

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
# Records: of the first batch, up to the end of the zombie's and of the successor's, and behind them.
BEFORE, HALF, ALL, LATER = 40, 70, 100, 130


@pytest.fixture(params=["1", "2"])
def state_format(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    spark.conf.set(FORMAT, request.param)
    yield request.param
    spark.conf.set(FORMAT, "2")


def state_of(checkpoint: Path) -> dict[Path, bytes]:
    """All files of its state."""
    return {
        path.relative_to(checkpoint): path.read_bytes() for path in (checkpoint / "state").rglob("*") if path.is_file()
    }


def written_by(zombie: Callable[[], object], checkpoint: Path) -> dict[Path, bytes]:
    """The state files that it wrote; nothing of it is in the checkpoint then, for all of it is on its way."""
    aside = checkpoint.with_name("as it was")
    shutil.copytree(checkpoint, aside)
    before = state_of(checkpoint)
    zombie()
    written = {path: data for path, data in state_of(checkpoint).items() if before.get(path) != data}
    shutil.rmtree(checkpoint)
    aside.rename(checkpoint)
    return written


def deliver(late: dict[Path, bytes], checkpoint: Path) -> int:
    """How many of them take another file's place."""
    replaced = 0
    for path, data in late.items():
        replaced += (checkpoint / path).exists() and not path.name.endswith(".crc")
        (checkpoint / path).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / path).write_bytes(data)
    return replaced


def lines(start: int, end: int) -> list[tuple[str, str]]:
    return records(end)[start:]


def test_control_sparks_own_query_goes_on_with_a_late_state_in_format_1_alone(
    bench: Workbench, spark: SparkSession, state_format: str
) -> None:
    source = bench.topic(1)
    newest: dict[str, int] = {}

    def note(frame: DataFrame, batch_id: int) -> None:
        newest.update({row.key.decode(): int(row.value) for row in frame.collect()})

    def run() -> None:
        frame = (
            spark.readStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": bench.broker.bootstrap_servers, "subscribe": source})
            .option("startingOffsets", "earliest")
            .load()
        )
        query = totals(frame).writeStream.foreachBatch(note).outputMode("update")
        query.option("checkpointLocation", str(bench.checkpoint)).trigger(availableNow=True).start().awaitTermination()

    bench.fill(source, lines(0, BEFORE))
    run()
    bench.fill(source, lines(BEFORE, HALF))
    late = written_by(run, bench.checkpoint)
    bench.fill(source, lines(HALF, ALL))
    run()
    assert newest == expected(ALL)
    replaced = deliver(late, bench.checkpoint)
    bench.fill(source, lines(ALL, LATER))
    run()
    assert late
    assert bool(replaced) == (state_format == "1")
    assert (newest == expected(LATER)) == (state_format == "2")


def test_a_pipelines_state_is_its_own_whatever_a_zombie_wrote(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = bench.topic(1), bench.topic(1)

    def run() -> None:
        bench.run(source, target, transform=totals, mode="update")

    def stands_still() -> None:
        """It has written its output and its state, and commits nothing."""
        write = BatchWriter.write

        def and_no_further(self: BatchWriter, *arguments: object) -> object:
            write(self, *arguments)  # type: ignore[arg-type]
            raise RuntimeError("stands still")

        with monkeypatch.context() as patched:
            patched.setattr(BatchWriter, "write", and_no_further)
            with pytest.raises(Exception, match="stands still"):
                run()

    bench.fill(source, lines(0, BEFORE))
    run()
    bench.fill(source, lines(BEFORE, HALF))
    late = written_by(stands_still, bench.checkpoint)
    bench.fill(source, lines(HALF, ALL))
    run()
    assert late
    assert deliver(late, bench.checkpoint) == 0
    bench.fill(source, lines(ALL, LATER))
    run()
    assert last_totals(bench, target) == expected(LATER)
