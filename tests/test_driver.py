"""What a sink's driver looks at before a batch, and when it claims, checks and delivers: on a real broker, in real micro-batches.

Most of it in one batch of one query, which is held open (``held_batch.py``). They judge the mutants of ``driver.py``
(``verify/simulator/mutation``), and so are quick.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Message
from confluent_kafka import TopicPartition as Offset
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.sql import functions
from tests.faults.support import delete_topic, eventually
from tests.held_batch import HeldBatch, held_batch

from onceflow import KafkaSink
from onceflow.broker import EmbeddedBroker
from onceflow.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    Fenced,
    InputError,
    ProgressConflict,
    ProgressGone,
    TopicMissing,
    UnsafeSession,
)
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction import driver as module
from onceflow.transaction import once_a_batch, streaming_query, writing
from onceflow.transaction.committed import read_committed
from onceflow.transaction.driver import BatchReport, Driver
from onceflow.transaction.executor_path import write_on_executors
from onceflow.transaction.messages import Counts, Event, ProgressRead
from onceflow.transaction.questions import ANCHOR_TOPIC, Committed
from onceflow.transaction.renewing import retention_s
from onceflow.transaction.requests import Requests
from onceflow.transaction.streaming_query import arrow_batches
from onceflow.transaction.writing import BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Fill, Reader, RunQuery, TopicFactory

PATIENCE_S = 60.0
HELD_S = 24 * 3600  # mutants are judged in one batch for as long as that takes
SOURCES = 6
"""Topics of the query: in a set they have the order of their names once in 720 times."""
VALUES = [f"value {number}" for number in range(2 * SOURCES)]
LATER = [value for number, value in enumerate(VALUES) if number % SOURCES]
"""Those of the second batch."""
GUARANTEES = ["exactly_once", "at_most_once", "at_least_once"]
WITH_PROGRESS = GUARANTEES[:2]


@dataclass
class Lab:
    """Sinks, each closed at the end; ``steps`` is what all of them were told, in order."""

    broker: EmbeddedBroker
    make_topic: TopicFactory
    reader: Reader
    source: list[str]
    opened: ExitStack
    steps: list[tuple[str, int]] = field(default_factory=list)

    def sink(self, target: str | None, name: str, **options: Any) -> KafkaSink:
        given = {"bootstrap_servers": self.broker.bootstrap_servers, "patience_s": PATIENCE_S, **options}
        given.setdefault("on_step", lambda step, batch_id: self.steps.append((step, batch_id)))
        return self.opened.enter_context(closing(KafkaSink(target, name=name, **given)))

    @property
    def settings(self) -> ClusterSettings:
        return ClusterSettings.of(self.broker.bootstrap_servers)

    def topic(self, partitions: int = 1) -> str:
        return self.make_topic(partitions)

    def named(self, *names: str) -> int:
        """How many of these steps there were."""
        return sum(step in names for step, _ in self.steps)

    def records(self, target: str) -> list[Message]:
        return self.reader(target)

    def values(self, target: str) -> list[str]:
        return sorted((m.value() or b"").decode() for m in self.records(target))


@pytest.fixture(scope="module")
def source(topic: TopicFactory, fill: Fill) -> list[str]:
    topics = [topic(1) for _ in range(SOURCES)]
    for number, name in enumerate(topics):
        fill(name, [(None, VALUES[number]), (None, VALUES[number + SOURCES])])
    return topics


@pytest.fixture(scope="module")
def first(source: list[str], run_query: RunQuery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldBatch]:
    """Batch 0, with all that there is."""
    checkpoint, topics = tmp_path_factory.mktemp("first"), ",".join(source)
    with held_batch(lambda write: run_query(topics, write, checkpoint, timeout_s=HELD_S), checkpoint) as held:
        yield held


@pytest.fixture(scope="module")
def second(source: list[str], run_query: RunQuery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldBatch]:
    """Batch 1 of another query, which had read the first topic alone: all that is in the others."""
    checkpoint, topics = tmp_path_factory.mktemp("second"), ",".join(source)
    run_query(source[0], lambda frame, _: frame.write.format("noop").mode("overwrite").save(), checkpoint)
    with held_batch(lambda write: run_query(topics, write, checkpoint, timeout_s=HELD_S), checkpoint, 1) as held:
        yield held


@pytest.fixture(scope="module")
def stateful(source: list[str], run_query: RunQuery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldBatch]:
    """Batch 0 of a query that counts."""
    checkpoint, topics = tmp_path_factory.mktemp("stateful"), ",".join(source)

    def counted(lines: DataFrame) -> DataFrame:
        return lines.groupBy("value").count().select("value")

    options: dict[str, Any] = {"transform": counted, "mode": "update", "timeout_s": HELD_S}
    with held_batch(lambda write: run_query(topics, write, checkpoint, **options), checkpoint) as held:
        yield held


@pytest.fixture(scope="module")
def timed(source: list[str], run_query: RunQuery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldBatch]:
    """Batch 0 of a query that counts how many come at a time."""
    checkpoint, topics = tmp_path_factory.mktemp("timed"), ",".join(source)

    def counted(lines: DataFrame) -> DataFrame:
        return lines.groupBy(functions.current_timestamp()).count().selectExpr("cast(count AS string) AS value")

    options: dict[str, Any] = {"transform": counted, "mode": "update", "timeout_s": HELD_S}
    with held_batch(lambda write: run_query(topics, write, checkpoint, **options), checkpoint) as held:
        yield held


@pytest.fixture
def lab(broker: EmbeddedBroker, topic: TopicFactory, read: Reader, source: list[str]) -> Iterator[Lab]:
    with ExitStack() as opened:
        yield Lab(broker, topic, read, source, opened)


def the_driver(used: KafkaSink) -> Driver:
    assert used._driver is not None
    return used._driver


def written(held: HeldBatch, used: KafkaSink) -> BatchReport:
    """What became of the batch."""
    held(lambda frame: used(frame, held.number))
    assert used.last is not None
    return used.last


def as_another_process() -> None:
    """Which does not know what this one has done in the run of the query."""
    once_a_batch._done.clear()


# ---------------------------------------------------------------------------------------------------------------- a batch


def test_a_sink_that_is_opened_claims_its_name(lab: Lab, first: HeldBatch) -> None:
    target = lab.topic()
    used = lab.sink(target, target)
    used.open(planned=False)
    assert [step for step, _ in lab.steps][-1] == "CLAIM_COMMIT"
    client = the_driver(used)._client
    used.open(planned=False)
    assert the_driver(used)._client is client
    assert written(first, used).written
    assert lab.named("CLAIM_COMMIT") == 1


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_batch_is_written_and_reported(guarantee: str, lab: Lab, first: HeldBatch) -> None:
    target, began, began_ms = lab.topic(), time.monotonic(), int(time.time() * 1000)
    report = written(first, lab.sink(target, target, guarantee=guarantee))
    took_s = time.monotonic() - began
    assert report == BatchReport(0, True, len(VALUES), report.seconds)
    assert 0 < report.seconds <= took_s
    assert lab.values(target) == sorted(VALUES)
    assert all(began_ms <= m.timestamp()[1] <= time.time() * 1000 for m in lab.records(target))
    assert ("PRODUCE", 0) in lab.steps
    assert (lab.named("CLAIM_COMMIT") == 1) == (guarantee in WITH_PROGRESS)


def test_who_is_told_no_steps_writes_all_the_same(lab: Lab, first: HeldBatch) -> None:
    target = lab.topic()
    assert written(first, lab.sink(target, target, on_step=None)).records == len(VALUES)


def test_a_column_may_name_the_topic(lab: Lab, first: HeldBatch) -> None:
    target = lab.topic()
    used = lab.sink(None, target)
    first(lambda frame: used(frame.selectExpr("value", f"'{target}' AS topic"), 0))
    assert lab.values(target) == sorted(VALUES)


@pytest.mark.parametrize("guarantee", WITH_PROGRESS)
def test_a_second_frame_of_a_batch_is_refused(guarantee: str, lab: Lab, first: HeldBatch) -> None:
    """By the same sink, and by another one of the name."""
    target = lab.topic()
    used = lab.sink(target, target, guarantee=guarantee)
    written(first, used)
    for again in (used, lab.sink(target, target, guarantee=guarantee)):
        with pytest.raises(UnsafeSession, match="batch 0 was committed a moment ago"):
            written(first, again)
    assert lab.values(target) == sorted(VALUES)


def test_at_least_once_writes_whatever_comes_and_claims_nothing(lab: Lab, first: HeldBatch, second: HeldBatch) -> None:
    target = lab.topic()
    used = lab.sink(target, target, guarantee="at_least_once")
    used.open(planned=True)
    for batch, count in ((first, len(VALUES)), (first, len(VALUES)), (second, len(LATER))):
        report = written(batch, used)
        assert report == BatchReport(batch.number, True, count, report.seconds)
    assert {step for step, _ in lab.steps} == {"PRODUCE"}
    assert lab.values(target) == sorted(VALUES * 2 + LATER)


def test_at_least_once_writes_what_another_guarantee_has_committed(lab: Lab, first: HeldBatch) -> None:
    """Under the same name, in the same batch."""
    target = lab.topic()
    for guarantee in ("exactly_once", "at_least_once"):
        assert written(first, lab.sink(target, target, guarantee=guarantee)).written
    assert lab.values(target) == sorted(VALUES * 2)


@pytest.mark.parametrize("guarantee", WITH_PROGRESS)
def test_what_was_committed_before_is_not_written_again(guarantee: str, lab: Lab, first: HeldBatch) -> None:
    target = lab.topic()
    written(first, lab.sink(target, target, guarantee=guarantee))
    as_another_process()
    again = lab.sink(target, target, guarantee=guarantee)
    report = written(first, again)
    assert report == BatchReport(0, False, 0, report.seconds)
    with pytest.raises(UnsafeSession, match="batch 0 was committed a moment ago"):
        written(first, again)
    assert lab.values(target) == sorted(VALUES)


def test_a_batch_that_is_committed_is_run_where_spark_has_to_build_its_state(
    lab: Lab, first: HeldBatch, stateful: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is written is not run a second time."""
    skipped = list[int]()

    class Skipping(BatchWriter):
        def skip(self) -> None:
            skipped.append(1)
            super().skip()

    monkeypatch.setattr(module, "BatchWriter", Skipping)
    for batch, runs in ((first, False), (stateful, True)):
        target = lab.topic()
        skipped.clear()
        written(batch, lab.sink(target, target))
        assert skipped == []
        as_another_process()
        again, tag = lab.sink(target, target), f"again-{target}"

        def repeat(frame: DataFrame, again: KafkaSink = again, tag: str = tag) -> list[int]:
            context = frame.sparkSession.sparkContext
            context.addJobTag(tag)
            try:
                again(frame, 0)
            finally:
                context.removeJobTag(tag)
            return list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))

        assert bool(batch(repeat)) == runs
        assert again.last == BatchReport(0, False, 0, again.last.seconds if again.last else -1)


def test_a_batch_that_was_planned_again_at_another_time_is_refused_where_state_tells_of_it(
    lab: Lab, first: HeldBatch, stateful: HeldBatch, timed: HeldBatch, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def planned_again(batch: HeldBatch, target: str, **options: Any) -> BatchReport:
        as_another_process()
        with monkeypatch.context() as patched:
            patched.setattr(streaming_query, "_planned_ms", lambda _: 7)
            return written(batch, lab.sink(target, target, **options))

    for batch in (first, stateful, timed):
        target = lab.topic()
        assert written(batch, lab.sink(target, target)).written
        as_another_process()
        assert not written(batch, lab.sink(target, target)).written, "that is the plan that was committed"
        if batch is not timed:
            assert not planned_again(batch, target).written
    with pytest.raises(
        ProgressConflict, match=f"'{target}', batch 0: it is committed already, and Spark has lost its plan"
    ):
        planned_again(timed, target)
    assert "taken up all the same" not in caplog.text
    assert not planned_again(timed, target, on_mismatch="restart").written
    assert "Spark has lost its plan" in caplog.text
    assert "taken up all the same" in caplog.text
    assert lab.values(target) == [str(len(VALUES))]


def test_rows_without_a_key_begin_where_the_batch_says(lab: Lab, first: HeldBatch, second: HeldBatch) -> None:
    target = lab.topic(3)
    written(first, lab.sink(target, target))
    assert {m.partition() for m in lab.records(target)} == {0}
    other = lab.topic(3)
    written(second, lab.sink(other, other, on_mismatch="restart"))
    assert {m.partition() for m in lab.records(other)} == {1}


def test_a_query_that_is_not_safe_is_refused_in_its_first_batch(
    lab: Lab, stateful: HeldBatch, spark: SparkSession
) -> None:
    target, name = lab.topic(), "spark.sql.streaming.stateStore.checkpointFormatVersion"
    used = lab.sink(target, target)

    def unsafe(frame: DataFrame) -> None:
        frame.sparkSession.conf.set(name, "1")
        try:
            used(frame, 0)
        finally:
            frame.sparkSession.conf.set(name, "2")

    with pytest.raises(UnsafeSession, match="it keeps state in format 1"):
        stateful(unsafe)
    assert lab.steps == []


class Executors:
    """How often executors have written."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self._write = write_on_executors
        patch.setattr(writing, "write_on_executors", self)

    def __call__(self, *given: Any) -> Counts:
        self.times += 1
        return self._write(*given)


@pytest.mark.parametrize(("driver_bytes", "on_executors"), [(None, 0), (1 << 30, 0), (0, 1)])
def test_a_batch_that_the_driver_cannot_hold_goes_to_the_executors(
    driver_bytes: int | None, on_executors: int, lab: Lab, first: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    executors, target = Executors(monkeypatch), lab.topic()
    written(first, lab.sink(target, target, driver_bytes=driver_bytes))
    assert executors.times == on_executors
    assert lab.values(target) == sorted(VALUES)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_of_a_query_that_goes_on_nothing_is_asked_again(
    guarantee: str, lab: Lab, run_query: RunQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its name, nor its session, nor where it begins; and how large its rows are is known from the batch before."""
    executors, asked = Executors(monkeypatch), Counter[str]()
    for name in ("check_session", "check_beginning", "ReadTopics"):
        monkeypatch.setattr(module, name, counting(name, getattr(module, name), asked))
    target = lab.topic()
    # By the first guess they fit the driver; by what they are they do not.
    used = lab.sink(target, target, guarantee=guarantee, on_mismatch="resume", driver_bytes=SOURCES * 1000)
    by = [executors.times]

    def write(frame: DataFrame, batch_id: int) -> None:
        used(frame, batch_id)
        by.append(executors.times)

    def large(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("repeat(cast(value AS STRING), 1000) AS value")

    run_query(",".join(lab.source), write, tmp_path, transform=large, maxOffsetsPerTrigger=SOURCES)
    assert by == [0, 0, 1]
    has_progress = guarantee in WITH_PROGRESS
    assert asked == Counter(["check_session", "ReadTopics", *["check_beginning"] * has_progress])
    assert lab.named("CLAIM_COMMIT") == has_progress
    assert len(lab.records(target)) == len(VALUES)


def counting(name: str, function: Callable[..., Any], asked: Counter[str]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        asked[name] += 1
        return function(*given)

    return call


# ------------------------------------------------------------------------------------- how much is held before it is sent


@pytest.mark.parametrize(("guarantee", "attempts"), [("exactly_once", 2), ("at_most_once", 1)])
def test_only_what_cannot_be_tried_twice_is_held_whole(
    guarantee: str, attempts: int, lab: Lab, first: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch that outgrows the driver a part was sent: another attempt writes it. Where there is none, nothing was."""
    monkeypatch.setattr(module, "HELD_BYTES", 1)
    executors, target = Executors(monkeypatch), lab.topic()

    def outgrown(frame: DataFrame, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        batches = list(arrow_batches(frame, columns))
        assert len(batches) > 1
        yield from batches[:1]
        raise RuntimeError("Total size of serialized results is bigger than spark.driver.maxResultSize")

    monkeypatch.setattr(writing, "arrow_batches", outgrown)
    used = lab.sink(None, target, guarantee=guarantee)
    # Two topics: a chunk is full, and so is sent, when it has so many bytes, or none comes behind it.
    first(lambda frame: used(frame.selectExpr("repeat('x', 2000000) AS value", f"'{target}' AS topic"), 0))
    assert executors.times == 1
    assert len(lab.records(target)) == len(VALUES)
    if guarantee == "exactly_once":
        assert lab.named("WRITE") == attempts


# ------------------------------------------------------------------------------------------------- what was planned before


def drop_progress(lab: Lab, name: str) -> None:
    """As the cluster does when nothing was committed for long."""
    group = f"onceflow-{name}"
    admin = AdminClient({"bootstrap.servers": lab.broker.bootstrap_servers})
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)


def drop_record(lab: Lab, name: str) -> None:
    """As if the topic of the progress had been deleted, and the source offsets were left; of one name alone."""
    admin = KafkaAdminClient(bootstrap_servers=lab.broker.bootstrap_servers)
    try:
        admin.delete_group_offsets(f"onceflow-{name}", [TopicPartition(ANCHOR_TOPIC, 0)])
    finally:
        admin.close()


@pytest.mark.parametrize("guarantee", WITH_PROGRESS)
def test_who_has_planned_batches_had_progress(guarantee: str, lab: Lab, first: HeldBatch) -> None:
    """It is not forgotten by what comes later: another opening that knows of none, a close, a batch that might be new."""
    target = lab.topic()
    used = lab.sink(target, target, guarantee=guarantee)
    for planned in (True, False):
        with pytest.raises(ProgressGone):
            used.open(planned=planned)
        used.close()
    with pytest.raises(ProgressGone):
        written(first, used)
    assert lab.named("CLAIM_STORE", "CLAIM_COMMIT") == 0
    assert written(first, lab.sink(target, target, guarantee=guarantee)).written, "the control: the name is a new one"


def test_what_is_planned_when_a_sink_is_opened_once_more_counts(lab: Lab) -> None:
    target = lab.topic()
    used = lab.sink(target, target)
    used.open(planned=False)
    used.close()
    drop_progress(lab, target)
    with pytest.raises(ProgressGone):
        used.open(planned=True)


def test_a_later_batch_without_progress_is_refused_and_batch_0_is_not(
    lab: Lab, first: HeldBatch, second: HeldBatch
) -> None:
    """As one that Spark planned before the sink was opened, and the cluster has dropped the progress."""
    target = lab.topic()
    with pytest.raises(ProgressGone):
        written(second, lab.sink(target, target))
    assert written(first, lab.sink(target, target)).written


@pytest.mark.parametrize(("kept_s", "gone"), [(0.0, True), (24 * 3600.0, False)])
def test_batch_0_may_be_committed_if_it_is_older_than_what_the_cluster_keeps(
    kept_s: float, gone: bool, lab: Lab, first: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, asked = lab.topic(), list[float]()

    def kept(*given: Any) -> float:
        asked.append(retention_s(*given))
        return kept_s

    monkeypatch.setattr(module, "LEAST_RETENTION_S", 0.0)
    monkeypatch.setattr(module, "retention_s", kept)
    used = lab.sink(target, target)
    if gone:
        with pytest.raises(ProgressGone):
            written(first, used)
    else:
        assert written(first, used).written
    (told,) = asked
    assert told > 0


def test_a_batch_that_was_planned_just_now_asks_nobody_how_long_progress_is_kept(
    lab: Lab, first: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = lab.topic()
    monkeypatch.setattr(module, "LEAST_RETENTION_S", 3600.0)
    monkeypatch.setattr(module, "retention_s", lambda *_: 0.0)
    assert written(first, lab.sink(target, target)).written


def test_source_offsets_with_a_note_prove_that_the_name_is_not_new(lab: Lab, first: HeldBatch) -> None:
    target = lab.topic()
    written(first, lab.sink(target, target))
    drop_record(lab, target)
    as_another_process()
    with pytest.raises(ProgressGone):
        written(first, lab.sink(target, target))
    with pytest.raises(ProgressGone):
        lab.sink(target, target).open(planned=False)
    assert written(first, lab.sink(target, target, on_mismatch="restart")).written


# ------------------------------------------------------------------------------------------------------ where a query begins


@pytest.mark.parametrize(
    ("on_mismatch", "said"),
    [("refuse", "has committed source offsets, and does not go on from them"), ("resume", "cannot resume")],
)
def test_a_query_begins_where_what_is_committed_ends(on_mismatch: str, said: str, lab: Lab, first: HeldBatch) -> None:
    """The name ran at least once, and its new query begins anew: all would be written a second time."""
    target = lab.topic()
    written(first, lab.sink(target, target, guarantee="at_least_once"))
    with pytest.raises(ProgressConflict, match=f"(?s){said}.*the new checkpoint does not start at the committed"):
        written(first, lab.sink(target, target, on_mismatch=on_mismatch))
    assert lab.values(target) == sorted(VALUES)
    begin(lab, target)
    assert written(first, lab.sink(target, target, on_mismatch=on_mismatch)).written, "the control: it begins there"


def begin(lab: Lab, name: str) -> None:
    """A tool commits the beginning of all that is read."""
    admin = AdminClient({"bootstrap.servers": lab.broker.bootstrap_servers})
    offsets = [Offset(topic, 0, 0) for topic in lab.source]
    group = f"onceflow-{name}"
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])[group].result(PATIENCE_S)


def test_where_a_query_begins_is_told_with_the_progress_that_was_claimed(
    lab: Lab, first: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that was replaced, and has not heard of it, tells where that was once: where all is written a second time."""
    target = lab.topic()
    begin(lab, target)
    once = read_committed(target, lab.settings)
    written(first, lab.sink(target, target, guarantee="at_least_once"))
    told(monkeypatch, once)
    with pytest.raises(ProgressConflict, match="the new checkpoint does not start at the committed"):
        written(first, lab.sink(target, target, on_mismatch="resume", patience_s=10.0))
    assert lab.values(target) == sorted(VALUES)
    told(monkeypatch, read_committed(target, lab.settings))
    begin(lab, target)
    used = lab.sink(target, target, on_mismatch="resume", patience_s=10.0)
    assert written(first, used).written, "or where it would be refused"


def told(patch: pytest.MonkeyPatch, found: Committed) -> None:
    """Who answers first tells of that, until somebody else is looked up who coordinates."""
    patch.undo()
    forget, read = Requests.forget_group, Requests.read_progress
    forgotten: list[Requests] = []

    def forgets(requests: Requests) -> None:
        forgotten.append(requests)
        forget(requests)

    def reads(requests: Requests) -> Event:
        known = [each for each in forgotten if each is requests]
        return read(requests) if known or requests not in asked else ProgressRead(found.progress)

    def committed(requests: Requests, *, stable: bool = True) -> Committed:
        asked.append(requests)
        return found

    asked: list[Requests] = []
    patch.setattr(Requests, "forget_group", forgets)
    patch.setattr(Requests, "read_progress", reads)
    patch.setattr(Requests, "read_committed", committed)


def test_who_is_told_the_progress_that_it_has_claimed_looks_no_further(
    lab: Lab, first: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for all that is committed, a broker passes over a claim whose marker is not written yet; the test waits for that."""
    target, asked = lab.topic(), Requests.read_committed
    begin(lab, target)

    def visible(requests: Requests) -> Committed:
        return eventually(lambda: asked(requests), lambda found: found.progress is not None, "the claim", PATIENCE_S)

    monkeypatch.setattr(Requests, "read_committed", visible)
    assert written(first, lab.sink(target, target, on_mismatch="resume")).written
    assert lab.named("CLAIM_STORE") == 1
    assert lab.named("LOOK") == 0


def test_who_is_fenced_before_it_knows_where_to_begin_is_told_so(
    lab: Lab, first: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, asked = lab.topic(), Requests.read_committed

    def taken_over(requests: Requests) -> Committed:
        lab.sink(target, target, on_mismatch="restart").open(planned=False)
        return asked(requests)

    monkeypatch.setattr(Requests, "read_committed", taken_over)
    with pytest.raises(Fenced):
        written(first, lab.sink(target, target, on_mismatch="resume", patience_s=10.0))


def test_who_restarts_begins_where_the_checkpoint_does(lab: Lab, first: HeldBatch) -> None:
    target = lab.topic()
    written(first, lab.sink(target, target, guarantee="at_least_once"))
    assert written(first, lab.sink(target, target, on_mismatch="restart")).written


def test_another_query_under_a_name_with_progress_is_told_of_its_checkpoint(
    lab: Lab, first: HeldBatch, stateful: HeldBatch
) -> None:
    """Not of offsets: those are asked for where no progress tells of the query before."""
    target = lab.topic()
    written(first, lab.sink(target, target))
    with pytest.raises(ProgressConflict, match="checkpoint") as refused:
        written(stateful, lab.sink(target, target))
    assert "source offsets" not in refused.value.message


class Died(Exception):
    """The driver's death."""


def die_in_the_commit(step: str, batch_id: int) -> None:
    if step == "COMMIT":
        raise Died


@pytest.mark.parametrize("on_mismatch", ["refuse", "resume"])
def test_a_transaction_that_a_dead_driver_left_open_holds_up_no_question(
    on_mismatch: str, lab: Lab, first: HeldBatch
) -> None:
    """Offsets are pending until the claim ends it, or its time is over: what is asked before the claim does not wait for that."""
    target = lab.topic()
    with pytest.raises(Died):
        written(first, lab.sink(target, target, on_step=die_in_the_commit))
    used = lab.sink(target, target, on_mismatch=on_mismatch, patience_s=10.0)
    assert written(first, used).written
    assert lab.values(target) == sorted(VALUES)


# ---------------------------------------------------------------------------------------------- topics that were made anew

NOTED = "_onceflow_topics"


def noted(held: HeldBatch) -> dict[str, str]:
    """Which topics a query has read, by its checkpoint."""
    file = held.checkpoint / NOTED
    return dict(json.loads(file.read_text())) if file.exists() else {}


def note(held: HeldBatch, ids: dict[str, str]) -> None:
    """As an earlier batch has left it; nothing, if empty."""
    for name in (NOTED, f".{NOTED}.crc"):
        (held.checkpoint / name).unlink(missing_ok=True)
    if ids:
        (held.checkpoint / NOTED).write_text(json.dumps(ids))


@pytest.fixture
def unread(first: HeldBatch, second: HeldBatch) -> Iterator[None]:
    """The checkpoints tell of no topics."""
    for held in (first, second):
        note(held, {})
    yield
    for held in (first, second):
        note(held, {})


@pytest.mark.usefixtures("unread")
def test_which_topics_are_read_is_noted_where_no_progress_tells(lab: Lab, first: HeldBatch, second: HeldBatch) -> None:
    target = lab.topic()
    written(first, lab.sink(target, target))
    ids = noted(first)
    assert ids.keys() == set(lab.source)
    other = lab.topic()
    written(second, lab.sink(other, other, on_mismatch="restart"))
    assert noted(second) == {}
    written(second, lab.sink(other, f"{other}-too", guarantee="at_least_once"))
    assert noted(second) == ids


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("guarantee", "on_mismatch"),
    [("exactly_once", "refuse"), ("exactly_once", "resume"), ("at_most_once", "refuse"), ("at_least_once", "refuse")],
)
def test_a_topic_that_was_made_anew_since_it_was_read_is_refused(
    guarantee: str, on_mismatch: str, lab: Lab, first: HeldBatch
) -> None:
    target = lab.topic()
    note(first, {lab.source[2]: "the one before"})
    named = ", ".join(sorted(lab.source))
    with pytest.raises(InputError, match=rf"batch 0: of the source topics \({named}\) one or more were deleted"):
        written(first, lab.sink(target, target, guarantee=guarantee, on_mismatch=on_mismatch))
    assert lab.values(target) == []
    assert written(first, lab.sink(target, target, guarantee=guarantee, on_mismatch="restart")).written
    assert set(noted(first)) == set(lab.source)
    assert "the one before" not in noted(first).values()


@pytest.mark.usefixtures("unread")
def test_only_the_topics_that_a_batch_goes_on_with_have_to_be_the_same(
    lab: Lab, first: HeldBatch, second: HeldBatch
) -> None:
    """Of the others it reads all that there is."""
    target, (one, *others) = lab.topic(), lab.source
    note(second, dict.fromkeys(others, "the one before"))
    assert written(second, lab.sink(target, target, guarantee="at_least_once")).written
    note(second, {one: "the one before"})
    with pytest.raises(InputError, match="deleted and made anew"):
        written(second, lab.sink(target, target, guarantee="at_least_once"))


@pytest.mark.usefixtures("unread")
def test_a_topic_that_was_made_anew_since_the_progress_is_refused(
    lab: Lab, first: HeldBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = lab.topic()
    with monkeypatch.context() as patched:
        patched.setattr(KafkaClient, "topic_ids", lambda _, topics: dict.fromkeys(topics, "the one before"))
        written(first, lab.sink(target, target))
    note(first, {})
    as_another_process()
    with pytest.raises(InputError, match="deleted and made anew"):
        written(first, lab.sink(target, target))
    assert lab.values(target) == sorted(VALUES)


# ------------------------------------------------------------------------------------------------------------ connections


class Clients:
    """The clients that drivers have made, which are real ones; ``late``: the first opening of each finds no broker."""

    def __init__(self, *, late: bool = False) -> None:
        made: list[NotedClient] = []
        self.made = made

        class NotedClient(KafkaClient):
            def __init__(self, *given: Any, **options: Any) -> None:
                super().__init__(*given, **options)
                self.closed = 0
                self.opened: list[float | None] = []
                made.append(self)

            def open(self, patience_s: float | None = None) -> None:
                self.opened.append(patience_s)
                if late and len(self.opened) == 1:
                    raise BrokerUnreachable("nobody listens yet")
                super().open(patience_s)

            def close(self) -> None:
                self.closed += 1
                super().close()

        self.kind = NotedClient

    @property
    def one(self) -> Any:
        (client,) = self.made
        return client


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    found = Clients()
    monkeypatch.setattr(module, "KafkaClient", found.kind)
    return found


def test_a_sink_that_is_closed_has_no_connection_and_opens_again(lab: Lab, first: HeldBatch, clients: Clients) -> None:
    target = lab.topic()
    used = lab.sink(target, target)
    used.open(planned=False)
    for _ in range(2):
        used.close()
    assert clients.one.closed == 1
    assert written(first, used).written
    assert [client.closed for client in clients.made] == [1, 0]


def test_a_topic_that_is_missing_is_named_and_nothing_is_left_open(lab: Lab, clients: Clients) -> None:
    name = lab.topic()
    used = lab.sink("no-such-topic", name, patience_s=7.0)
    with pytest.raises(TopicMissing, match="no-such-topic"):
        used.open(planned=False)
    assert clients.one.patience_s == 7.0
    assert clients.one.closed == 1
    assert lab.steps == []


@pytest.mark.parametrize(("patience_s", "at_first_s"), [(PATIENCE_S, 10.0), (7.0, 7.0)])
def test_a_broker_that_comes_late_is_waited_for(
    patience_s: float, at_first_s: float, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, target, asked = Clients(late=True), lab.topic(), list[object]()

    class Admin:
        """librdkafka's, which cannot be reached either."""

        def __init__(self, cluster: object) -> None:
            asked.append(cluster)

        def partitions(self) -> None:
            raise BrokerUnreachable("nobody listens")

    monkeypatch.setattr(module, "KafkaClient", clients.kind)
    monkeypatch.setattr(module, "ClusterAdmin", Admin)
    used = lab.sink(target, target, patience_s=patience_s)
    used.open(planned=False)
    assert clients.one.opened == [at_first_s, None]
    assert asked == [used._options.cluster]


def test_a_wrong_password_is_told_as_such(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka can tell it from a broker that is down; nobody is waited for then."""
    clients, target = Clients(late=True), lab.topic()

    class Admin:
        def __init__(self, cluster: object) -> None:
            pass

        def partitions(self) -> None:
            raise AuthenticationFailed("wrong password")

    monkeypatch.setattr(module, "KafkaClient", clients.kind)
    monkeypatch.setattr(module, "ClusterAdmin", Admin)
    with pytest.raises(AuthenticationFailed):
        lab.sink(target, target).open(planned=False)
    assert (clients.one.opened, clients.one.closed) == ([10.0], 1)


def test_a_cluster_without_the_topic_of_the_progress_gets_it(lab: Lab, broker_v1: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker_v1.bootstrap_servers})
    if ANCHOR_TOPIC in admin.list_topics(timeout=PATIENCE_S).topics:
        delete_topic(broker_v1, ANCHOR_TOPIC)
    used = lab.sink(None, "without", bootstrap_servers=broker_v1.bootstrap_servers, patience_s=20.0)
    used.open(planned=False)
    assert ANCHOR_TOPIC in admin.list_topics(timeout=PATIENCE_S).topics


@pytest.mark.parametrize("version", [1, 2])
def test_the_driver_goes_by_the_clusters_transaction_version(
    version: int, lab: Lab, request: pytest.FixtureRequest
) -> None:
    servers = request.getfixturevalue("broker" if version == 2 else "broker_v1").bootstrap_servers
    used = lab.sink(None, f"{lab.topic()}-{version}", bootstrap_servers=servers, transaction_timeout_ms=31_000)
    used.open(planned=False)
    for _ in range(3):
        the_driver(used).renew(0.0)
    assert lab.named("RENEW") == 3
    requests = the_driver(used)._requests
    assert (requests.version, requests.timeout_ms) == (version, 31_000)
    assert the_driver(used)._protocol.settings.epoch_per_end == (version == 2)


# ---------------------------------------------------------------------------------------------------------------- renewing


class Clock:
    """The driver's; it stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def test_what_rests_is_renewed_once_it_is_old_enough(lab: Lab, first: HeldBatch, clock: Clock) -> None:
    target = lab.topic()
    used = lab.sink(target, target)
    used.open(planned=False)
    renew = the_driver(used).renew

    def renewed(at_s: float) -> int:
        """How often, when it is asked for what is 20 s old."""
        clock.now, before = at_s, lab.named("RENEW")
        renew(20.0)
        return lab.named("RENEW") - before

    assert [renewed(at) for at in (1000.0, 1019.0, 1020.0, 1039.0, 1040.0)] == [0, 0, 1, 0, 1]
    clock.now = 1055.0
    written(first, used)
    assert [renewed(at) for at in (1074.0, 1075.0)] == [0, 1], "a batch is a commit, too"


def test_what_is_closed_or_claims_nothing_is_not_renewed(lab: Lab) -> None:
    target = lab.topic()
    used = lab.sink(target, target)
    used.open(planned=False)
    used.close()
    the_driver(used).renew(0.0)
    assert lab.named("RENEW") == 0
    weak = lab.sink(target, f"{target}-weak", guarantee="at_least_once")
    weak.open(planned=False)
    the_driver(weak).renew(0.0)
    assert lab.named("RENEW") == 0


def test_a_driver_that_was_fenced_is_told_so_when_it_renews(lab: Lab) -> None:
    target = lab.topic()
    used = lab.sink(target, target)
    used.open(planned=False)
    lab.sink(target, target).open(planned=False)
    with pytest.raises(Fenced):
        the_driver(used).renew(0.0)
