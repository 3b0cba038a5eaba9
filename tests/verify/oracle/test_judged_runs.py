"""Real runs of ``onceflow.pipeline`` that the oracle agrees with, and what is said when a real cluster is tampered with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.structs import OffsetAndMetadata
from tests.verify.oracle.runs import Run, repeat

from onceflow.broker import EmbeddedBroker
from onceflow.errors import OracleFailed, ProgressConflict
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline import Mode
from onceflow.transaction import partitioner
from onceflow.transaction.committed import read_committed
from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC, transactional_id
from onceflow.verify.oracle import Expected, expected_output
from onceflow.verify.oracle.answer import replayed
from onceflow.verify.oracle.judging import judge
from onceflow.verify.recording import Recorded
from onceflow.verify.report.summary import CERTAIN
from onceflow.verify.workload import builtin_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.usefixtures("spark")

MakeRun = Callable[..., Run]

LATE = """
[[source]]
name = "payments"
topics = ["{0}"]
starting_offsets = "latest"
schema = "account STRING, amount BIGINT"

[[sink]]
from = "payments"
topic = "{out}"
key = "_key"
value = "to_json(struct(account, amount))"
"""

STATELESS = """
[[source]]
name = "payments"
topics = ["{0}"]
schema = "account STRING, amount BIGINT"

[[sink]]
from = "payments"
topic = "{out}"
key = "_key"
value = "to_json(struct(account, amount))"
headers = {{origin = "concat(_topic, '-', _partition, '-', _offset)", at = "cast({now} AS string)"}}
"""

WINDOWED = """
[[source]]
name = "payments"
topics = ["{0}"]
schema = "account STRING, amount DOUBLE, at TIMESTAMP NOT NULL"
watermark = {{column = "at", delay = "1 second"}}

[[transform]]
name = "windows"
sql = '''
SELECT window(at, '2 seconds') AS w, account, sum(amount) AS amount, count(*) AS n
FROM payments GROUP BY window(at, '2 seconds'), account
'''

[[sink]]
from = "windows"
topic = "{out}"
key = "account"
value = "to_json(struct(w, account, amount, n))"
"""

JOINED = """
[[source]]
name = "a"
topics = ["{0}"]
schema = "account STRING, amount INT, at TIMESTAMP NOT NULL"
watermark = {{column = "at", delay = "1 second"}}

[[source]]
name = "b"
topics = ["{1}"]
schema = "account STRING, rate INT, at TIMESTAMP NOT NULL"
watermark = {{column = "at", delay = "1 second"}}

[[transform]]
name = "both"
sql = '''
SELECT a.account, amount, rate, a._offset AS o, b._offset AS p
FROM a JOIN b ON a.account = b.account AND a.at BETWEEN b.at - INTERVAL 2 SECONDS AND b.at + INTERVAL 2 SECONDS
'''

[[sink]]
from = "both"
topic = "{out}"
key = "account"
value = "to_json(struct(account, amount, rate, o, p))"
"""


TWICE = """
[[source]]
name = "all"
pattern = "{0}"
schema = "account STRING, amount BIGINT"
options = {{"kafka.max.poll.records" = 7}}

[[source]]
name = "again"
topics = ["{0}"]
schema = "account STRING, amount BIGINT"

[[transform]]
name = "both"
sql = "SELECT *, 'all' AS way FROM all UNION ALL SELECT *, 'again' AS way FROM again"

[[sink]]
from = "both"
topic = "{out}"
key = "_key"
value = "to_json(struct(account, amount, way))"
"""


@pytest.fixture(scope="module")
def make(broker: EmbeddedBroker, topic: TopicFactory, tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    def made(text: str, sources: int = 1, **values: str) -> Run:
        target, inputs = topic(2), [topic(3) for _ in range(sources)]
        directory = tmp_path_factory.mktemp("run")
        return Run(broker, directory, f"judged-{target}", text.format(*inputs, out=target, **values), (target,))

    return made


def committed_input(run: Run, recorded: Recorded) -> int:
    """The records of the input that a reader of committed ones finds; how many are aborted is a matter of chance."""
    return int(pc.sum(pc.is_in(recorded.final["topic"].cast(pa.string()), pa.array(run.inputs))).as_py())


def check_good(run: Run, at_least: int) -> None:
    recorded, expected = run.recorded(), run.expected()
    judgement = judge(recorded, expected)
    assert judgement.violations == {}
    assert judgement.reasons == ()
    assert len(expected.records) >= at_least
    assert expected.unordered == (run.outputs if expected.stateful else ())


def swapped_in_batch(recorded: Recorded, expected: Expected, topic: str) -> Recorded:
    """As if an engine had written two records of one key and one origin the other way round."""
    rows = expected.records.filter(pc.equal(expected.records["topic"].cast(pa.string()), topic)).to_pylist()
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        groups.setdefault((row["batch"], row["key"], row["origin"]), []).append(row["content"])
    one, other = next(found for found in groups.values() if len(found) > 1)[:2]
    content = recorded.final["content"].to_pylist()
    swapped = pa.array([{one: other, other: one}.get(each, each) for each in content])
    return replace(
        recorded, final=recorded.final.set_column(recorded.final.column_names.index("content"), "content", swapped)
    )


@pytest.fixture(scope="module")
def stateless(make: MakeRun) -> Run:
    run = make(STATELESS, now="current_timestamp()")
    for _ in range(3):
        run.batch(60)
    return run


def test_a_plan_of_single_records_is_judged_with_its_order(stateless: Run) -> None:
    check_good(stateless, 60)


def test_windows_are_judged(make: MakeRun, spark: SparkSession) -> None:
    """And are known to keep state where Spark is to cut off the plan's text, which tells of it."""
    run = make(WINDOWED)
    for _ in range(3):
        run.batch(80)
    check_good(run, 10)
    spark.conf.set("spark.sql.maxPlanStringLength", "8")
    try:
        assert run.expected().stateful
    finally:
        spark.conf.unset("spark.sql.maxPlanStringLength")


def test_a_replay_of_many_batches_keeps_the_files_of_few(make: MakeRun, spark: SparkSession, tmp_path: Path) -> None:
    """Spark lists them all at each start: a replay took longer for each batch than for the one before."""
    run = make(WINDOWED)
    for _ in range(5):
        run.batch(40)
    replay, entries = tmp_path / "replay", list[int]()

    def look(done: int, total: int) -> None:
        entries.append(max(len(list((replay / log).iterdir())) for log in ("offsets", "commits")))

    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    try:
        settings = ClusterSettings.of(run.broker.bootstrap_servers)
        expected = replayed(run.file, spark, settings, run.checkpoint, replay, {}, look)
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    assert len(entries) >= 5
    assert max(entries) <= 2 * 2, "two entries of each log, each with its checksum"
    assert judge(run.recorded(), expected).violations == {}
    assert len(expected.records) > 10


def test_a_partition_that_two_sources_read_each_in_its_own_way_is_judged(make: MakeRun) -> None:
    run = make(TWICE)
    for _ in range(2):
        run.batch(60)
    check_good(run, 60)


@pytest.mark.long
def test_a_join_is_judged(make: MakeRun) -> None:
    run = make(JOINED, sources=2)
    for _ in range(3):
        run.batch(120)
    check_good(run, 10)


def test_the_built_in_plan_is_judged_by_the_oracle_as_a_process(
    broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path
) -> None:
    text = builtin_plan().read_text()
    text = text.split("\n\n", 1)[1]
    outputs = []
    for name in ("verify-payments", "verify-refunds", "verify-copies", "verify-totals"):
        outputs.append(topic(2))
        text = text.replace(name, outputs[-1])
    run = Run(broker, tmp_path, f"judged-{outputs[-1]}", text, tuple(outputs[2:]))
    for _ in range(2):
        run.batch(60)
    run.write(20)  # planned by nobody: neither accused nor missing, once the position says so
    run.process()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(OracleFailed, match="no batch for 0 s"):
        expected_output(run.path, run.checkpoint, broker.bootstrap_servers, scratch, stands_still_s=0)
    told: list[tuple[int, int]] = []
    expected = expected_output(
        run.path, run.checkpoint, broker.bootstrap_servers, scratch, on_batch=lambda *how_far: told.append(how_far)
    )
    assert told == sorted(set(told))
    assert told[-1] == (3, 3)
    recorded = run.recorded()
    judgement = judge(recorded, expected)
    assert judgement.violations == {}
    assert judgement.reasons == ()
    assert expected.stateful
    assert expected.unordered == (outputs[3],)  # the totals; the copies beside them keep their order, key by key
    mixed = swapped_in_batch(recorded, expected, outputs[2])
    assert set(judge(mixed, expected).violations) == {"int_nonmonotonic_send"}
    again = run.expected()
    assert again.records.sort_by("content")["content"] == expected.records.sort_by("content")["content"]


def test_an_engine_that_begins_at_the_end_of_the_input_is_found_out(make: MakeRun) -> None:
    """The positive control of where the input begins: all that this run did it did exactly once."""
    run = make(LATE)
    run.write(60)
    run.process()
    run.batch(60)
    recorded, expected = run.recorded(), run.expected()
    judgement = judge(recorded, expected)
    assert expected.refused == ""
    assert judgement.violations == {"poll_skip": 3}
    committed = run.sent[1].filter(pc.equal(run.sent[1]["status"], "ok"))
    assert len(expected.records) == len(committed) > 0
    assert {finding["key"] for finding in judgement.findings.to_pylist()} == {f"{run.inputs[0]}-{n}" for n in range(3)}


def test_a_partitioner_of_production_that_errs_is_found_out(make: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control of where records belong: this run did all that it did exactly once, beside the partition.

    The oracle is in the same process, so it would err with production if it asked the same code.
    """
    monkeypatch.setattr(partitioner, "_mix_tails", lambda *_: None)
    run = make(STATELESS, now="1")
    run.batch(40)
    assert set(run.judged().violations) == {"phantom", "torn_transaction"}


def test_what_does_not_follow_from_the_input_is_refused(make: MakeRun) -> None:
    run = make(STATELESS, now="rand()")
    run.batch(40)
    expected = run.expected()
    assert "batch 0 gave other records" in expected.refused
    judgement = judge(run.recorded(), expected)
    assert judgement.violations == {}
    assert "rand()" in judgement.reasons[0]


def test_a_lost_checkpoint_leaves_a_plan_of_single_records_to_be_judged(make: MakeRun) -> None:
    run = make(STATELESS, now="1")
    run.batch(40)
    run.batch(40)
    for name in ("offsets/1", "offsets/.1.crc", "commits/1", "commits/.1.crc"):
        (run.checkpoint / name).unlink(missing_ok=True)
    run.write(40)
    with pytest.raises(ProgressConflict):
        run.process()
    broken_off = run.judged()  # Spark has planned batch 1 anew, beyond what is committed
    assert set(broken_off.violations) == {"stuck_progress"}  # nobody has read the rest, and the run did not end
    assert CERTAIN.isdisjoint(broken_off.violations)
    assert "batch 1 of the checkpoint is not the one that is committed" in broken_off.reasons[0]
    run.process(Mode.RESUME)
    expected = run.expected()
    assert expected.whole
    recorded = run.recorded()
    judgement = judge(recorded, expected)
    assert judgement.violations == {}
    assert judgement.reasons == ()
    assert len(expected.records) == committed_input(run, recorded), "of all batches"
    found = recorded.final["topic"].cast(pa.string()).to_pylist()
    first = found.index(run.outputs[0])
    without = pa.concat_tables([recorded.final.slice(0, first), recorded.final.slice(first + 1)])
    assert judge(replace(recorded, final=without), expected).violations == {"torn_transaction": 1}


def test_time_that_is_lost_with_the_checkpoint_is_not_judged(stateless: Run, tmp_path: Path) -> None:
    """Each batch has a time of its own, and batches that are judged as one have one; no record of this run is wrong."""
    checkpoint = tmp_path / "state"
    shutil.copytree(stateless.checkpoint, checkpoint)
    (checkpoint / "offsets" / "1").unlink()
    expected = stateless.expected(checkpoint=checkpoint)
    judgement = judge(stateless.recorded(), expected)
    assert judgement.violations == {}
    assert "the offset log goes from batch 0 to 2" in judgement.reasons[0]
    assert "nor is the time of each batch (current_timestamp())" in judgement.reasons[0]


def test_a_log_that_goes_back_leaves_a_plan_of_single_records_to_be_judged(make: MakeRun) -> None:
    """A foreign engine overwrote a batch, and never said where it began."""
    run = make(STATELESS, now="1")
    run.batch(40)
    run.batch(40)
    entry = run.checkpoint / "offsets" / "1"
    head, line = entry.read_text().rsplit("\n", 1)
    ((source, ends),) = json.loads(line).items()
    entry.write_text(f"{head}\n{json.dumps({source: {**ends, '2': 0}})}")
    shutil.rmtree(run.checkpoint / "sources")
    expected = run.expected()
    assert expected.whole
    assert f"the offset log goes back in batch 1: {source}-2 from" in expected.notes[0]
    recorded = run.recorded()
    judgement = judge(recorded, expected)
    assert judgement.violations == {}
    assert judgement.reasons == ()
    assert len(expected.records) == committed_input(run, recorded), "of all batches"
    assert "goes back in batch 1" in run.expected(committed={}).refused


def test_a_cluster_that_was_tampered_with_is_found_out(stateless: Run, broker: EmbeddedBroker) -> None:
    """The last test on this run: what it does to the cluster stays."""
    expected, (output,) = stateless.expected(), stateless.outputs
    repeat(broker, output)
    assert set(judge(stateless.recorded(), expected).violations) == {"duplicated", "torn_transaction"}
    (source,) = stateless.inputs
    group = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"onceflow-{stateless.name}"})
    group.commit(offsets=[TopicPartition(source, 0, 1)], asynchronous=False)
    group.close()
    judgement = judge(stateless.recorded(), expected)
    assert set(judgement.violations) == {"duplicated", "torn_transaction", "stuck_progress", "torn_progress"}
    hanging = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"hangs-{output}"})
    hanging.init_transactions(60)
    hanging.begin_transaction()
    hanging.produce(output, b"v", b"k", 1)
    assert hanging.flush(60) == 0
    assert set(judge(stateless.recorded(), expected).violations) == {
        "duplicated", "torn_transaction", "stuck_progress", "torn_progress", "hung_transaction"
    }  # fmt: skip
    hanging.abort_transaction(60)


def test_an_attempt_that_was_aborted_stands_in_the_history_and_nobody_reads_it(
    make: MakeRun, broker: EmbeddedBroker
) -> None:
    run = make(STATELESS, now="1")
    (output,) = run.outputs
    with foreign_attempt(broker, run) as stranger:
        for number in range(3):
            stranger.send(output, b"%d" % number, partition=0)
        stranger.flush()
        stranger.abort_transaction()
    run.batch(20)
    judgement = run.judged()
    assert judgement.violations == {}
    assert judgement.reasons == ()
    aborted = judgement.history.filter(pc.equal(judgement.history["status"], "fail"))
    aborted = aborted.filter(pc.starts_with(aborted["value"], "never committed"))
    assert len(aborted) == 3
    assert aborted["key"].unique().to_pylist() == [f"{output}-0"]


def test_a_batch_that_is_committed_by_a_second_transaction_is_found_out(make: MakeRun, broker: EmbeddedBroker) -> None:
    """Its progress was that already: at the end nothing tells of it but the log."""
    run = make(STATELESS, now="1")
    with foreign_attempt(broker, run) as stranger:
        progress = read_committed(run.name, ClusterSettings.of(broker.bootstrap_servers)).progress
        assert progress is not None
        stranger.send(run.outputs[0], b"of a batch that is committed", partition=0)
        given = {PythonPartition(ANCHOR_TOPIC, ANCHOR_PARTITION): OffsetAndMetadata(*progress.encode(), -1)}
        stranger.send_offsets_to_transaction(given, transactional_id(run.name))
        stranger.commit_transaction()
    assert run.judged().violations == {"consumed_twice": 1, "phantom": 1}


@contextmanager
def foreign_attempt(broker: EmbeddedBroker, run: Run) -> Iterator[KafkaProducer]:
    """A transaction under the pipeline's transactional id, behind one batch of the pipeline."""
    run.batch(20)
    with closing(
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=transactional_id(run.name))
    ) as stranger:
        stranger.init_transactions()
        stranger.begin_transaction()
        yield stranger
