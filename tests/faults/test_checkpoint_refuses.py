"""The checkpoint's file system refuses a call, or gives other bytes back than it was given, or an old list: Spark's query ends or
is refused, and nothing is lost or repeated."""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from tests.test_state import expected, last_totals, records, totals

from onceflow.verify.faults.disk import set_file_size_limit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Workbench

pytestmark = pytest.mark.faults

FIRST = [(f"k{number % 5}", str(number)) for number in range(60)]
SECOND = [(f"k{number % 5}", str(number)) for number in range(60, 100)]
BATCHES: dict[str, Any] = {"maxOffsetsPerTrigger": 15}


class InTheWay:
    """Something stands where Spark wants to write: a file for a directory, or a directory for a file. It is told as a step is."""

    def __init__(self, place: Path, step: str) -> None:
        self._place, self._step = place, step
        self._aside = place.with_name(f"{place.name} aside")
        self.stands = False

    def __call__(self, step: str, batch_id: int) -> None:
        if (step, batch_id) == (self._step, 1) and not self.stands:
            self.put()

    def put(self) -> None:
        self.stands = True
        if self._place.is_dir():
            self._place.rename(self._aside)
            self._place.write_text("in the way")
        else:
            (self._place / "in the way").mkdir(parents=True)

    def take_away(self) -> None:
        assert self.stands
        if self._place.is_dir():
            (self._place / "in the way").rmdir()
            self._place.rmdir()
        else:
            self._place.unlink()
            self._aside.rename(self._place)


PLACES = [
    ("commits", "COMMIT"),  # no file can be created
    ("commits/1", "COMMIT"),  # a file cannot be renamed to its name
    ("offsets", "WRITE"),  # what is planned next cannot be noted
    ("offsets/2", "WRITE"),
]


@pytest.mark.parametrize(("place", "step"), PLACES)
def test_what_spark_could_not_note_is_neither_lost_nor_repeated(bench: Workbench, place: str, step: str) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, FIRST)
    hindrance = InTheWay(bench.checkpoint / place, step)
    with pytest.raises(Exception, match=r".") as refused:
        bench.run(source, target, {"on_step": hindrance}, **BATCHES)
    assert "PROGRESS_CONFLICT" not in str(refused.value)
    hindrance.take_away()
    bench.run(source, target, **BATCHES)
    assert written(bench, target) == Counter(FIRST)


class FullDisk:
    """Once, from a step on, no file of Spark's JVM may grow: what it writes ends after a few bytes, as on a disk that is full."""

    LEFT = 8  # bytes

    def __init__(self, spark: SparkSession, step: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = int(context._jvm.java.lang.ProcessHandle.current().pid())
        self._step = step
        self._before, _ = resource.prlimit(self._jvm, resource.RLIMIT_FSIZE)
        self.is_full = False

    def __call__(self, step: str, batch_id: int) -> None:
        if (step, batch_id) == (self._step, 1) and not self.is_full:
            self.is_full = True
            set_file_size_limit(self._jvm, self.LEFT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        set_file_size_limit(self._jvm, self._before)
        assert self.is_full


@pytest.mark.parametrize("step", ["WRITE", "COMMIT"])
def test_a_disk_that_is_full_loses_and_repeats_nothing(bench: Workbench, spark: SparkSession, step: str) -> None:
    """The batch cannot be computed, or Spark cannot note that it is committed. Either file is there, and half."""
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, records(100))
    options: dict[str, Any] = {"transform": totals, "mode": "update", "maxOffsetsPerTrigger": 40}
    with FullDisk(spark, step) as disk, pytest.raises(Exception, match=r".") as refused:
        bench.run(source, target, {"on_step": disk}, **options)
    assert "PROGRESS_CONFLICT" not in str(refused.value)
    bench.run(source, target, **options)
    assert last_totals(bench, target) == expected(100)


@contextmanager
def refusing_all_looks(directory: Path) -> Iterator[None]:
    """Whether it exists, and what is in it, cannot be said: it is a link to itself."""
    aside = directory.with_name(f"{directory.name} aside")
    directory.rename(aside)
    directory.symlink_to(directory)
    try:
        yield
    finally:
        directory.unlink()
        aside.rename(directory)


@pytest.mark.parametrize("place", ["commits", "offsets"])
def test_a_log_that_cannot_be_listed_is_not_taken_for_an_empty_one(bench: Workbench, place: str) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, FIRST)
    bench.run(source, target, **BATCHES)
    bench.fill(source, SECOND)
    with refusing_all_looks(bench.checkpoint / place), pytest.raises(Exception, match=r".") as refused:
        bench.run(source, target, **BATCHES)
    assert "PROGRESS_CONFLICT" not in str(refused.value)
    assert written(bench, target) == Counter(FIRST)
    bench.run(source, target, **BATCHES)
    assert written(bench, target) == Counter(FIRST + SECOND)


class StaleList:
    """What lists the committed batches is not told of the newest one, until the list is up to date again."""

    def __init__(self, checkpoint: Path) -> None:
        self._commits, self._aside = checkpoint / "commits", checkpoint
        self.newest = max(int(each.name) for each in self._commits.iterdir() if each.name.isdigit())
        self._names = (f"{self.newest}", f".{self.newest}.crc")
        self.is_stale = True
        for name in self._names:
            (self._commits / name).rename(self._aside / name)

    def is_up_to_date(self) -> None:
        if self.is_stale:
            for name in self._names:
                (self._aside / name).rename(self._commits / name)
        self.is_stale = False


def test_a_list_without_the_newest_commit_repeats_nothing_though_that_is_there_again_a_moment_later(
    bench: Workbench,
) -> None:
    """A list may be stale::

    Spark   lists what is committed, and is not told of the newest batch: runs it again
    sink    knows it, and writes nothing; by then the entry is to be seen
    Spark   cannot note as committed what is noted, takes it for another driver's work, and ends
    """
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, FIRST)
    bench.run(source, target, **BATCHES)
    stale = StaleList(bench.checkpoint)

    def note(step: str, batch_id: int) -> None:
        seen.append((step, batch_id))
        if step == "CONFIRM":  # the list is made by then, and the batch is not run yet
            stale.is_up_to_date()

    seen: list[tuple[str, int]] = []
    with pytest.raises(Exception, match=r".") as refused:
        bench.run(source, target, {"on_step": note}, **BATCHES)
    assert "PROGRESS_CONFLICT" not in str(refused.value)
    assert ("WRITE", stale.newest) not in seen
    bench.run(source, target, **BATCHES)
    assert written(bench, target) == Counter(FIRST)


def test_state_that_could_not_be_written_is_computed_again(bench: Workbench) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, records(100))
    hindrance = InTheWay(bench.checkpoint / "state/0/0", "WRITE")
    options: dict[str, Any] = {"transform": totals, "mode": "update", "maxOffsetsPerTrigger": 40}
    with pytest.raises(Exception, match=r"."):
        bench.run(source, target, {"on_step": hindrance}, **options)
    hindrance.take_away()
    bench.run(source, target, **options)
    assert last_totals(bench, target) == expected(100)


def test_control_sparks_own_sink_repeats_what_it_sent_before_its_state_could_not_be_written(bench: Workbench) -> None:
    """One task writes the rows of all partitions of the state, one after the other: those of the first one are sent by then."""
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, records(100))
    hindrance = InTheWay(bench.checkpoint / "state/0/1", "WRITE")
    options: dict[str, Any] = {"transform": totals, "mode": "update", "maxOffsetsPerTrigger": 40}

    def write(frame: DataFrame, batch_id: int) -> None:
        hindrance("WRITE", batch_id)
        sink = frame.coalesce(1).write.format("kafka").option("topic", target)
        sink.option("kafka.bootstrap.servers", bench.broker.bootstrap_servers).save()

    with pytest.raises(Exception, match=r"."):
        bench.run_query(source, write, bench.checkpoint, **options)
    hindrance.take_away()
    bench.run_query(source, write, bench.checkpoint, **options)
    assert max(written(bench, target).values()) > 1


@pytest.mark.parametrize("place", ["commits", "commits/1"])
def test_control_an_engine_without_defence_repeats_what_spark_could_not_note(bench: Workbench, place: str) -> None:
    source = bench.topic(2)
    bench.fill(source, FIRST)
    hindrance, seen = InTheWay(bench.checkpoint / place, "WRITTEN"), Output()

    def write(frame: DataFrame, batch_id: int) -> None:
        seen.add(frame)
        hindrance("WRITTEN", batch_id)

    with pytest.raises(Exception, match=r"."):
        bench.run_query(source, write, bench.checkpoint, **BATCHES)
    hindrance.take_away()
    bench.run_query(source, write, bench.checkpoint, **BATCHES)
    assert set(seen) == set(FIRST)
    assert seen.total() > len(FIRST)


def test_control_an_engine_without_defence_repeats_what_a_full_disk_did_not_take(
    bench: Workbench, spark: SparkSession
) -> None:
    source, seen = bench.topic(2), Output()
    bench.fill(source, FIRST)

    def write(frame: DataFrame, batch_id: int) -> None:
        seen.add(frame)
        disk("WRITTEN", batch_id)

    with FullDisk(spark, "WRITTEN") as disk, pytest.raises(Exception, match=r"."):
        bench.run_query(source, write, bench.checkpoint, **BATCHES)
    bench.run_query(source, write, bench.checkpoint, **BATCHES)
    assert set(seen) == set(FIRST)
    assert seen.total() > len(FIRST)


def test_control_an_engine_without_defence_repeats_the_batch_that_a_stale_list_is_without(bench: Workbench) -> None:
    """That Spark cannot note the batch a second time comes too late: its rows are written."""
    source, seen = bench.topic(2), Output()
    bench.fill(source, FIRST)
    bench.run_query(source, lambda frame, _: seen.add(frame), bench.checkpoint, **BATCHES)
    assert seen == Counter(FIRST)
    stale = StaleList(bench.checkpoint)

    def write(frame: DataFrame, batch_id: int) -> None:
        stale.is_up_to_date()
        assert batch_id == stale.newest
        seen.add(frame)

    with pytest.raises(Exception, match=r"."):
        bench.run_query(source, write, bench.checkpoint, **BATCHES)
    assert set(seen) == set(FIRST)
    assert seen.total() > len(FIRST)


@pytest.mark.parametrize(("by", "checksum"), [(-5, True), (-5, False), (5, False)])
def test_offsets_that_are_other_ones_on_the_disk_are_refused(bench: Workbench, by: int, checksum: bool) -> None:
    """On a local disk Hadoop's checksum tells; elsewhere the digest of the committed offsets does.

    It may also be a file that comes late, where the store lets it replace another one::

        one driver    plans a batch, and is slow to write that down
        the next one  plans the same batch up to other offsets, and commits it
        the first     its plan arrives, and is what Spark reads at the next start
    """
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, FIRST)
    bench.run(source, target, **BATCHES)
    bench.fill(source, SECOND)
    with changed(bench.checkpoint, by, checksum=checksum):
        with pytest.raises(Exception, match="Checksum" if checksum else "PROGRESS_CONFLICT"):
            bench.run(source, target, **BATCHES)
        assert written(bench, target) == Counter(FIRST)
    bench.run(source, target, **BATCHES)
    assert written(bench, target) == Counter(FIRST + SECOND)


@pytest.mark.parametrize("by", [-5, 5])
def test_control_an_engine_without_defence_begins_where_the_changed_offsets_end(bench: Workbench, by: int) -> None:
    source, seen = bench.topic(2), Output()
    bench.fill(source, FIRST)
    bench.run_query(source, lambda frame, _: seen.add(frame), bench.checkpoint, **BATCHES)
    bench.fill(source, SECOND)
    with changed(bench.checkpoint, by, checksum=False):
        bench.run_query(source, lambda frame, _: seen.add(frame), bench.checkpoint, **BATCHES)
    assert seen.total() == len(FIRST + SECOND) - by, "more are repeated, fewer are lost"


class Output(Counter[tuple[str, str]]):
    """What an engine without defence has written."""

    def add(self, frame: DataFrame) -> None:
        rows = frame.selectExpr("cast(key AS string)", "cast(value AS string)").collect()
        self.update((str(row[0]), str(row[1])) for row in rows)


def written(bench: Workbench, topic: str) -> Counter[tuple[str, str]]:
    return Counter((_text(m.key()), _text(m.value())) for m in bench.read(topic))


def _text(data: str | bytes | None) -> str:
    return data.decode() if isinstance(data, bytes) else str(data)


@contextmanager
def changed(checkpoint: Path, by: int, *, checksum: bool) -> Iterator[None]:
    """The newest plan ends that many records later in one partition, in the file alone; it has a ``checksum``, or none."""
    newest = max(
        (file for file in (checkpoint / "offsets").iterdir() if file.name.isdigit()), key=lambda file: int(file.name)
    )
    crc = newest.with_name(f".{newest.name}.crc")
    before, sum_before = newest.read_text(), crc.read_bytes()
    *head, last = before.splitlines()
    offsets = json.loads(last)
    for topic in offsets:
        offsets[topic]["0"] += by
    newest.write_text("\n".join([*head, json.dumps(offsets, separators=(",", ":"))]))
    if not checksum:
        crc.unlink()
    yield
    for name in (newest.name, f".{newest.name}.crc"):
        newest.with_name(name).unlink(missing_ok=True)
    newest.write_text(before)
    crc.write_bytes(sum_before)
    for directory in ("offsets", "commits"):  # what was planned behind it, and came to nothing
        for file in (checkpoint / directory).iterdir():
            number = file.name.removeprefix(".").removesuffix(".crc")
            if number.isdigit() and int(number) > int(newest.name):
                file.unlink()
