"""Leaders that move, that die, that die alone with what they have: nothing is lost, repeated or out of order."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import read_topic
from tests.new_topics import create
from tests.three_brokers import BrokersOf
from tests.verify.faults.bare import BareWorld
from tests.writer.waiting import wait_until

from onceflow.errors import OutcomeUnknown, TransactionAborted
from onceflow.verify.cluster import KafkaCluster, Node
from onceflow.verify.faults.brokers import KillBroker, RollBrokersClean, RollBrokersHard
from onceflow.writer.writer import Writer

pytestmark = pytest.mark.faults

MakeWriter = Callable[..., Writer]
BrokerFault = KillBroker | RollBrokersClean | RollBrokersHard
TIMEOUT_S = 120.0
KEYS, PARTITIONS = 12, 3
AHEAD = 300  # events that are on their way while others wait to be sent
BLOCK = 40
SENT_ALONE = 10
CHANCES = 3
_numbers = itertools.count()


@pytest.fixture
def topic(three_brokers: KafkaCluster) -> str:
    return make_topic(three_brokers)


def make_topic(cluster: KafkaCluster) -> str:
    """Of three partitions, each on all brokers, two of which must have what is acknowledged."""
    name = f"led-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    create(admin, NewTopic(name, PARTITIONS), TIMEOUT_S)
    cluster.wait_until_healthy()
    return name


class Service:
    """Sends numbers under a few keys until it is told to end; ``sent`` of them are acknowledged or committed."""

    def __init__(self, writer: Writer, topic: str) -> None:
        self.writer = writer
        self.topic = topic
        self.sent = 0
        self.ending = threading.Event()
        self.running: Future[None] = Future()

    def send(self, number: int) -> Any:
        return self.writer.send(self.topic, str(number), key=str(number % KEYS), id=str(number))

    def plainly(self) -> None:
        waiting: deque[Any] = deque()
        for number in itertools.count():
            if self.ending.is_set():
                break
            waiting.append(self.send(number))
            if len(waiting) > AHEAD:
                waiting.popleft().result()
                self.sent += 1
        self.writer.flush()
        self.sent += len(waiting)

    def in_transactions(self) -> None:
        while not self.ending.is_set():
            if self.is_committed(range(self.sent, self.sent + BLOCK)):
                self.sent += BLOCK

    def is_committed(self, numbers: range) -> bool:
        try:
            with self.writer.transaction(progress=str(numbers.stop)):
                for number in numbers:
                    self.send(number)
        except TransactionAborted:
            return False
        except OutcomeUnknown:
            return self.writer.settle()
        return True

    @contextmanager
    def at_work(self, work: Callable[[], None]) -> Iterator[None]:
        """Meanwhile; what ends it with an error is raised here."""
        with ThreadPoolExecutor(1) as background:
            self.running = background.submit(work)
            try:
                self.goes_on()
                yield
            finally:
                self.ending.set()
                self.running.result(TIMEOUT_S)

    def goes_on(self) -> None:
        """Waits until more is acknowledged than now, or an error has ended it."""
        before = self.sent
        wait_until(lambda: self.sent > before or self.running.done())


def check_kept(cluster: KafkaCluster, service: Service) -> None:
    """Each number once, and those of a key in order."""
    by_key: dict[int, list[int]] = {}
    for message in messages(cluster, service.topic):
        by_key.setdefault(int(message.key() or b""), []).append(int(message.value() or b""))
    assert by_key == {key: list(range(key, service.sent, KEYS)) for key in range(KEYS)}


def messages(cluster: KafkaCluster, topic: str) -> list[Message]:
    return read_topic(cast(Any, cluster), topic)


def move_all_leaders(cluster: KafkaCluster, topic: str) -> None:
    for partition in range(PARTITIONS):
        cluster.move_leader(topic, partition, cluster.others(cluster.leader(topic, partition))[0])


def kill_leader(cluster: KafkaCluster, topic: str) -> None:
    leader = cluster.leader(topic, 0)
    leader.kill()
    wait_until(lambda: cluster.leader(topic, 0) is not leader)


def test_keyed_events_through_leaders_that_move_and_die(
    three_brokers: KafkaCluster, writer: MakeWriter, topic: str
) -> None:
    kafka = {"batch.num.messages": 20}
    service = Service(writer(on=three_brokers.bootstrap_servers, kafka=kafka), topic)
    with service.at_work(service.plainly):
        move_all_leaders(three_brokers, topic)
        service.goes_on()
        kill_leader(three_brokers, topic)
        service.goes_on()
        three_brokers.heal()
        service.goes_on()
    check_kept(three_brokers, service)


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.long), 2])
def test_transactions_through_leaders_and_coordinators_that_move_and_die(
    shared_three: BrokersOf, writer: MakeWriter, version: int
) -> None:
    cluster = shared_three(version)
    topic = make_topic(cluster)
    group = f"onceflow.writer.{topic}"
    service = Service(writer(topic, on=cluster.bootstrap_servers), topic)
    with service.at_work(service.in_transactions):
        move_all_leaders(cluster, topic)
        service.goes_on()
        cluster.move_transaction_coordinator(topic, cluster.others(cluster.transaction_coordinator(topic))[0])
        service.goes_on()
        cluster.move_group_coordinator(group, cluster.others(cluster.group_coordinator(group))[0])
        service.goes_on()
        kill_leader(cluster, topic)
        service.goes_on()
        cluster.heal()
        service.goes_on()
    check_kept(cluster, service)
    assert service.writer.progress == str(service.sent)


# ----------------------------------------------------------------------------------- a leader that nobody follows


@contextmanager
def leader_that_dies_alone(cluster: KafkaCluster, topic: str) -> Iterator[None]:
    """What is sent meanwhile is written by the leader of the first partition alone, which then dies; another one leads::

    leader     writes events, and nobody else has them
    leader     dies; a replica that is in sync, as far as anybody knows, leads and goes on without them
    """
    leader = cluster.leader(topic, 0)
    for follower in cluster.others(leader):
        follower.pause()
    try:
        yield
    finally:
        leader.kill()
        cluster.heal()


def test_events_that_a_dead_leader_alone_had_are_sent_again(
    three_brokers: KafkaCluster, writer: MakeWriter, topic: str
) -> None:
    shop = writer(on=three_brokers.bootstrap_servers)
    shop.send(topic, "0", partition=0, id="0").result()
    with leader_that_dies_alone(three_brokers, topic):
        for number in range(1, 100):
            shop.send(topic, str(number), partition=0, id=str(number))
    shop.flush()
    assert [int(m.value() or b"") for m in messages(three_brokers, topic)] == list(range(100))


def beginning_with(fault: BrokerFault, cluster: KafkaCluster, node: Node) -> Random:
    """Chances by which the fault strikes that node first."""
    is_roll = isinstance(fault, RollBrokersHard | RollBrokersClean)

    def first(random: Random) -> Node:
        return random.sample(cluster.nodes, len(cluster.nodes))[0] if is_roll else random.choice(cluster.nodes)

    return next(Random(seed) for seed in itertools.count() if first(Random(seed)) is node)


@contextmanager
def followers_frozen_until_a_kill(cluster: KafkaCluster, leader: Node) -> Iterator[None]:
    """They have nothing of what the leader acknowledges meanwhile, and one of them leads when it is killed."""
    kill = Node.kill

    def kill_and_resume(self: Node) -> None:
        kill(self)
        resume_all()

    def resume_all() -> None:
        for follower in cluster.others(leader):
            follower.resume()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "kill", kill_and_resume)
        try:
            for follower in cluster.others(leader):
                follower.pause()
            yield
        finally:
            resume_all()


@pytest.mark.parametrize("fault", [KillBroker(), RollBrokersHard()], ids=lambda fault: fault.name)
def test_control_with_acks_of_the_leader_alone_they_are_lost(
    three_brokers: KafkaCluster, topic: str, fault: KillBroker | RollBrokersHard
) -> None:
    cluster, leader = three_brokers, three_brokers.leader(topic, 0)
    lost = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 1, "log_level": 0})

    def send(number: int) -> None:
        lost.produce(topic, str(number), partition=0)

    def send_acknowledged(number: int) -> None:
        send(number)
        assert lost.flush(TIMEOUT_S) == 0

    send_acknowledged(0)
    with followers_frozen_until_a_kill(cluster, leader):
        # The first one is the answer to what the followers had asked: they still get it.
        for number in range(1, SENT_ALONE):
            send_acknowledged(number)
        fault.inject(BareWorld(cluster).as_world(), beginning_with(fault, cluster, leader))
    assert lost.flush(TIMEOUT_S) == 0, "all of them are acknowledged"
    assert len(messages(cluster, topic)) < SENT_ALONE


def test_control_who_asks_for_no_acknowledgement_loses_what_a_leader_gets_that_has_handed_over(
    three_brokers: KafkaCluster,
) -> None:
    """Nobody dies in a clean roll; only what is sent to the one that leads no more is lost, and nothing says so."""
    rolls = (told_and_gone(three_brokers, make_topic(three_brokers)) for _ in range(CHANCES))
    assert any(rolls), "delivered, as librdkafka says, and gone"


def told_and_gone(cluster: KafkaCluster, topic: str) -> set[int]:
    """What was delivered in a clean roll, as its sender was told, and is not there; nothing, if it just did not send then."""
    hasty = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 0, "log_level": 0})
    ending, told = threading.Event(), set[int]()

    def send() -> None:
        for number in itertools.count():
            if ending.wait(0.005):
                return
            hasty.produce(topic, str(number), partition=0, on_delivery=partial(note, number))
            hasty.poll(0)

    def note(number: int, error: object, _: object) -> None:
        if error is None:
            told.add(number)

    with ThreadPoolExecutor(1) as background:
        running = background.submit(send)
        try:
            wait_until(lambda: bool(told) or running.done())
            chances = beginning_with(RollBrokersClean(), cluster, cluster.leader(topic, 0))
            RollBrokersClean().inject(BareWorld(cluster).as_world(), chances)
            before = max(told)
            wait_until(lambda: max(told) > before or running.done())
        finally:
            ending.set()
            running.result(TIMEOUT_S)
    assert hasty.flush(TIMEOUT_S) == 0
    return told - {int(m.value() or b"") for m in messages(cluster, topic)}


# ------------------------------------------------------------------------------ a leader that nobody follows for a while

IN_FLIGHT = 5
LATER = 20


@contextmanager
def leader_that_waits_for_the_others_and_dies(
    cluster: KafkaCluster, topic: str, size: Callable[[int], bool]
) -> Iterator[None]:
    """What is sent meanwhile it writes and cannot acknowledge, until its log has the ``size``; it dies when the others have it::

    leader     writes 1 to 5; its followers stand still, so none of them is acknowledged in time
    client     sends 1 again, and so on
    leader     has all of it handed to its followers, which go on, and dies; one of them leads
    """
    leader = cluster.leader(topic, 0)
    for follower in cluster.others(leader):
        follower.pause()
    try:
        yield
        wait_until(lambda: size(log_bytes(leader, topic)))
    finally:
        for follower in cluster.others(leader):
            follower.resume()
    cluster.wait_until_healthy()
    wait_until(lambda: len({log_bytes(node, topic) for node in cluster.nodes}) == 1)
    kill_leader(cluster, topic)
    cluster.heal()


def log_bytes(node: Node, topic: str) -> int:
    """Of the first partition, as the node has it."""
    return sum(file.stat().st_size for file in node.directory.rglob(f"{topic}-0/*.log"))


def numbers(cluster: KafkaCluster, topic: str) -> list[int]:
    return [int(message.value() or b"") for message in messages(cluster, topic)]


def test_events_of_a_leader_that_waited_for_the_others_and_died_are_in_order(
    three_brokers: KafkaCluster, writer: MakeWriter, topic: str
) -> None:
    shop = writer(on=three_brokers.bootstrap_servers, kafka={"batch.num.messages": 1})
    shop.send(topic, "0", partition=0, id="0").result()
    one = log_bytes(three_brokers.leader(topic, 0), topic)
    with leader_that_waits_for_the_others_and_dies(three_brokers, topic, lambda size: size > one):
        for number in range(1, LATER):
            shop.send(topic, str(number), partition=0, id=str(number))
    shop.flush()
    assert numbers(three_brokers, topic) == list(range(LATER))


def test_control_without_sequence_numbers_earlier_ones_come_again_behind_later_ones(
    three_brokers: KafkaCluster,
) -> None:
    options = {"enable.idempotence": False, "acks": "all", "max.in.flight": IN_FLIGHT, "request.timeout.ms": 200}
    servers = {"bootstrap.servers": three_brokers.bootstrap_servers, "log_level": 0}
    plain = Producer({**servers, **options, "linger.ms": 0, "batch.num.messages": 1, "retry.backoff.ms": 10})

    def found() -> list[int]:
        """On a slow machine the leader may be left before it has more than the others: then it is in order."""
        other = make_topic(three_brokers)
        plain.produce(other, "00", partition=0)
        assert plain.flush(TIMEOUT_S) == 0
        one = log_bytes(three_brokers.leader(other, 0), other)
        with leader_that_waits_for_the_others_and_dies(three_brokers, other, lambda size: size > (2 + IN_FLIGHT) * one):
            for number in range(1, LATER):
                plain.produce(other, f"{number:02}", partition=0)
        assert plain.flush(TIMEOUT_S) == 0
        read = numbers(three_brokers, other)
        assert set(read) == set(range(LATER))
        return read

    assert any(read != sorted(read) for read in (found() for _ in range(CHANCES)))
