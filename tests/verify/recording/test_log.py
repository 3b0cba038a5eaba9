"""What a real broker has of transactions: those that were committed, aborted, and left open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.protocol.consumer import OffsetDeleteRequest
from tests.conftest import HEAP_MB, TopicFactory, create_topic
from tests.faults.support import eventually

from onceflow.broker import EmbeddedBroker
from onceflow.errors import RequestFailed, VerificationError
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import GROUP, KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.verify.recording import read_log
from onceflow.verify.recording.ends import Asker, place_of_group
from onceflow.verify.recording.log import Log, records_of
from onceflow.verify.recording.transactions import Transactions, transactions_of

PATIENCE_S = 60.0
COMPACTING = {"log.roll.ms": "1", "log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.01"}
"""Of a broker: every segment is full at the next write, and compacted at once."""
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Writer:
    """Writes to the topic ``name``, and commits positions of it for the group of a pipeline of that name.

    Each transaction has a producer of its own, and so an epoch of its own.
    """

    def __init__(self, broker: EmbeddedBroker, name: str, **options: object) -> None:
        self._topic = name
        servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        self._options = {**servers, "transactional.id": name, **options}
        self._group = Consumer({**servers, "group.id": f"onceflow-{name}"})

    @contextmanager
    def transaction(self, *, commit: bool = True) -> Iterator[Writer]:
        self._begin()
        yield self
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)(PATIENCE_S)

    def opens(self, *counts: int) -> None:
        """A transaction that nobody ends."""
        self._begin()
        self.sends(*counts)

    def _begin(self) -> None:
        self._producer = Producer(self._options)
        self._producer.init_transactions(PATIENCE_S)
        self._producer.begin_transaction()

    def sends(self, *counts: int) -> None:
        """So many records to each partition, in one batch or more."""
        for partition, count in enumerate(counts):
            for number in range(count):
                self._producer.produce(self._topic, b"%d" % number, partition=partition)
        assert self._producer.flush(PATIENCE_S) == 0

    def gives(self, *offsets: int) -> None:
        """One to each partition, as far as there are some."""
        positions = [
            TopicPartition(self._topic, partition, offset, f"metadata {offset}")
            for partition, offset in enumerate(offsets)
        ]
        self._producer.send_offsets_to_transaction(positions, self._group.consumer_group_metadata(), PATIENCE_S)

    def close(self) -> None:
        self._group.close()


def logged(broker: EmbeddedBroker, name: str) -> Log:
    servers = broker.bootstrap_servers
    asker = Asker(servers)
    known = ClusterAdmin(ClusterSettings.of(servers)).partitions()
    ends = asker.ends([(name, partition) for partition in known[name]])
    return read_log(servers, ends, asker.ends(place_of_group(name, known)), name)


def of_status(log: Log, found: Transactions, status: str) -> list[dict[int, int]]:
    """For each transaction of this status, how many records it has on each partition of the topic, and of the group's as -1."""
    chosen = []
    for number in (each for each, its in enumerate(found.status) if its == status):
        rows = log.batches.filter(found.of_batch == number).to_pylist()
        counts: dict[int, int] = {}
        for row in rows:
            at = -1 if row["topic"].startswith("__") else row["partition"]
            counts[at] = counts.get(at, 0) + row["until"] - row["first"]
        chosen.append(counts)
    return chosen


def test_each_transaction_is_told_with_its_records_its_positions_and_its_outcome(
    broker: EmbeddedBroker, topic: TopicFactory
) -> None:
    name = topic(2)
    writer = Writer(broker, name)
    with writer.transaction():
        writer.sends(3, 2)
        writer.gives(7)
    with writer.transaction(commit=False):
        writer.sends(5)
        writer.gives(9)
    with writer.transaction():
        writer.sends(0, 1)
        writer.gives(11)
    writer.opens(4)
    log = logged(broker, name)
    found = transactions_of(log)
    assert of_status(log, found, "ok") == [{0: 3, 1: 2, -1: 1}, {1: 1, -1: 1}]
    assert of_status(log, found, "fail") == [{0: 5, -1: 1}]
    assert of_status(log, found, "info") == [{0: 4}]
    given = zip(found.of_given.tolist(), log.given.to_pylist(), strict=True)
    assert [(found.status[txn], row["offset"], row["metadata"].rstrip("\0")) for txn, row in given] == [
        ("ok", 7, "metadata 7"), ("fail", 9, "metadata 9"), ("ok", 11, "metadata 11"),
    ]  # fmt: skip
    uncommitted = log.batches.filter((found.of_batch >= 0) & ~found.is_committed)
    assert records_of(uncommitted) == 5 + 1 + 4
    writer.close()


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_records_are_counted_without_their_contents(
    broker: EmbeddedBroker, topic: TopicFactory, codec: str
) -> None:
    """Not all codecs are here: of what a user's pipeline compresses, the heads of batches are enough."""
    name = topic(1)
    writer = Writer(broker, name, **{"compression.type": codec})
    with writer.transaction():
        writer.sends(500)
    log = logged(broker, name)
    assert of_status(log, transactions_of(log), "ok") == [{0: 500}]
    writer.close()


def test_what_is_written_and_removed_outside_of_transactions_is_of_none(
    broker: EmbeddedBroker, topic: TopicFactory
) -> None:
    name = topic(1)
    writer = Writer(broker, name)
    with writer.transaction():
        writer.gives(7)
    stranger = Producer({"bootstrap.servers": broker.bootstrap_servers})
    stranger.produce(name, b"of nobody")
    assert stranger.flush(PATIENCE_S) == 0
    with KafkaClient(ClusterSettings.of(broker.bootstrap_servers).for_protocol()) as client:
        kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
        asked = kind(name=name, partitions=[kind.OffsetDeleteRequestPartition(partition_index=0)])
        group = f"onceflow-{name}"
        answer = client.ask_coordinator(GROUP, group, OffsetDeleteRequest(group_id=group, topics=[asked]))
        assert not answer.error_code
    log = logged(broker, name)
    found = transactions_of(log)
    assert [row["kind"] for row in log.batches.to_pylist() if row["topic"] == name] == ["plain"]
    assert [row["offset"] for row in log.given.to_pylist()] == [7, None]
    assert (found.of_given >= 0).tolist() == [True, False]
    assert found.given_at.min() >= 0, "both were there"
    assert of_status(log, found, "ok") == [{-1: 1}]
    writer.close()


def test_a_log_that_lacks_something_is_not_read_as_if_it_were_whole(
    broker: EmbeddedBroker, topic: TopicFactory
) -> None:
    """Who drops it does not matter: nobody would know of the attempts in it."""
    name = topic(1)
    writer = Writer(broker, name)
    for _ in range(2):
        with writer.transaction():
            writer.sends(3)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for done in admin.delete_records([TopicPartition(name, 0, 4)]).values():
        done.result(PATIENCE_S)
    servers = broker.bootstrap_servers
    ends = Asker(servers).ends([(name, 0)])
    whole = ends.set_column(ends.schema.get_field_index("start"), ends.schema.field("start"), pa.array([0]))
    with pytest.raises(RequestFailed, match=f"the log of {name}-0 from 0 on: OffsetOutOfRange"):
        read_log(servers, whole, None, name)
    assert records_of(read_log(servers, ends, None, name).batches) == 3 + 1
    writer.close()


@pytest.mark.parametrize(
    ("transactions", "lacks"),
    [
        pytest.param([(0,), (1,), (2,), (3,), (4,)], r"\d+", id="whole batches"),
        pytest.param([(0, 0), (1,)], "0", id="some of a batch"),
    ],
)
def test_a_log_of_the_group_that_was_compacted_is_not_read_as_if_it_were_whole(
    tmp_path: Path, transactions: list[tuple[int, ...]], lacks: str
) -> None:
    """As Kafka does it to that log by itself: of positions that were given again only the last one stays."""
    name = "compacted"
    with EmbeddedBroker(tmp_path / "broker", heap_mb=HEAP_MB, config=COMPACTING) as broker:
        create_topic(broker, name, partitions=2)
        writer = Writer(broker, name)
        for positions in transactions:
            with writer.transaction():
                writer.gives(*positions)
        given = [*chain(*transactions)]
        why = eventually(lambda: why_not_read(broker, name, given), bool, "what was compacted is missed")
        assert re.search(rf"__consumer_offsets-\d+ has no offset {lacks} any more: it was compacted", why)
        writer.close()


def why_not_read(broker: EmbeddedBroker, name: str, given: list[int]) -> str:
    """Empty while all is there."""
    try:
        log = logged(broker, name)
    except VerificationError as error:
        return str(error)
    assert log.given["offset"].to_pylist() == given
    return ""
