"""The history of drivers without Spark, judged by the checker: each batch was to be committed once, by whoever."""

from __future__ import annotations

from tests.faults.light import records_of
from tests.faults.support import Cluster
from tests.log_ends import last_stable_offsets, log_ends
from tests.verify.faults.light_world import PATIENCE_S

from onceflow.verify.checker import Verdict, check_history
from onceflow.verify.history import Recorder
from onceflow.verify.history.recorder import assign, log_end, poll, send, stable_end, window
from onceflow.verify.running.world import PrivateWorld

MORE = 2  # batches behind the fault


def judged(world: PrivateWorld) -> Verdict:
    """What the checker finds when the last driver has committed some batches more, and has ended in order."""
    assert world.driver.await_batches(MORE, PATIENCE_S)
    assert world.driver.stop(PATIENCE_S) == ""
    judge = Cluster(world.kafka)
    recorder = Recorder()
    record_drivers(recorder, judge, world)
    record_reader(recorder, judge, world.plan.name)
    judge.close()
    return check_history(recorder.table())


def record_drivers(recorder: Recorder, judge: Cluster, world: PrivateWorld) -> None:
    """Each batch was to be committed once, and by whom is all one; where a key's records go, the log itself tells."""
    topic = world.plan.name
    partition_of = {key: partition for partition, key, _ in judge.read(topic)}
    for batch in range(max(world.driver.course.committed_batches) + 1):
        sends = [send(f"{topic}-{partition_of[key]}", value) for key, value in records_of(batch)]
        recorder.add("drivers", *sends, txn=batch)


def record_reader(recorder: Recorder, judge: Cluster, topic: str) -> None:
    """One that reads all that is committed, and what it is told of the ends."""
    ends = log_ends(judge.admin, topic, judge.partitions(topic))
    messages = judge.messages(topic)
    for partition, end in ends.items():
        lane = f"{topic}-{partition}"
        mine = [(m.offset(), m.value().decode()) for m in messages if m.partition() == partition]
        polls = [poll(lane, offset, value) for offset, value in mine]
        recorder.add(f"reader-{partition}", assign(lane, 0), *polls, window(lane, 0, end))
        stable = last_stable_offsets(judge.admin, topic, [partition])[partition]
        recorder.add("observer", log_end(lane, end), stable_end(lane, stable))
