"""What faults of the network repeat of whoever sends again without a number by which a broker knows it.

Two plain producers send the same at the same time, through the same wire, and differ in one setting: the idempotent one is broken
by none of these faults, so it is that defence which the other one lacks.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from tests.faults.support import Cluster, eventually
from tests.verify.faults.bare import PATIENCE_S, BareWorld

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults import network
from onceflow.verify.faults.network import CutConnections, DelayRequests, DuplicateRequests, OneWayCut
from onceflow.verify.wire import apis

pytestmark = pytest.mark.faults

PRODUCE = {"PRODUCE": apis.KINDS["PRODUCE"]}
LASTS_S = (2.0, 2.5)  # longer than librdkafka takes to see that a request is not answered: it looks once a second
SOON = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
CHANCES = 8
IMPATIENT = {"socket.timeout.ms": 500}  # what a late answer breaks is who does not wait for it


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker behind a wire."""
    with KafkaCluster(tmp_path_factory.mktemp("wired"), heap_mb=192, wire=True) as cluster:
        yield cluster


@pytest.fixture
def judge(wired: KafkaCluster) -> Iterator[Cluster]:
    found = Cluster(wired)
    yield found
    found.close()


class Both:
    """Sends each number with an idempotent producer to one topic, and with one that is not to another."""

    def __init__(self, servers: str, topics: Mapping[bool, str], options: Mapping[str, Any]) -> None:
        options = {"bootstrap.servers": servers, "acks": "all", "linger.ms": 0, "log_level": 0, **SOON, **options}
        self._producers = {topic: Producer({**options, "enable.idempotence": each}) for each, topic in topics.items()}
        self._delivered: set[str | None] = set()
        self._failed: list[KafkaError] = []
        self._left = -1
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        numbers = itertools.count()
        while not self._ending.wait(0.005):
            number = str(next(numbers))
            for topic, producer in self._producers.items():
                producer.produce(topic, number, partition=0, on_delivery=self._told)
                producer.poll(0)
        self._left = sum(producer.flush(PATIENCE_S) for producer in self._producers.values())

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._delivered.add(message.topic())
        else:
            self._failed.append(error)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Until the block ends; then all that was sent is delivered."""
        self._thread.start()
        try:
            eventually(lambda: len(self._delivered), lambda topics: topics == 2, "both deliver", PATIENCE_S)
            yield
        finally:
            self._ending.set()
            self._thread.join(2 * PATIENCE_S)
        assert self._left == 0
        assert not self._failed


def repeated(judge: Cluster, topic: str) -> int:
    """How many numbers stand in a topic more than once."""
    return sum(count > 1 for count in Counter(value for _, _, value in judge.read(topic)).values())


@pytest.mark.parametrize(
    ("fault", "seed", "options"),
    [
        pytest.param(DuplicateRequests(kinds=PRODUCE), 1, {}, id="duplicate-requests"),
        pytest.param(DelayRequests(kinds=PRODUCE), 1, IMPATIENT, id="delay-requests"),
        pytest.param(CutConnections(kinds=PRODUCE), 1, {}, id="cut-connections"),
        pytest.param(CutConnections(kinds=PRODUCE), 3, {}, id="cut-connections, torn"),
        pytest.param(OneWayCut(), 0, {}, id="one-way-cut"),
    ],
)
def test_it_repeats_what_a_producer_sends_that_is_not_idempotent(
    wired: KafkaCluster,
    judge: Cluster,
    fault: DuplicateRequests | DelayRequests | CutConnections | OneWayCut,
    seed: int,
    options: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the two ways the seeds draw that of the answers: a request that does not arrive is sent again by right.

    Where both hardly had a processor while the fault lasted, it met nothing: then it comes again.
    """
    monkeypatch.setattr(network, "_LASTS_S", LASTS_S)
    world = BareWorld(wired)
    idempotent, plain = (judge.make_topic(partitions=1) for _ in range(2))
    with Both(wired.bootstrap_servers, {True: idempotent, False: plain}, options).at_work():
        for _ in range(CHANCES):
            fault.inject(world.as_world(), Random(seed))
            if repeated(judge, plain):
                break
    assert repeated(judge, plain)
    assert not repeated(judge, idempotent)
