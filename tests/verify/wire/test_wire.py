"""The wire before a real broker: every action on chosen frames, seen from both sides."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import EndTxnRequest, EndTxnResponse, InitProducerIdRequest
from tests.conftest import Reader, TopicFactory
from tests.faults.support import eventually

from onceflow.broker import EmbeddedBroker
from onceflow.errors import ConfigurationError
from onceflow.kafka.client import TRANSACTION, Again, KafkaClient
from onceflow.verify.wire import Direction, Do, Rule, Wire, apis
from onceflow.verify.wire.frames import correlation_of, failed, frames
from onceflow.verify.wire.rules import ActiveRule, Head

pytestmark = pytest.mark.faults

TIMEOUT_S = 60
METADATA = frozenset({apis.METADATA})
INIT = frozenset({apis.INIT_PRODUCER_ID})
END = frozenset({apis.END_TXN})
_numbers = itertools.count()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as wire:
        yield wire


@pytest.fixture
def client(broker: EmbeddedBroker, wire: Wire) -> Iterator[KafkaClient]:
    """All of its connections go through the wire."""
    options = {"bootstrap_servers": [broker.bootstrap_servers], "proxy_url": wire.url, "request_timeout_ms": 60_000}
    with KafkaClient({**options, "client_id": "walker"}, patience_s=TIMEOUT_S) as client:
        client.repeat(lambda: initialised(client, "warm-up"), "a first answer from the coordinator")
        yield client


def metadata(client: KafkaClient) -> Any:
    return client.ask(1, MetadataRequest(topics=[], max_version=9, min_version=9))


def initialised(client: KafkaClient, transactional_id: str) -> int:
    """One InitProducerId; the epoch counts how many of them the coordinator has done."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=TIMEOUT_S * 1000,
        producer_id=-1,
        producer_epoch=-1,
        max_version=3,
        min_version=3,
    )
    answer = client.ask_coordinator(TRANSACTION, transactional_id, request)
    client.check(answer.error_code, "InitProducerId")
    return int(answer.producer_epoch)


def epoch(client: KafkaClient, transactional_id: str) -> int:
    found: int = client.repeat(lambda: initialised(client, transactional_id), "InitProducerId")
    return found


@pytest.fixture
def name() -> str:
    return f"wired-{next(_numbers)}"


def in_background(do: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def test_without_rules_everything_passes(client: KafkaClient, wire: Wire, name: str) -> None:
    assert [epoch(client, name), epoch(client, name)] == [0, 1]
    assert wire.seen[apis.INIT_PRODUCER_ID] >= 2
    assert wire.connections >= 1


@pytest.mark.parametrize("do", [Do.CUT, Do.RESET])
@pytest.mark.parametrize(("direction", "done"), [(Direction.REQUEST, 0), (Direction.ANSWER, 1)])
def test_a_cut_loses_a_request_or_its_answer(
    client: KafkaClient, wire: Wire, name: str, do: Do, direction: Direction, done: int
) -> None:
    with wire.rules.during(Rule(do, INIT, direction, count=1)) as (active,), pytest.raises(Again):
        initialised(client, name)
    assert active.applied == 1
    assert epoch(client, name) == done


def test_a_duplicate_is_done_twice_and_answered_once(client: KafkaClient, wire: Wire, name: str) -> None:
    with wire.rules.during(Rule(Do.DUPLICATE, INIT, count=1)) as (active,):
        assert epoch(client, name) == 0
        assert epoch(client, name) == 2
    assert active.applied == 1


@pytest.mark.parametrize(("direction", "done"), [(Direction.REQUEST, 0), (Direction.ANSWER, 1)])
def test_an_end_fails_before_the_broker_or_behind_it(
    client: KafkaClient, wire: Wire, name: str, direction: Direction, done: int
) -> None:
    """The epoch counts the ends that the coordinator has done (transaction version 2)."""
    initialised(client, name)
    with wire.rules.during(Rule(Do.FAIL, END, direction, count=1, error=-1)) as (active,):
        assert ended(client, name).error_code == -1
    assert active.applied == 1
    assert epoch_of(client, name) == done
    assert ended(client, name, done).error_code == 0


def ended(client: KafkaClient, transactional_id: str, epoch: int = 0) -> Any:
    """The answer to an abort."""
    described = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    state = client.ask_coordinator(TRANSACTION, transactional_id, described).transaction_states[0]
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=state.producer_id,
        producer_epoch=epoch,
        committed=False,
        max_version=5,
        min_version=5,
    )
    return client.ask_coordinator(TRANSACTION, transactional_id, request)


@pytest.mark.parametrize("version", range(6))
def test_an_answer_that_fails_is_as_its_version_has_it(version: int) -> None:
    frame = failed(Head(apis.END_TXN, version, 77, "any"), -1)
    answer = EndTxnResponse.decode(frame, version=version, header=True, framed=True)
    assert (answer.header.correlation_id, answer.error_code) == (77, -1)
    assert len(frame) == answer_bytes(version)


def answer_bytes(version: int) -> int:
    """Size, correlation id, throttle time, code; tagged fields of the header and the body; the next identity."""
    return 4 + 4 + 4 + 2 + (2 if version >= 3 else 0) + (10 if version >= 5 else 0)


def test_an_end_that_fails_before_the_broker_overtakes_no_answer(wire: Wire, broker: EmbeddedBroker) -> None:
    """As clients have several requests under way on one connection, and take what comes out of order for its end."""
    delay = Rule(Do.DELAY, METADATA, Direction.ANSWER, delay_s=0.2)
    requests = [
        MetadataRequest[9](topics=[]),
        EndTxnRequest[3](transactional_id="any", producer_id=1, producer_epoch=0, committed=True),
    ]
    with (
        wire.rules.during(delay, Rule(Do.FAIL, END, error=-1)),
        socket.create_connection(("127.0.0.1", wire.port), TIMEOUT_S) as client,
        client.makefile("rb") as stream,
    ):
        client.sendall(f"CONNECT {broker.bootstrap_servers} HTTP/1.1\r\n\r\n".encode())
        assert [stream.readline(), stream.readline()] == [b"HTTP/1.1 200 OK\r\n", b"\r\n"]
        for number, request in enumerate(requests):
            request.with_header(number, "any")
            client.sendall(request.encode(header=True, framed=True))
        answers = frames(stream)
        assert [correlation_of(next(answers)) for _ in requests] == [0, 1]


@pytest.mark.parametrize("direction", list(Direction))
def test_a_delay_is_kept(client: KafkaClient, wire: Wire, direction: Direction) -> None:
    """What follows on the connection does not overtake; other connections are free."""
    with wire.rules.during(Rule(Do.DELAY, METADATA, direction, count=1, delay_s=0.2)) as (active,):
        metadata(client)
    assert (active.seen, active.applied) == (1, 1)


def test_a_held_request_arrives_when_it_is_released(
    client: KafkaClient, broker: EmbeddedBroker, wire: Wire, name: str
) -> None:
    """Its client repeats it and goes on; the held one comes later and does its work then."""
    active = wire.rules.add(Rule(Do.HOLD, INIT, count=1))
    assert epoch(client, name) == 0  # the repeated one
    with KafkaClient({"bootstrap_servers": [broker.bootstrap_servers]}, patience_s=TIMEOUT_S) as direct:
        assert epoch_of(direct, name) == 0
        assert not active.is_answered
        active.release()
        direct.repeat(lambda: arrived(direct, name, 1), "the late request")
        eventually(lambda: active.is_answered, bool, "its answer", TIMEOUT_S)
    assert active.applied == 1
    wire.rules.remove(active)


def test_a_held_request_that_is_discarded_never_arrives(
    client: KafkaClient, broker: EmbeddedBroker, wire: Wire, name: str
) -> None:
    before = wire.connections
    with wire.rules.during(Rule(Do.HOLD, INIT, count=1)) as (active,):
        assert epoch(client, name) == 0
        active.discard()
    eventually(lambda: wire.connections, lambda left: left == before, "its connection has ended", TIMEOUT_S)
    assert epoch(client, name) == 1
    assert not active.is_answered


def epoch_of(client: KafkaClient, transactional_id: str) -> int:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return int(client.ask_coordinator(TRANSACTION, transactional_id, request).transaction_states[0].producer_epoch)


def arrived(client: KafkaClient, transactional_id: str, expected: int) -> None:
    if epoch_of(client, transactional_id) != expected:
        raise Again("not yet")


@pytest.mark.parametrize(("direction", "done"), [(Direction.REQUEST, 0), (Direction.ANSWER, 1)])
def test_one_way_is_dead_until_the_rule_ends(
    client: KafkaClient, broker: EmbeddedBroker, wire: Wire, name: str, direction: Direction, done: int
) -> None:
    # So that the coordinator is known when the short timeout begins.
    client.ask_coordinator(TRANSACTION, name, DescribeTransactionsRequest(transactional_ids=[name]))
    active = wire.rules.add(Rule(Do.DROP, INIT, direction))
    client._manager.config["request_timeout_ms"] = 1_000
    with pytest.raises(Again, match=r"(?i)timed out"):
        initialised(client, name)
    client._manager.config["request_timeout_ms"] = 60_000
    wire.rules.remove(active)
    assert epoch(client, name) == done


def test_the_end_of_a_rule_ends_what_it_silenced(client: KafkaClient, wire: Wire) -> None:
    """A client that waits for an answer hears of it at once, and not when its own time is up."""
    client._manager.config["request_timeout_ms"] = 600_000
    active = wire.rules.add(Rule(Do.DROP, METADATA, Direction.ANSWER))
    failed = threading.Event()

    def ask() -> None:
        with pytest.raises(Again):
            metadata(client)
        failed.set()

    asking = in_background(ask)
    assert active.wait_applied()
    wire.rules.remove(active)
    asking.join(TIMEOUT_S)
    assert failed.is_set()


def test_occurrences_are_counted_over_all_connections(client: KafkaClient, wire: Wire) -> None:
    with wire.rules.during(Rule(Do.DELAY, METADATA, first=2, count=2, delay_s=0.001)) as (active,):
        for _ in range(6):
            metadata(client)
    assert (active.seen, active.applied) == (6, 2)


def test_a_rule_meets_the_client_and_the_node_that_it_names(client: KafkaClient, wire: Wire) -> None:
    rules = [
        Rule(Do.DELAY, METADATA, delay_s=0.001, client="somebody else"),
        Rule(Do.DELAY, METADATA, delay_s=0.001, nodes=frozenset({7})),
        Rule(Do.DELAY, METADATA, delay_s=0.001, client="walk", nodes=frozenset({0})),
    ]
    with wire.rules.during(*rules) as active:
        metadata(client)
    assert [each.applied for each in active] == [0, 0, 1]


def test_a_seed_draws_the_same_again(client: KafkaClient, wire: Wire) -> None:
    def drawn() -> list[int]:
        wire.rules.seed(7)
        found = []
        with wire.rules.during(Rule(Do.DELAY, METADATA, probability=0.5, delay_s=0.001)) as (active,):
            for _ in range(20):
                metadata(client)
                found.append(active.applied)
        return found

    first = drawn()
    assert first == drawn()
    assert 0 < first[-1] < 20


def test_all_connections_can_be_cut_at_once(client: KafkaClient, wire: Wire, name: str) -> None:
    assert wire.cut() >= 1
    assert epoch(client, name) >= 0


def test_then_is_called_before_the_frame_is_treated(client: KafkaClient, wire: Wire, name: str) -> None:
    """So a test can let something happen between a request's effect and its lost answer."""
    told: list[int] = []
    with wire.rules.during(Rule(Do.CUT, INIT, Direction.ANSWER, count=1, then=lambda: told.append(1))):
        assert epoch(client, name) == 1
    assert told == [1]


def test_records_pass_unchanged_with_acks_none_one_and_all(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, name: str
) -> None:
    host, _, port = broker.bootstrap_servers.partition(":")
    target = topic()
    values = [bytes([number % 256]) * (number * 37 % 5000) for number in range(600)]
    with Wire((host, int(port))) as wire:
        for acks in ("0", "1", "all"):
            producer = Producer({"bootstrap.servers": wire.address, "acks": acks, "log_level": 0})
            for value in values:
                producer.produce(target, value)
            assert producer.flush(TIMEOUT_S) == 0
    assert sorted(m.value() or b"" for m in read(target)) == sorted(values * 3)


@pytest.mark.parametrize("sent", [b"\xff" * 64, b"\0\0\0\2xy"], ids=["no size", "too short for a request"])
def test_what_is_no_kafka_ends_its_own_connection_alone(
    client: KafkaClient, wire: Wire, broker: EmbeddedBroker, sent: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", wire.port)) as stranger:
        stranger.sendall(f"CONNECT {broker.bootstrap_servers} HTTP/1.1\r\n\r\n".encode() + sent)
        stranger.settimeout(TIMEOUT_S)
        received = b""
        while part := stranger.recv(1000):
            received += part
    assert received == b"HTTP/1.1 200 OK\r\n\r\n"
    metadata(client)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("direction", list(Direction))
def test_where_what_a_rule_does_fails_its_connection_ends(
    client: KafkaClient, wire: Wire, direction: Direction
) -> None:
    def fails() -> None:
        raise ConfigurationError("in a test")

    rule = Rule(Do.DELAY, METADATA, direction, count=1, delay_s=0.01, then=fails)
    serving = list(wire._links.values())
    with wire.rules.during(rule), pytest.raises(Again):
        metadata(client)
    wire.cut()
    for thread in serving:  # what one of them died of belongs to this test
        thread.join(TIMEOUT_S)
    metadata(client)


def test_a_rule_that_makes_no_sense_is_refused_with_all_its_mistakes() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Rule(Do.DUPLICATE, None, Direction.ANSWER, delay_s=1, probability=0, client="(", error=-1)
    assert len(raised.value.fields["mistakes"]) == 5
    with pytest.raises(ConfigurationError) as raised:
        Rule(Do.FAIL)
    assert len(raised.value.fields["mistakes"]) == 2


def test_what_a_rule_silences_at_its_very_end_does_not_stay_silent() -> None:
    """A frame was judged, the rule ended, and only then was its connection silenced."""

    class Link:
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    link, active = Link(), ActiveRule(Rule(Do.DROP))
    active.ends()
    active.silences(link)
    assert link.is_closed


def test_closing_ends_threads_and_connections(broker: EmbeddedBroker) -> None:
    before = set(threading.enumerate())  # other wires among them
    wire = Wire()
    wire.rules.add(Rule(Do.HOLD, METADATA))
    options = {"bootstrap_servers": [broker.bootstrap_servers], "proxy_url": wire.url, "request_timeout_ms": 60_000}
    client = KafkaClient(options, patience_s=0.5)
    with pytest.raises(Exception, match="answered within"):
        client.open()
    wire.close()
    client.close()
    own = set(threading.enumerate()) - before
    for thread in own:
        thread.join(TIMEOUT_S)
    assert not [thread for thread in own if thread.is_alive()]
