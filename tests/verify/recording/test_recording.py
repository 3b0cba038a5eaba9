"""Readers beside a run: they skip nothing, repeat nothing, and see what is open."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.conftest import create_topic

from onceflow.broker import EmbeddedBroker
from onceflow.errors import RequestFailed
from onceflow.verify.cluster.placement import GROUPS_TOPIC
from onceflow.verify.digest import content_digest, key_digest
from onceflow.verify.recording import (
    ReadCommittedRecorder,
    StableWatcher,
    final,
    holds,
    observe,
    read_all,
    stable,
)
from onceflow.verify.recording.ends import Asker, ends_of
from onceflow.verify.recording.tables import READ, STABLE, Chunks, Place

if TYPE_CHECKING:
    from tests.conftest import Fill, TopicFactory

PATIENCE_S = 240


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def open_transaction(servers: str, topic: str, records: int) -> Producer:
    """A transaction with acknowledged records that is neither committed nor aborted."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"open-{topic}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, key=b"k", value=b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    return producer


def test_records_are_told_apart_by_every_part() -> None:
    kinds = [
        (b"k", b"v", None),
        (b"k", b"v", [("h", b"x")]),
        (b"k", b"v", [("h", None)]),
        (b"kv", b"", None),
        (None, b"v", None),
        (b"", b"v", None),
        (b"k", None, None),
        (b"k", b"v", [("h", b"x"), ("h", b"x")]),
    ]
    assert len({content_digest(*each) for each in kinds}) == len(kinds)
    assert content_digest(b"k", b"v", [("h", "x")]) == content_digest(*kinds[1])
    assert key_digest(None) is None
    assert key_digest(b"") != key_digest(b"k")


def test_a_table_grows_in_chunks() -> None:
    chunks = Chunks(STABLE, rows=3)
    rows = [(float(n), f"topic-{n % 2}", n, 0, n, n, float(n)) for n in range(8)]
    for row in rows:
        chunks.extend([row])
    assert [tuple(row.values()) for row in chunks.table().to_pylist()] == rows
    assert Chunks(STABLE).table().schema == STABLE


def test_the_final_read_is_everything_committed(broker: EmbeddedBroker, topic: TopicFactory, fill: Fill) -> None:
    name, empty = topic(2), topic(1)
    fill(name, [(f"k{n}", f"v{n}") for n in range(50)])
    open_transaction(broker.bootstrap_servers, name, 3).abort_transaction(60)
    observed = observe(broker.bootstrap_servers, [name, empty], "nobody")
    assert observed.committed.progress is None
    found = read_all(broker.bootstrap_servers, observed.ends)
    assert found.schema.equals(READ)
    assert {row["content"] for row in found.to_pylist()} == {
        content_digest(b"k%d" % n, b"v%d" % n, None) for n in range(50)
    }
    assert len(found) == 50


def test_a_final_read_that_does_not_reach_the_end_says_so(
    broker: EmbeddedBroker, topic: TopicFactory, fill: Fill
) -> None:
    name = topic(1)
    fill(name, [("k", "v")])
    ends = ends_of(broker.bootstrap_servers, [name])
    beyond = ends.set_column(3, "stable", pa.array([5], pa.int64()))
    with pytest.raises(RequestFailed, match=f"{name}-0"):
        read_all(broker.bootstrap_servers, beyond, patience_s=3)


def test_an_open_transaction_is_seen_and_timed(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    name = topic(2)
    with StableWatcher(broker.bootstrap_servers, [name], pipeline=None, every_s=0.05) as watcher:
        producer = open_transaction(broker.bootstrap_servers, name, 3)
        until(lambda: len(holds(watcher.table())) > 0)
        ends = observe(broker.bootstrap_servers, [name], "nobody", patience_s=0.5).ends.to_pylist()
        producer.commit_transaction(60)
        committed = time.monotonic()
        until(lambda: any(row["stable"] == 4 and row["at_s"] > committed for row in watcher.table().to_pylist()))
    assert [(row["partition"], row["stable"], row["end"]) for row in ends] == [(0, 0, 3), (1, 0, 0)]
    found = holds(watcher.table()).to_pylist()
    assert {(row["topic"], row["partition"], row["stable"]) for row in found} == {(name, 0, 0)}
    assert found[-1]["began_s"] < committed
    assert found[-1]["ended_s"] == first_seen_free(watcher, found[-1])
    assert all(row["at_s"] < row["answered_s"] for row in watcher.table().to_pylist())


def test_a_stable_offset_was_there_when_it_was_answered_and_not_when_all_else_was(
    broker: EmbeddedBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is killed between the two requests would make a hold of its restart."""
    name = topic(1)
    asked: list[float] = []
    beside = Asker.beside

    def noting(self: Asker, places: dict[Place, int]) -> pa.Table:
        asked.append(time.monotonic())
        return beside(self, places)

    monkeypatch.setattr(Asker, "beside", noting)
    with StableWatcher(broker.bootstrap_servers, [name], pipeline=None, every_s=0.05) as watcher:
        until(lambda: len(watcher.table()) > 1)
    rows = watcher.table().to_pylist()
    assert all(row["at_s"] < row["answered_s"] <= at for row, at in zip(rows, asked, strict=False))


def test_an_open_transaction_is_seen_where_it_has_put_nothing_but_its_positions(
    broker: EmbeddedBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a driver leaves it that dies in a batch without output: no reader waits, and its successor does."""
    monkeypatch.setattr(stable, "_LOOK_S", 0.1)
    name, servers = topic(1), broker.bootstrap_servers
    with StableWatcher(servers, [name], pipeline=name, every_s=0.05) as watcher:
        producer = open_transaction(servers, name, 0)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": f"onceflow-{name}"})
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(name, 0, 7)], group, 60)
        until(lambda: len(holds(watcher.table())) > 0)
        producer.commit_transaction(60)
        consumer.close()
        committed = time.monotonic()
        until(lambda: any(row["stable"] == row["end"] and row["at_s"] > committed for row in of_groups(watcher)))
    found = holds(watcher.table()).to_pylist()
    (kept,) = (observe(servers, [name], name).group or pa.table({})).to_pylist()
    assert {(row["topic"], row["partition"]) for row in found} == {(GROUPS_TOPIC, kept["partition"])}
    assert found[-1]["began_s"] < committed
    assert found[-1]["ended_s"] == first_seen_free(watcher, found[-1])


def first_seen_free(watcher: StableWatcher, hold: dict[str, Any]) -> float:
    """When the first answer came that showed the partition without the hold."""
    place = (hold["topic"], hold["partition"])
    samples = [row for row in watcher.table().to_pylist() if (row["topic"], row["partition"]) == place]
    free = (row for row in samples if row["at_s"] > hold["began_s"] and row["stable"] == row["end"])
    return next(float(row["answered_s"]) for row in free)


def of_groups(watcher: StableWatcher) -> list[dict[str, Any]]:
    """The samples of the partition that keeps the group."""
    return [row for row in watcher.table().to_pylist() if row["topic"] == GROUPS_TOPIC]


def test_a_partition_that_is_added_is_watched_too(
    broker: EmbeddedBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stable, "_LOOK_S", 0.1)
    name = topic(1)
    with StableWatcher(broker.bootstrap_servers, [name], pipeline=None, every_s=0.05) as watcher:
        until(lambda: len(watcher.table()) > 0)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_partitions([NewPartitions(name, 2)])[name].result(60)
        until(lambda: any(row["partition"] == 1 for row in watcher.table().to_pylist()))


def test_holds_end_where_the_stable_offset_moves() -> None:
    samples = Chunks(STABLE)
    told = [(0, 5, 5), (1, 5, 8), (2, 5, 9), (3, 7, 9), (4, 9, 9), (5, 9, 10)]
    samples.extend((float(at), "t", 1, 0, stable, end, at + 0.5) for at, stable, end in told)
    samples.extend((float(at), "t", 0, 0, 3, 3, at + 0.5) for at in range(6))
    found = [
        (row["partition"], row["stable"], row["began_s"], row["ended_s"]) for row in holds(samples.table()).to_pylist()
    ]
    assert found == [(1, 5, 1.0, 3.5), (1, 7, 3.0, 4.5), (1, 9, 5.0, 5.5)], "a sample is of the moment of its answer"
    assert len(holds(STABLE.empty_table())) == 0


def test_the_concurrent_reader_sees_what_is_committed_only(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    name = topic(1)
    with ReadCommittedRecorder(broker.bootstrap_servers, [name]) as reader:
        open_transaction(broker.bootstrap_servers, name, 2).abort_transaction(60)
        open_transaction(broker.bootstrap_servers, name, 4).commit_transaction(60)
        until(lambda: len(reader.table()) == 4)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_partitions([NewPartitions(name, 2)])[name].result(60)
        until(lambda: (name, 1) in reader.positions)
    rows = reader.table().to_pylist()
    assert [row["offset"] for row in rows] == [3, 4, 5, 6]
    assert len({row["op"] for row in rows}) == len({row["at_s"] for row in rows})
    assert reader.again == 0


def test_whether_the_reader_has_come_to_the_end_is_asked(
    broker: EmbeddedBroker, topic: TopicFactory, fill: Fill
) -> None:
    """One that saw nothing has found nothing wrong, either."""
    name, servers = topic(2), broker.bootstrap_servers
    fill(name, [(f"k{n}", f"v{n}") for n in range(50)])
    final = read_all(servers, ends_of(servers, [name]))
    assert {row["partition"] for row in final.to_pylist()} == {0, 1}
    with ReadCommittedRecorder(servers, [name]) as reader:
        assert reader.behind(final, PATIENCE_S) == []
        assert len(reader.table()) == 50
    with ReadCommittedRecorder("127.0.0.1:1", [name]) as blind:
        assert blind.behind(final, 0.1) == [(name, 0), (name, 1)]
        assert blind.behind(READ.empty_table(), 0.1) == []
    with ReadCommittedRecorder(servers, [name]) as early:
        assert early.behind(final, PATIENCE_S) == []
    fill(name, [("k", "v")] * 5)
    more = read_all(servers, ends_of(servers, [name]))
    (grown,) = {row["partition"] for row in more.to_pylist() if (row["content"]) == content_digest(b"k", b"v", None)}
    assert early.behind(more, PATIENCE_S) == [(name, grown)], "its thread has ended: nobody waits for it"


class Rewinds(Consumer):
    """Goes back once, behind its first records."""

    rewound = False

    def consume(self, *arguments: Any) -> list[Message]:
        messages = super().consume(*arguments)
        if messages and not self.rewound:
            self.rewound = True
            self.seek(TopicPartition(str(messages[0].topic()), messages[0].partition() or 0, 0))
        return messages


def test_what_a_client_gives_a_second_time_is_recorded_a_second_time(
    broker: EmbeddedBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final, "Consumer", Rewinds)
    name = topic(1)
    open_transaction(broker.bootstrap_servers, name, 4).commit_transaction(60)
    with ReadCommittedRecorder(broker.bootstrap_servers, [name]) as reader:
        until(lambda: reader.again > 0 and len(reader.table()) == 4 + reader.again)
        assert reader.positions == {(name, 0): 4}
    rows = reader.table().to_pylist()
    given = [row["offset"] for row in rows]
    back = given.index(0, 1)
    assert given == [*range(back), *range(4)]
    assert len({(row["offset"], row["content"]) for row in rows}) == 4
    assert rows[back]["op"] == rows[0]["op"] + 1


class Fails(Consumer):
    """Gives its first records, and in the same call that it reads no further."""

    failed = False

    def consume(self, *arguments: Any) -> list[Message]:
        messages = super().consume(*arguments)
        if messages and not Fails.failed:
            Fails.failed = True
            messages.append(Message(error=KafkaError(KafkaError._FATAL)))
        return messages


def test_what_a_client_gave_before_it_failed_is_not_lost(
    broker: EmbeddedBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor goes on behind it, and would seem to have skipped it."""
    monkeypatch.setattr(final, "Consumer", Fails)
    name = topic(1)
    open_transaction(broker.bootstrap_servers, name, 4).commit_transaction(60)
    with ReadCommittedRecorder(broker.bootstrap_servers, [name]) as reader:
        until(lambda: reader.reconnected == 1 and reader.positions.get((name, 0)) == 4)
        open_transaction(broker.bootstrap_servers, name, 2).commit_transaction(60)
        until(lambda: reader.positions[name, 0] == 7)
    assert [row["offset"] for row in reader.table().to_pylist()] == [0, 1, 2, 3, 5, 6]


@pytest.mark.faults
def test_a_killed_broker_makes_the_reader_skip_and_repeat_nothing(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, heap_mb=256) as mortal:
        create_topic(mortal, "input", 2)
        producer = Producer({"bootstrap.servers": mortal.bootstrap_servers, "enable.idempotence": True})
        with ReadCommittedRecorder(mortal.bootstrap_servers, ["input"]) as reader:
            for part in range(3):
                for number in range(100):
                    producer.produce("input", value=b"%d" % (100 * part + number), partition=number % 2)
                assert producer.flush(PATIENCE_S) == 0
                until(lambda: len(reader.table()) >= 100 * part + 100)  # noqa: B023  called before the loop goes on
                mortal.kill()
                mortal.start()
        rows = reader.table().to_pylist()
    for partition in range(2):
        assert [row["offset"] for row in rows if row["partition"] == partition] == list(range(150))


def test_what_ended_the_watcher_is_raised_where_it_is_stopped() -> None:
    """Its samples end there, and a hold that nobody saw would be none."""
    watcher = StableWatcher(cast(str, None), ["a"], pipeline=None).start()
    watcher._thread.join(60)
    with pytest.raises(Exception, match=r"."):
        watcher.stop()
