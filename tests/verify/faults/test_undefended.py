"""What loses records of whoever has no defence: a fault that breaks nobody would show nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.support import eventually
from tests.new_topics import create
from tests.verify.faults.bare import PATIENCE_S, BareWorld, leaders

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults.disk import FullDisk
from onceflow.verify.faults.foreign import add_partition
from onceflow.verify.faults.limits import RecordTooLarge

pytestmark = pytest.mark.faults

_names = (f"undefended-{number}" for number in itertools.count())
_BYTES = 300
CHANCES = 8


@dataclass
class Undefended(BareWorld):
    """A cluster with a topic that somebody without defence writes or reads."""

    topic: str = field(default_factory=lambda: next(_names))

    def __post_init__(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.direct_servers, "log_level": 0})
        create(admin, NewTopic(self.topic, 1), PATIENCE_S)
        for server in self.kafka.direct_servers.split(","):  # the answer comes before all of them know
            eventually(partial(topics_at, server), lambda known: self.topic in known, f"it at {server}", PATIENCE_S)

    @property
    def topics_out(self) -> tuple[str, ...]:
        return (self.topic,)

    topics_in = topics_out

    def met(self, text: str, *_: object) -> None:
        self.note(text)

    def partitions(self) -> list[int]:
        return sorted(leaders(self.kafka.client, self.topic))

    def committed(self) -> set[int]:
        """The numbers that stand in the topic, in whichever partition, up to the ends of now: somebody may go on writing.

        A fetch that waits for more is answered as soon as there is more, so whoever waits for "no more" beside a writer
        that is quick enough waits for ever.
        """
        consumer = Consumer({**self._settings(), "group.id": "judge", "enable.partition.eof": True})
        places = [TopicPartition(self.topic, partition, OFFSET_BEGINNING) for partition in self.partitions()]
        ends = {place.partition: consumer.get_watermark_offsets(place, PATIENCE_S)[1] for place in places}
        consumer.assign(places)
        found, left = set(), set(ends)
        while left:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error, partition = message.error(), cast(int, message.partition())
            if error is None:
                found.add(number_of(message))
            if error is None and cast(int, message.offset()) < ends[partition] - 1:
                continue
            assert error is None or error.code() == KafkaError._PARTITION_EOF
            left.discard(partition)
        consumer.close()
        return found

    def write(self, number: int, partition: int) -> None:
        producer = Producer(self._settings())
        producer.produce(self.topic, value(number), partition=partition)
        assert producer.flush(PATIENCE_S) == 0

    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.kafka.direct_servers, "log_level": 0}


def topics_at(server: str) -> Collection[str]:
    """What a client knows that has asked this broker alone."""
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
    return admin.list_topics(timeout=PATIENCE_S).topics.keys()


def value(number: int) -> bytes:
    return str(number).encode().ljust(_BYTES)


def number_of(message: Message) -> int:
    return int(cast(bytes, message.value()))


@pytest.fixture
def world(three_brokers_v2: KafkaCluster) -> Undefended:
    return Undefended(three_brokers_v2)


class Careless:
    """A producer that sends and does not look at what became of it. In ``World.driver``'s place it says when it is refused."""

    def __init__(self, world: Undefended, acks: int) -> None:
        self.sent = 0
        self.failed: set[int] = set()
        self.told: set[int] = set()  # the numbers of which librdkafka says that they are delivered
        self._topic = world.topic
        options = {"bootstrap.servers": world.kafka.direct_servers, "acks": acks, "retries": 0, "log_level": 0}
        self._producer = Producer({**options, "linger.ms": 0})
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        while not self._ending.wait(0.005):
            told = partial(self._told, self.sent)
            self._producer.produce(self._topic, value(self.sent), partition=0, on_delivery=told)
            self.sent += 1
            self._producer.poll(0)
        self._left = self._producer.flush(PATIENCE_S)

    def _told(self, number: int, error: object, _: object) -> None:
        """It counts what it does not look at."""
        if error is None:
            self.told.add(number)
        else:
            self.failed.add(number)

    def await_failure(self, words: Collection[str], batches: int, patience_s: float) -> bool:  # noqa: ARG002  the interface
        before = len(self.failed)
        eventually(lambda: len(self.failed) > before, bool, "it is refused", max(patience_s, PATIENCE_S))
        return True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._thread.start()
        try:
            eventually(lambda: len(self.told), lambda told: told > 20, "it delivers", PATIENCE_S)
            yield
        finally:
            self._ending.set()
            self._thread.join(PATIENCE_S)
        assert self._left == 0

    def goes_on(self) -> None:
        """Waits until something more is delivered."""
        before = max(self.told)
        eventually(lambda: max(self.told) > before, bool, "a delivery", PATIENCE_S)


@pytest.mark.long
def test_a_full_disk_takes_from_who_asks_for_no_acknowledgement(world: Undefended) -> None:
    """Not each time: another log of the node may grow beyond the size first, while nothing is on its way to this one."""
    careless = Careless(world, acks=0)
    lost: set[int] = set()
    with careless.at_work():
        for chance in range(CHANCES):
            FullDisk().inject(world.as_world(), Random(chance))
            before = set(careless.told)
            careless.goes_on()
            lost = before - world.committed()  # what is behind these may be on its way
            if lost:
                break
    assert lost, "delivered, as librdkafka says, and gone"


def test_what_is_too_large_is_lost_to_who_does_not_look_at_what_became_of_it(world: Undefended) -> None:
    careless = Careless(world, acks=-1)
    world.driver = cast(Any, careless)
    with careless.at_work():
        RecordTooLarge().inject(world.as_world(), Random(1))
        careless.goes_on()
    lost = set(range(careless.sent)) - world.committed()
    assert lost
    assert max(careless.told) > min(lost), "the limit is what it was, and others came behind what is lost"


def test_the_beginning_of_an_added_partition_is_lost_to_a_group_that_starts_at_the_end(world: Undefended) -> None:
    """The default of many clients: a partition that has no committed offset is read from where it ends by then."""
    world.write(0, 0)
    settings = {"group.id": world.topic, "auto.offset.reset": "latest", "topic.metadata.refresh.interval.ms": 500}
    reader = Consumer({"bootstrap.servers": world.kafka.direct_servers, "log_level": 0, **settings})
    reader.subscribe([world.topic])
    assigned: set[int] = set()

    def polled() -> set[int]:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            seen.add(number_of(message))
        assigned.update(each.partition for each in reader.assignment())
        return assigned

    seen: set[int] = set()
    eventually(polled, lambda found: found == {0}, "an assignment", PATIENCE_S)
    add_partition(world.as_world(), world.topic)
    world.write(1, 1)
    eventually(polled, lambda found: found == {0, 1}, "the new partition", PATIENCE_S)
    numbers = itertools.count(2)

    def written_and_seen() -> set[int]:
        world.write(next(numbers), 1)
        polled()
        return seen

    eventually(written_and_seen, bool, "what comes later", PATIENCE_S)
    reader.close()
    assert 1 not in seen


def test_an_added_partition_is_never_seen_by_a_reader_that_keeps_to_those_it_knew(world: Undefended) -> None:
    settings = {"group.id": world.topic, "enable.partition.eof": True}
    reader = Consumer({"bootstrap.servers": world.kafka.direct_servers, "log_level": 0, **settings})
    reader.assign([TopicPartition(world.topic, partition, OFFSET_BEGINNING) for partition in world.partitions()])
    add_partition(world.as_world(), world.topic)
    for number, partition in enumerate((0, 1, 0)):
        world.write(number, partition)
    seen: list[int] = []
    while (message := cast(Message, reader.poll(PATIENCE_S))).error() is None or message.offset() != 2:
        if message.error() is None:  # else the end of a partition that was still empty
            seen.append(number_of(message))
    reader.close()
    assert seen == [0, 2]
    assert world.committed() == {0, 1, 2}
