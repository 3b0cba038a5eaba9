"""From which committed offsets a lost checkpoint is resumed, and from which it is not; topics that were made anew."""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import create_topic
from tests.faults.support import eventually, make_anew
from tests.test_pipeline import Lab, rows

from onceflow import committed_offsets
from onceflow.broker import EmbeddedBroker, run_java_tool
from onceflow.errors import InputError, ProgressConflict, ProgressGone
from onceflow.kafka.client import KafkaClient
from onceflow.pipeline import Mode
from onceflow.pipeline.checkpoint import Checkpoint
from onceflow.pipeline.events import Note, Started
from onceflow.transaction import questions, streaming_query
from onceflow.transaction.committed import read_committed
from onceflow.transaction.messages import Event
from onceflow.transaction.requests import Requests
from onceflow.transaction.source_topics import SourceTopics

if TYPE_CHECKING:
    from tests.conftest import TopicFactory, Workbench

pytestmark = pytest.mark.usefixtures("spark")
PATIENCE_S = 60.0


@pytest.fixture
def lab(tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory) -> Lab:
    return Lab(tmp_path, broker, topic)


def plan(lab: Lab, *parts: str, guarantee: str = "exactly_once") -> None:
    """A plan that writes what its sources hold to ``lab.sales``."""
    servers = lab.settings.bootstrap_servers
    head = f'name = "{lab.name}"\nguarantee = "{guarantee}"\ncheckpoint = "state"\n[trigger]\navailable_now = true\n'
    lab.path.write_text("\n".join([head, f'[kafka]\nbootstrap_servers = "{servers}"', *parts]))


def source(name: str, *settings: str) -> str:
    return "\n".join([f'[[source]]\nname = "{name}"\nformat = "raw"', *settings])


def sink(lab: Lab, name: str) -> str:
    return f'[[sink]]\nfrom = "{name}"\ntopic = "{lab.sales}"\nvalue = "concat(\'{name}\', cast(value AS STRING))"'


def anew(bench: Workbench) -> Workbench:
    """The same with a checkpoint of its own."""
    return replace(bench, checkpoint=bench.checkpoint.with_name(uuid.uuid4().hex))


def values(lab: Lab) -> list[str]:
    return sorted(str(value) for _, value in lab.read(lab.sales))


# --------------------------------------------------------------------------------------------------- offsets that are gone


def test_offsets_that_are_gone_are_not_taken_for_new_partitions(lab: Lab) -> None:
    """As when they expire under a pipeline that fails at each start: its progress is claimed anew each time, they are not."""
    lab.send(rows(1, 2))
    lab.run()
    group = f"onceflow-{lab.name}"
    servers = lab.settings.bootstrap_servers
    deleted = ["--bootstrap-server", servers, "--group", group, "--topic", lab.lines, "--delete-offsets"]
    run_java_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", deleted)
    with pytest.raises(ProgressConflict, match="the source offsets next to them are gone"):
        committed_offsets(lab.name, bootstrap_servers=servers)
    lab.send(rows(3))
    lab.run()
    assert lab.ids() == [1, 2, 3], "with its checkpoint it goes on, and commits them again"
    run_java_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", deleted)
    shutil.rmtree(lab.checkpoint())
    with pytest.raises(ProgressConflict, match="the source offsets next to them are gone") as caught:
        lab.run(Mode.RESUME)
    assert "offsets/" in caught.value.action
    assert lab.ids() == [1, 2, 3]


@pytest.mark.parametrize("way_out", [Mode.RESUME, Mode.RESTART])
@pytest.mark.parametrize(
    ("name", "length", "keeps_checksum"),
    [("offsets/1", 0.0, False), ("offsets/1", 0.5, False), ("offsets/1", 0.5, True), ("metadata", 0.0, False)],
)
@pytest.mark.in_turn(3)
def test_a_checkpoint_that_was_cut_off_is_refused_and_there_is_a_way_out(
    lab: Lab, name: str, length: float, way_out: Mode, *, keeps_checksum: bool
) -> None:
    """The power went before the file's content was synchronised. With Hadoop's checksum beside it that is what tells."""
    for batch in ([1, 2], [3]):
        lab.send(rows(*batch))
        lab.run()
    file = lab.checkpoint(name)
    file.write_bytes(file.read_bytes()[: int(length * file.stat().st_size)])
    if not keeps_checksum:
        file.with_name(f".{file.name}.crc").unlink()
    lab.send(rows(4))
    with pytest.raises(ProgressConflict, match=f"{name} is empty or damaged") as refused:
        lab.run()
    assert "--resume" in refused.value.action
    lab.run(way_out)
    repeated = [1, 2, 3] if way_out is Mode.RESTART else []
    assert sorted(lab.ids()) == sorted([1, 2, 3, 4, *repeated])


@pytest.mark.parametrize("keeps_checksum", [False, True])
@pytest.mark.in_turn(3)
def test_a_commit_entry_that_was_cut_off_can_be_removed(lab: Lab, *, keeps_checksum: bool) -> None:
    """The power went before its content was synchronised: Spark cannot start on it, and the batch is committed all the same."""
    for batch in ([1, 2], [3]):
        lab.send(rows(*batch))
        lab.run()
    entry = lab.checkpoint("commits/1")
    entry.write_bytes(entry.read_bytes()[:5] if keeps_checksum else b"")
    if not keeps_checksum:
        entry.with_name(".1.crc").unlink()
    lab.send(rows(4))
    with pytest.raises(ProgressConflict, match="commits/1 is empty or damaged") as refused:
        lab.run()
    assert "remove commits/1 and commits/.1.crc" in refused.value.action
    for name in ("commits/1", "commits/.1.crc"):
        lab.checkpoint(name).unlink(missing_ok=True)
    lab.run()
    assert lab.ids() == [1, 2, 3, 4]


def test_a_commit_entry_that_was_cut_off_is_no_reason_not_to_resume(lab: Lab) -> None:
    """It told that the checkpoint fits, and that there is nothing to resume, and Spark failed on it."""
    lab.send(rows(1, 2))
    lab.run()
    lab.checkpoint("commits/0").write_bytes(b"")
    lab.checkpoint("commits/.0.crc").unlink()
    lab.send(rows(3))
    lab.run(Mode.RESUME)
    assert lab.ids() == [1, 2, 3]


def test_a_checkpoint_that_was_cut_off_before_the_first_commit_is_begun_anew(lab: Lab) -> None:
    """A resume sends to a start, and a start to a resume, where nothing is committed."""
    lab.send(rows(1, 2))

    def die(step: str, batch_id: int) -> None:
        if step == "STORE":
            raise RuntimeError("died here")

    with pytest.raises(Exception, match="died here"):
        lab.run(on_step=die)
    lab.checkpoint("offsets/0").write_bytes(b"")
    lab.checkpoint("offsets/.0.crc").unlink()
    with pytest.raises(ProgressConflict, match="offsets/0 is empty or damaged"):
        lab.run()
    with pytest.raises(ProgressConflict, match="nothing is committed") as refused:
        lab.run(Mode.RESUME)
    assert "--restart" in refused.value.action
    lab.run(Mode.RESTART)
    assert lab.ids() == [1, 2]


def test_nothing_is_begun_anew_lightly_where_the_cluster_has_dropped_what_was_committed(lab: Lab) -> None:
    """A batch has ended, so that it was committed: all of its output would be written again."""
    lab.send(rows(1, 2))
    lab.run()
    group = ["--bootstrap-server", lab.settings.bootstrap_servers, "--delete", "--group", f"onceflow-{lab.name}"]
    run_java_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", group)
    lab.checkpoint("commits/0").write_bytes(b"")
    lab.checkpoint("commits/.0.crc").unlink()
    with pytest.raises(ProgressConflict, match="nothing is committed") as refused:
        lab.run(Mode.RESUME)
    assert "else all is written again" in refused.value.action


def test_a_pipeline_of_an_older_onceflow_is_resumed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has committed neither marks nor notes."""
    with monkeypatch.context() as older:
        older.setattr(streaming_query, "mark_of", lambda offsets, agree: "")
        older.setattr(SourceTopics, "marked", lambda topics, offered: offered)
        older.setattr(questions, "note_of", lambda progress: "")
        lab.send(rows(1, 2))
        lab.run()
    lab.send(rows(3))
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(rows(4))
    lab.run(Mode.RESUME)
    assert lab.ids() == [1, 2, 3, 4]


def test_an_older_onceflows_checkpoint_is_lost_before_the_new_one_has_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(streaming_query, "mark_of", lambda offsets, agree: "")
        older.setattr(SourceTopics, "marked", lambda topics, offered: offered)
        older.setattr(questions, "note_of", lambda progress: "")
        lab.send(rows(1, 2))
        lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(rows(3))
    lab.run(Mode.RESUME)
    assert lab.ids() == [1, 2, 3]


# ----------------------------------------------------------------------------------------------- readings that disagree


def test_readings_of_one_topic_that_disagree_are_not_resumed_until_they_agree(lab: Lab) -> None:
    lab.send([f"{number:02d}" for number in range(20)])
    few = source("a", f'topics = ["{lab.lines}"]', "max_offsets_per_trigger = 4")
    many = source("b", f'pattern = "{lab.lines}"', "max_offsets_per_trigger = 10")
    plan(lab, few, many, sink(lab, "a"), sink(lab, "b"))

    def die(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("STORE", 1):
            raise RuntimeError("died here")

    with pytest.raises(Exception, match="died here"):
        lab.run(on_step=die)
    kept = lab.checkpoint().rename(lab.path.parent / "kept")
    with pytest.raises(ProgressConflict, match="had got to different offsets"):
        lab.run(Mode.RESUME)
    kept.rename(lab.checkpoint())
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(["20"])
    lab.run(Mode.RESUME)
    assert values(lab) == [f"{name}{number:02d}" for name in "ab" for number in range(21)]


def test_a_topic_that_is_read_twice_beside_another_one_is_resumed(lab: Lab, topic: TopicFactory) -> None:
    """It was refused: its two readings agree, and the one of the other topic has other offsets, being of another topic."""
    other = topic(1)
    lab.send(["1", "2"])
    lab.send(["3"], other)
    sources = source("a", f'topics = ["{lab.lines}"]'), source("b", f'topics = ["{other}"]')
    again = '[[transform]]\nname = "again"\nsql = "SELECT * FROM a WHERE value IS NOT NULL"'
    plan(lab, *sources, again, sink(lab, "a"), sink(lab, "b"), sink(lab, "again"))
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(["4"])
    lab.run(Mode.RESUME)
    assert values(lab) == ["a1", "a2", "a4", "again1", "again2", "again4", "b3"]


# ------------------------------------------------------------------------------------------------- what can be resumed


def test_a_checkpoint_that_is_one_batch_behind_is_resumed(lab: Lab) -> None:
    """Spark has planned another batch under the id of the newest one that is committed."""
    lab.send(rows(1))
    lab.run()
    shutil.copytree(lab.checkpoint(), lab.path.parent / "backup")
    lab.send(rows(2))
    lab.run()
    shutil.rmtree(lab.checkpoint())
    (lab.path.parent / "backup").rename(lab.checkpoint())
    lab.send(rows(3))
    with pytest.raises(ProgressConflict, match="other source offsets"):
        lab.run()
    lab.run(Mode.RESUME)
    assert lab.ids() == [1, 2, 3]


def test_a_topic_that_left_the_plan_does_not_hinder_and_begins_where_its_output_ended(
    lab: Lab, topic: TopicFactory
) -> None:
    other = topic(1)
    first, second = source("a", f'topics = ["{lab.lines}"]'), source("b", f'topics = ["{other}"]')
    lab.send(["1"])
    lab.send(["2"], other)
    plan(lab, first, sink(lab, "a"))
    lab.run()
    plan(lab, second, sink(lab, "b"))
    lab.run(Mode.RESTART)
    shutil.rmtree(lab.checkpoint())
    lab.send(["3"], other)
    lab.run(Mode.RESUME)
    assert values(lab) == ["a1", "b2", "b3"]
    plan(lab, first, second, sink(lab, "a"), sink(lab, "b"))
    lab.send(["4"])
    lab.run(Mode.RESUME)
    assert values(lab) == ["a1", "a4", "b2", "b3"]


def test_a_plan_that_reads_fewer_topics_is_told_its_way_out_and_keeps_its_checkpoint(
    lab: Lab, topic: TopicFactory
) -> None:
    """A resume of what is left would end at the sink, which takes a topic that is not there for one that was forgotten."""
    other = topic(1)
    first, second = source("a", f'topics = ["{lab.lines}"]'), source("b", f'topics = ["{other}"]')
    lab.send(["1"])
    lab.send(["2"], other)
    plan(lab, first, second, sink(lab, "a"), sink(lab, "b"))
    lab.run()
    plan(lab, first, sink(lab, "a"))
    lab.send(["3"])
    for mode in (Mode.REFUSE, Mode.RESUME):
        with pytest.raises(ProgressConflict) as caught:
            lab.run(mode)
        assert "--restart" in caught.value.action
        assert "--resume" not in caught.value.action
    assert f"does not read {other} any more" in caught.value.message
    assert lab.checkpoint("offsets/0").exists()
    ends = {p: o for (t, p), o in read_committed(lab.name, lab.settings).ends.items() if t == lab.lines}
    table = ", ".join(f"{partition} = {offset}" for partition, offset in ends.items())
    plan(lab, f"{first}\nstarting_offsets = {{{lab.lines} = {{{table}}}}}", sink(lab, "a"))
    lab.run(Mode.RESTART)
    assert values(lab) == ["a1", "a3", "b2"]


def test_at_least_once_is_resumed_at_its_committed_offsets_and_goes_on_as_exactly_once(lab: Lab) -> None:
    parts = source("a", f'topics = ["{lab.lines}"]'), sink(lab, "a")
    plan(lab, *parts, guarantee="at_least_once")
    lab.send(["1"])
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(["2"])
    lab.run(Mode.RESUME)
    assert values(lab) == ["a1", "a2"]
    plan(lab, *parts)
    lab.send(["3"])
    with pytest.raises(ProgressGone, match="no progress is committed under this name") as caught:
        lab.run()
    assert "resume" in caught.value.action
    lab.run(Mode.RESUME)
    assert values(lab) == ["a1", "a2", "a3"]


def test_at_least_once_does_not_begin_at_the_end_where_something_is_committed(lab: Lab) -> None:
    """It did, where the checkpoint was lost: what had come since was written by nobody, and no error told of it."""
    late = source("a", f'topics = ["{lab.lines}"]', 'starting_offsets = "latest"')
    plan(lab, late, sink(lab, "a"), guarantee="at_least_once")
    lab.run()
    lab.send(["1"])
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(["2"])
    with pytest.raises(ProgressConflict, match="what came since could be passed over") as caught:
        lab.run()
    assert "--resume" in caught.value.action
    lab.run(Mode.RESUME)
    lab.send(["3"])
    lab.run()
    assert values(lab) == ["a1", "a2", "a3"]


def test_at_least_once_begins_at_the_end_of_what_nothing_is_committed_of(lab: Lab, topic: TopicFactory) -> None:
    """The source beside it is read from its beginning: where the checkpoint is lost, it only repeats."""
    new = topic(1)
    known = source("a", f'topics = ["{lab.lines}"]')
    plan(lab, known, sink(lab, "a"), guarantee="at_least_once")
    lab.send(["1"])
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(["old"], new)
    late = source("b", f'topics = ["{new}"]', 'starting_offsets = "latest"')
    plan(lab, known, late, sink(lab, "a"), sink(lab, "b"), guarantee="at_least_once")
    lab.run()
    assert values(lab) == ["a1", "a1"]


def test_a_resume_that_was_cut_short_is_not_followed_by_a_start_from_the_beginning(lab: Lab) -> None:
    """From at_least_once to exactly_once: by its progress the name was new, and all was written a second time."""
    parts = source("a", f'topics = ["{lab.lines}"]'), sink(lab, "a")
    plan(lab, *parts, guarantee="at_least_once")
    lab.send(["1"])
    lab.run()
    plan(lab, *parts)
    lab.send(["2"])

    def die(step: str, batch_id: int) -> None:
        raise RuntimeError("died here")

    with pytest.raises(Exception, match="died here"):
        lab.run(Mode.RESUME, on_step=die)
    assert not lab.checkpoint("sources").exists(), "it has not come as far as where they begin"
    for _ in range(2):
        with pytest.raises(ProgressConflict, match="does not start at the committed offsets"):
            lab.run()
        assert values(lab) == ["a1"]
    lab.run(Mode.RESUME)
    assert values(lab) == ["a1", "a2"]


def test_a_resume_that_failed_in_its_first_batch_goes_on_as_it_is(lab: Lab) -> None:
    """Its new checkpoint begins at the committed offsets: nobody has to resume once more."""
    parts = source("a", f'topics = ["{lab.lines}"]'), sink(lab, "a")
    plan(lab, *parts, guarantee="at_least_once")
    lab.send(["1"])
    lab.run()
    plan(lab, *parts)
    lab.send(["2"])

    def die(step: str, batch_id: int) -> None:
        if step == "WRITE":
            raise RuntimeError("died here")

    with pytest.raises(Exception, match="died here"):
        lab.run(Mode.RESUME, on_step=die)
    assert values(lab) == ["a1"]
    lab.run()
    assert values(lab) == ["a1", "a2"]


def test_a_sink_of_another_guarantee_and_checkpoint_begins_at_the_committed_offsets_or_not_at_all(
    bench: Workbench,
) -> None:
    """From at_least_once to exactly_once, without `onceflow run`: its name was new, and all was written a second time."""
    origin, target = bench.topic(2), bench.topic()
    bench.fill(origin, [(key, "1") for key in "abcd"])
    bench.run(origin, target, {"guarantee": "at_least_once"})
    bench.fill(origin, [("a", "2")])
    for _ in range(2):
        with pytest.raises(
            Exception, match=r"(?s)PROGRESS_CONFLICT.*does not start at the committed.*new pipeline needs"
        ):
            anew(bench).run(origin, target)
        assert len(bench.read(target)) == 4
    starting = committed_offsets(target, bootstrap_servers=bench.broker.bootstrap_servers)
    there = anew(bench)
    there.run(origin, target, startingOffsets=starting)
    assert [message.value() for message in bench.read(target)] == [b"1"] * 4 + [b"2"]
    bench.fill(origin, [("a", "3")])
    there.run(origin, target, startingOffsets=starting)
    assert len(bench.read(target)) == 6, "it goes on by its progress"


def test_a_sink_of_another_guarantee_and_checkpoint_may_write_all_again_on_purpose(bench: Workbench) -> None:
    origin, target = bench.topic(), bench.topic()
    bench.fill(origin, [("k", "1")])
    bench.run(origin, target, {"guarantee": "at_least_once"})
    anew(bench).run(origin, target, {"on_mismatch": "restart"})
    assert len(bench.read(target)) == 2


def test_a_driver_at_work_is_fenced_before_its_checkpoint_is_set_aside(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make the directory anew, with batches of the old query in it, for as long as it runs."""
    lab.send(rows(1))
    lab.run()
    at_work, when_renamed = coordinated(lab), []
    set_aside = Checkpoint.set_aside

    def look(checkpoint: Checkpoint, why: str) -> str | None:
        when_renamed.append(coordinated(lab))
        return set_aside(checkpoint, why)

    monkeypatch.setattr(Checkpoint, "set_aside", look)
    lab.run(Mode.RESTART)
    (then,) = when_renamed
    assert then != at_work
    assert lab.ids() == [1, 1]


def coordinated(lab: Lab) -> Event:
    """Who holds the pipeline's transactional id."""
    with KafkaClient(lab.settings.for_protocol()) as client:
        return Requests(client, lab.name, version=1, timeout_ms=0).describe(settle=True)


def test_a_pattern_is_resumed_over_the_topics_that_spark_reads_by_it(lab: Lab, broker: EmbeddedBroker) -> None:
    """A topic of the user's may begin with "__"; it was left out. Kafka's own are not read; they were told as new."""
    audit = f"__{lab.lines}"
    create_topic(broker, audit, 1)
    plan(lab, source("a", f'pattern = "(__)?{lab.lines}|__consumer_offsets"'), sink(lab, "a"))
    lab.send(["1"])
    lab.send(["2"], audit)
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.send(["3"], audit)
    lab.run(Mode.RESUME)
    assert values(lab) == ["a1", "a2", "a3"]
    assert not [event for event in lab.events if isinstance(event, Note) and "__consumer_offsets" in event.text]


def test_branches_in_another_order_are_told_as_that_and_resumed(lab: Lab, topic: TopicFactory) -> None:
    """Spark would say that records were lost: each source would go on at the other one's offsets."""
    other = topic(1)
    sources = source("a", f'topics = ["{lab.lines}"]'), source("b", f'topics = ["{other}"]')
    lab.send(["1"])
    lab.send(["2"], other)
    plan(lab, *sources, sink(lab, "a"), sink(lab, "b"))
    lab.run()
    plan(lab, *sources, sink(lab, "b"), sink(lab, "a"))
    lab.send(["3"])
    with pytest.raises(ProgressConflict, match="the same topics in another order"):
        lab.run()
    lab.run(Mode.RESUME)
    assert values(lab) == ["a1", "a3", "b2"]


def test_a_source_that_is_new_in_a_resumed_plan_starts_where_the_plan_says(lab: Lab, topic: TopicFactory) -> None:
    """Also one whose topic is only made now."""
    old = topic(1)
    first = source("a", f'topics = ["{lab.lines}"]')
    lab.send(["1"])
    lab.send(["old"], old)
    plan(lab, first, sink(lab, "a"))
    lab.run()
    later = source("b", f'topics = ["{old}"]', 'starting_offsets = "latest"')
    made = source("c", f'topics = ["{old}-new"]')
    plan(lab, "create_topics = true", first, later, made, *(sink(lab, name) for name in "abc"))
    lab.run(Mode.RESUME)
    told = [event.text for event in lab.events if isinstance(event, Note)]
    assert f"nothing is committed of {', '.join(sorted([old, f'{old}-new']))}: " in told[-1]
    for at in (lab.lines, old, f"{old}-new"):
        lab.send(["2"], at)
    lab.run()
    assert values(lab) == ["a1", "a2", "b2", "c2"]


# ------------------------------------------------------------------------------------------------ topics made anew


def test_a_source_topic_that_was_made_anew_between_two_runs_is_refused(lab: Lab, broker: EmbeddedBroker) -> None:
    """Its first records would be passed over: Spark only sees that it does not end before the old offset."""
    lab.send(rows(1, 2, 3))
    lab.run()
    make_anew(broker, lab.lines, 2)
    lab.send(rows(*range(10, 50)), over=2)  # a partition that ended before the old offset would be Spark's to refuse
    for _ in range(2):
        with pytest.raises(InputError, match="deleted and made anew since the batch before"):
            lab.run()
    assert lab.ids() == [1, 2, 3]
    lab.run(Mode.RESTART)
    assert lab.ids() == [1, 2, 3, *range(10, 50)]
    lab.send(rows(50))
    lab.run()
    assert lab.ids() == [1, 2, 3, *range(10, 51)]


def test_a_source_on_another_cluster_is_refused(
    bench: Workbench, broker: EmbeddedBroker, broker_v1: EmbeddedBroker
) -> None:
    origin, target = bench.topic(), bench.topic(on=broker_v1)
    bench.fill(origin, [("k", "1")])
    written_to = {"bootstrap_servers": broker_v1.bootstrap_servers}
    with pytest.raises(Exception, match=r"TOPIC_MISSING.*not on the cluster that is written to"):
        bench.run(origin, target, written_to)
    assert bench.read(target, on=broker_v1) == []


def test_at_least_once_refuses_a_source_topic_that_was_made_anew(bench: Workbench, broker: EmbeddedBroker) -> None:
    """It loses nothing: the first records of the new topic were passed over, between two runs and in one."""
    origin, target = bench.topic(), bench.topic()
    at_least_once = {"guarantee": "at_least_once"}
    bench.fill(origin, [("k", str(number)) for number in range(4)])
    bench.run(origin, target, at_least_once)
    make_anew(broker, origin, 1)
    bench.fill(origin, [("k", str(number)) for number in range(50, 70)])
    for _ in range(2):
        with pytest.raises(Exception, match="made anew since the batch before"):
            bench.run(origin, target, at_least_once)
    assert len(bench.read(target)) == 4
    bench.run(origin, target, {**at_least_once, "on_mismatch": "restart"})
    assert len(bench.read(target)) == 20, "on purpose, from the old offset on"
    bench.fill(origin, [("k", "70")])
    bench.run(origin, target, at_least_once)
    assert len(bench.read(target)) == 21


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_source_topic_that_was_made_anew_before_the_first_batch_is_committed_is_refused(
    guarantee: str, bench: Workbench, broker: EmbeddedBroker
) -> None:
    """The batch is planned over the old topic's offsets; nothing is committed that could tell which topic they are of."""
    origin, target = bench.topic(), bench.topic()
    bench.fill(origin, [("k", str(number)) for number in range(8)])

    def die(step: str, _: int) -> None:
        if step == "PRODUCE":
            raise RuntimeError("died here")

    late = {"startingOffsets": json.dumps({origin: {"0": 4}})}
    with pytest.raises(Exception, match="died here"):
        bench.run(origin, target, {"guarantee": guarantee, "on_step": die}, **late)
    make_anew(broker, origin, 1)
    bench.fill(origin, [("k", str(number)) for number in range(50, 70)])
    for _ in range(2):
        with pytest.raises(Exception, match="made anew since the batch before, or since this batch was planned"):
            bench.run(origin, target, {"guarantee": guarantee}, **late)
    assert bench.read(target) == []
    bench.run(origin, target, {"guarantee": guarantee, "on_mismatch": "restart"}, **late)
    assert len(bench.read(target)) == 16, "on purpose, from the old offset on"
    bench.fill(origin, [("k", "70")])
    bench.run(origin, target, {"guarantee": guarantee})
    assert len(bench.read(target)) == 17


def test_at_least_once_refuses_a_source_topic_that_is_made_anew_in_a_run(
    bench: Workbench, broker: EmbeddedBroker
) -> None:
    origin, target = bench.topic(), bench.topic()
    bench.fill(origin, [("k", str(number)) for number in range(8)])

    def replace(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("PRODUCE", 0):
            make_anew(broker, origin, 1)
            bench.fill(origin, [("k", str(number)) for number in range(50, 70)])

    with pytest.raises(Exception, match="made anew"):
        bench.run(origin, target, {"guarantee": "at_least_once", "on_step": replace}, maxOffsetsPerTrigger=4)
    assert [message.value() for message in bench.read(target)] == [b"0", b"1", b"2", b"3"]


def test_a_source_topic_that_is_made_anew_under_a_batch_is_refused(bench: Workbench, broker: EmbeddedBroker) -> None:
    origin, target = bench.topic(), bench.topic()
    bench.fill(origin, [("k", str(number)) for number in range(10)])

    def replace(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("PRODUCE", 1):
            make_anew(broker, origin, 1)
            bench.fill(origin, [("k", str(number)) for number in range(50, 70)])

    few: dict[str, Any] = {"maxOffsetsPerTrigger": 4}
    with pytest.raises(Exception, match="made anew while the batch was read"):
        bench.run(origin, target, {"on_step": replace}, **few)
    assert len(bench.read(target)) == 4, "only the first batch"
    with pytest.raises(Exception, match="made anew since the batch before"):
        bench.run(origin, target)
    bench.run(origin, target, {"on_mismatch": "restart"}, **few)
    assert len(bench.read(target)) == 20, "on purpose, from the old offset on"
    bench.fill(origin, [("k", "70")])
    bench.run(origin, target, **few)
    assert len(bench.read(target)) == 21


# ------------------------------------------------------------------------------------------------------------- taken over


@pytest.mark.parametrize(
    ("mode", "guarantee", "last_step", "lines"),
    [
        (Mode.RESTART, "exactly_once", "COMMIT", ["lines1", "lines1"]),
        (Mode.RESTART, "at_least_once", "PRODUCE", ["lines1", "lines1"]),
        (Mode.RESUME, "exactly_once", "COMMIT", ["lines1"]),
    ],
    ids=["restart", "restart, at_least_once", "resume"],
)
def test_who_takes_over_goes_on_from_where_the_driver_before_has_begun(
    lab: Lab, topic: TopicFactory, mode: Mode, guarantee: str, last_step: str, lines: list[str]
) -> None:
    """Or what has come since to a source at "latest" would never be written. It died before its first commit."""
    news = topic(1)
    old = (source("lines", f'topics = ["{lab.lines}"]'), sink(lab, "lines"))
    new = (*old, source("news", f'topics = ["{news}"]', 'starting_offsets = "latest"'), sink(lab, "news"))
    plan(lab, *old, guarantee=guarantee)
    lab.send(["1"])
    lab.run()

    def send_when_it_is_noted_where_sources_begin() -> None:
        noted = lab.checkpoint("sources")
        eventually(lambda: [*noted.glob("*/0")], lambda found: len(found) == 2, "both sources", PATIENCE_S)
        lab.send(["2"], news)

    def die(step: str, batch_id: int) -> None:
        if (step, batch_id) == (last_step, 0):
            raise RuntimeError("died here")

    plan(lab, *new, guarantee=guarantee)
    lab.path.write_text(lab.path.read_text().replace("available_now = true", 'processing_time = "1 second"'))
    with pytest.raises(Exception, match="died here"):
        lab.run(mode, on_step=die, when_started=send_when_it_is_noted_where_sources_begin)
    (started,) = lab.told(Started)
    assert isinstance(started, Started)
    lab.send(["3"], news)
    plan(lab, *new, guarantee=guarantee)
    lab.run(mode, begun=started.query_id)
    assert sorted(value or "" for _, value in lab.read(lab.sales)) == [*lines, "news2", "news3"]
    assert [each.name for each in lab.path.parent.glob("state.before-*")] == [f"state.before-{mode.value}-1"]


def test_a_resume_begins_at_the_committed_offsets_where_the_driver_before_did_not_come_to_note_them(lab: Lab) -> None:
    """It died right behind its start: the new checkpoint has the query's id alone."""
    plan(lab, source("lines", f'topics = ["{lab.lines}"]'), sink(lab, "lines"))
    lab.send(["1"])
    lab.run()
    shutil.rmtree(lab.checkpoint())
    lab.checkpoint().mkdir()
    begun = str(uuid.uuid4())
    lab.checkpoint("metadata").write_text(json.dumps({"id": begun}))
    lab.send(["2"])
    lab.run(Mode.RESUME, begun=begun)
    assert sorted(lab.read(lab.sales)) == [(None, "lines1"), (None, "lines2")]
