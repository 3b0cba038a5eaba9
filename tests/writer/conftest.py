"""What the writer's tests share: a mortal broker, and one whose answers can be lost on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from onceflow.broker import EmbeddedBroker
from onceflow.verify.cluster import KafkaCluster
from onceflow.writer import limits
from onceflow.writer.writer import Writer

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of this directory share

from tests.forkserver import ForkServer
from tests.three_brokers import BrokersOf, brokers_of
from tests.writer.on_a_loop import OnLoop
from tests.writer.wire import ProxiedBroker, WireProxy


@pytest.fixture(autouse=True)
def limits_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy broker may say late what a topic takes; then it is not known, and the broker refuses what is larger."""
    monkeypatch.setattr(limits, "_PATIENCE_S", 60.0)


@pytest.fixture
def writer(request: pytest.FixtureRequest) -> Iterator[Callable[..., Writer | OnLoop]]:
    """Makes open writers, on ``broker`` where no other is named; they are ended with the test, whatever they hold.

    Its parameter, if a test gives one, is the class.
    """
    made: list[Writer | OnLoop] = []
    kind: type[Writer | OnLoop] = getattr(request, "param", Writer)

    def make(
        transactional_id: str | None = None, *, on: str | None = None, kafka: Mapping[str, object] | None = None
    ) -> Writer | OnLoop:
        servers = on or request.getfixturevalue("broker").bootstrap_servers
        new = kind(bootstrap_servers=servers, source="shop", transactional_id=transactional_id, kafka=kafka)
        made.append(new)
        return new.open()

    yield make
    for each in made:
        each._end()


@pytest.fixture(scope="session")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Services in processes of their own."""
    with ForkServer("tests.writer.victim", tmp_path_factory.mktemp("victims")) as found:
        yield found


@pytest.fixture(scope="session")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], EmbeddedBroker]]:
    """A broker for tests that kill it; running when it is asked for. Its ids expire within seconds."""
    config = {
        "producer.id.expiration.ms": "1000",
        "producer.id.expiration.check.interval.ms": "500",
        "transactional.id.expiration.ms": "1500",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    broker = EmbeddedBroker(tmp_path_factory.mktemp("mortal-writer"), heap_mb=256, config=config)

    def get() -> EmbeddedBroker:
        return broker if broker.is_running else broker.start()

    yield get
    broker.kill()


@pytest.fixture(scope="session")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker for tests that kill it and start it again; unlike ``mortal`` it remembers its producers meanwhile."""
    with EmbeddedBroker(tmp_path_factory.mktemp("killable-writer"), heap_mb=256) as broker:
        yield broker


@pytest.fixture(scope="session")
def punctual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that ends a transaction soon after its timeout, not up to 10 s later; its groups may give members up soon.

    It makes a topic of whatever name it is asked for, which is Kafka's default.
    """
    config = {
        "auto.create.topics.enable": "true",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "group.min.session.timeout.ms": "1000",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("punctual"), heap_mb=256, config=config) as broker:
        yield broker


@pytest.fixture(scope="session")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedBroker]:
    """A broker that clients reach through a proxy alone."""
    with WireProxy() as proxy, ProxiedBroker(tmp_path_factory.mktemp("proxied"), proxy) as broker:
        yield broker


@pytest.fixture(scope="module")
def shared_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokersOf]:
    """Three brokers of a transaction version; whoever breaks them heals them (``heal``)."""
    with brokers_of(tmp_path_factory) as started:
        yield started


@pytest.fixture
def three_brokers(shared_three: BrokersOf) -> KafkaCluster:
    """Of version 2, for what has no part in a transaction."""
    return shared_three(2)
