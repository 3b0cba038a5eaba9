"""`onceflow run` when the cluster has dropped a pipeline's progress, and what it has claimed before it plans anything."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from tests.test_pipeline import Lab, rows

from onceflow import committed_offsets
from onceflow.broker import EmbeddedBroker, run_java_tool
from onceflow.errors import BrokerUnreachable, ProgressConflict, ProgressGone
from onceflow.pipeline import Control, Mode
from onceflow.session import SOURCE_DEFAULTS
from onceflow.transaction import driver
from onceflow.transaction.questions import ANCHOR_TOPIC
from onceflow.transaction.sink import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import TopicFactory, Workbench

pytestmark = pytest.mark.usefixtures("spark")
PATIENCE_S = 60.0


@pytest.fixture
def lab(tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory) -> Lab:
    return Lab(tmp_path, broker, topic)


def drop_progress(servers: str, name: str) -> None:
    """As the cluster does after ``offsets.retention.minutes``."""
    group, admin = f"onceflow-{name}", AdminClient({"bootstrap.servers": servers})
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)


def forget_note(checkpoint: Path, batch_id: int) -> None:
    """As if the driver had been killed between the commit and Spark's note of it."""
    for name in (f"{batch_id}", f".{batch_id}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_batch_0_is_not_written_again_when_its_progress_was_dropped_before_spark_noted_it(lab: Lab) -> None:
    lab.send(rows(1, 2))
    lab.run()
    forget_note(lab.checkpoint(), 0)
    drop_progress(lab.settings.bootstrap_servers, lab.name)
    for _ in range(2):  # a start that is refused claims nothing, or the second one would take the name for a new one
        with pytest.raises(
            ProgressGone, match="no progress is committed under this name, but the checkpoint has batches"
        ):
            lab.run()
    assert lab.ids() == [1, 2]
    assert not lab.batches()
    lab.run(Mode.RESTART)
    assert lab.ids() == [1, 1, 2, 2], "on purpose"


def test_batch_0_that_failed_is_written_by_the_next_start(lab: Lab) -> None:
    """It was planned, and is not committed: the claim before it says that nothing is."""

    def fail(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("STORE", 0):
            raise RuntimeError("the driver dies")

    lab.send(rows(1, 2))
    with pytest.raises(RuntimeError):
        lab.run(on_step=fail)
    assert (lab.checkpoint("offsets") / "0").exists()
    lab.run()
    assert lab.ids() == [1, 2]


def test_the_name_is_claimed_before_anything_is_planned(lab: Lab) -> None:
    planned: dict[str, bool] = {}

    def look(step: str, batch_id: int) -> None:
        planned.setdefault(step, lab.checkpoint("offsets").exists())

    lab.send(rows(1))
    lab.run(on_step=look)
    claiming = {step: planned[step] for step in ("INSPECT", "FENCE", "READ", "CONFIRM", "CLAIM_STORE", "CLAIM_COMMIT")}
    assert claiming == dict.fromkeys(claiming, False)
    assert planned["STORE"]
    assert lab.ids() == [1]


def test_a_start_whose_query_cannot_begin_leaves_the_driver_that_runs_alone(lab: Lab) -> None:
    """A broken redeployment: fenced by it, the driver at work would stop for good."""
    lab.send(rows(1))
    lab.run()
    noted = lab.checkpoint("commits") / "0"
    good, steps = noted.read_bytes(), list[str]()
    noted.write_bytes(b"x")
    (noted.parent / ".0.crc").unlink(missing_ok=True)
    with pytest.raises(Exception, match=r"."):
        lab.run(on_step=lambda step, _: steps.append(step))
    assert steps == []
    noted.write_bytes(good)
    lab.send(rows(2))
    lab.run(on_step=lambda step, _: steps.append(step))
    assert "FENCE" in steps
    assert lab.ids() == [1, 2]


def test_a_pipeline_that_finds_no_input_claims_its_name_all_the_same(lab: Lab) -> None:
    """Or nobody would renew what is committed under it."""
    lab.send(rows(1))
    lab.run()
    lab.write_plan(available_now='processing_time = "1 second"')
    control = Control()

    def stop(step: str, _: int) -> None:
        if step == "CLAIM_COMMIT":
            control.stop("claimed")

    finished = lab.run(control=control, on_step=stop)
    assert (finished.reason, finished.batches) == ("claimed", 0)


def test_a_sink_that_goes_on_for_another_query_renews_again(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    """Also if that query has no input, and no batch."""

    def renewals() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "onceflow-renewal"}

    others = renewals()
    with closing(KafkaSink(name=topic(), bootstrap_servers=broker.bootstrap_servers)) as sink:
        sink.open(planned=False)
        (first,) = renewals() - others
        sink.drain()
        first.join(PATIENCE_S)
        assert not renewals() - others
        sink.go_on()
        assert len(renewals() - others) == 1


class AwayAtFirst(KafkaSink):
    """Its coordinator does not answer the first claim."""

    was_asked = False

    def open(self, *, planned: bool, wait: bool = True) -> bool:
        if not self.was_asked:
            self.was_asked = True
            raise BrokerUnreachable("nobody answers")
        return super().open(planned=planned, wait=wait)


def test_a_claim_that_failed_without_input_is_tried_again(lab: Lab, spark: SparkSession) -> None:
    lab.send(rows(1))
    lab.run()
    lab.write_plan(
        "[spark]\nsql.streaming.noDataProgressEventInterval = 100", available_now='processing_time = "100 ms"'
    )
    control = Control()

    def stop(step: str, _: int) -> None:
        if step == "CLAIM_COMMIT":
            control.stop("claimed")

    try:
        finished = lab.run(control=control, on_step=stop, sink=AwayAtFirst)
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert (finished.reason, finished.batches) == ("claimed", 0)


# ----------------------------------------------------------------------------------- the topic of the progress was deleted


def drop_record(servers: str, name: str) -> None:
    """As if somebody had deleted the topic of the progress, which holds no record; of one name alone."""
    options = ["--group", f"onceflow-{name}", "--topic", ANCHOR_TOPIC, "--delete-offsets"]
    run_java_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", ["--bootstrap-server", servers, *options]
    )


def test_source_offsets_that_came_with_progress_prove_that_the_name_is_not_new(bench: Workbench) -> None:
    """With a new checkpoint nothing else tells it: all would be written a second time."""
    source, target = bench.topic(1), bench.topic(1)
    bench.fill(source, [("k", str(number)) for number in range(3)])
    bench.run(source, target)
    drop_record(bench.broker.bootstrap_servers, target)
    shutil.rmtree(bench.checkpoint)
    for _ in range(2):
        with pytest.raises(Exception, match=r"PROGRESS_GONE.*no progress is committed under this name"):
            bench.run(source, target)
    assert len(bench.read(target)) == 3
    bench.fill(source, [("k", "3")])
    starting = committed_offsets(target, bootstrap_servers=bench.broker.bootstrap_servers)
    shutil.rmtree(bench.checkpoint)
    bench.run(source, target, {"on_mismatch": "resume"}, startingOffsets=starting)
    assert [record.value() for record in bench.read(target)] == [b"0", b"1", b"2", b"3"]


def test_source_offsets_of_readings_that_disagreed_are_not_resumed_without_progress_either(bench: Workbench) -> None:
    """The lower of the two is committed: what lies between would be written again."""
    source, target = bench.topic(1), bench.topic(1)
    servers = bench.broker.bootstrap_servers
    bench.fill(source, [("k", str(number)) for number in range(8)])

    def with_another_reading(lines: DataFrame) -> DataFrame:
        again = lines.sparkSession.readStream.format("kafka").options(**SOURCE_DEFAULTS)
        again = again.option("kafka.bootstrap.servers", servers).option("startingOffsets", "earliest")
        few = again.option("subscribe", source).option("maxOffsetsPerTrigger", 2).load()
        return lines.select("key", "value").union(few.select("key", "value"))

    def die(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("STORE", 1):
            raise RuntimeError("died here")

    with pytest.raises(Exception, match="died here"):
        bench.run(source, target, {"on_step": die}, transform=with_another_reading, maxOffsetsPerTrigger=4)
    drop_record(servers, target)
    with pytest.raises(ProgressConflict, match="the progress is gone, and when it was last committed two readings"):
        committed_offsets(target, bootstrap_servers=servers)
    shutil.rmtree(bench.checkpoint)
    lower = {"startingOffsets": json.dumps({source: {"0": 2}})}
    with pytest.raises(Exception, match=r"PROGRESS_CONFLICT.*the progress is gone, and when it was last committed"):
        bench.run(source, target, {"on_mismatch": "resume"}, **lower)
    assert len(bench.read(target)) == 6


# --------------------------------------------------------------------------------------------------- a sink without a plan


def test_a_sink_alone_tells_by_its_age_a_first_batch_that_may_have_been_committed(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has claimed the name before Spark planned it; a batch that is younger has failed before it could be committed."""
    source, target = bench.topic(1), bench.topic(1)
    bench.fill(source, [("k", str(number)) for number in range(3)])
    bench.run(source, target)
    forget_note(bench.checkpoint, 0)
    drop_progress(bench.broker.bootstrap_servers, target)
    monkeypatch.setattr(driver, "LEAST_RETENTION_S", 0.0)
    monkeypatch.setattr(driver, "retention_s", lambda *_: 0.0)
    with pytest.raises(Exception, match=r"PROGRESS_GONE.*no progress is committed under this name"):
        bench.run(source, target)
    assert len(bench.read(target)) == 3
    monkeypatch.undo()
    bench.run(source, target)
    assert len(bench.read(target)) == 6, "the control: the broker keeps progress for longer than the batch is old"
