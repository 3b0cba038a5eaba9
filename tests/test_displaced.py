"""Who fenced a driver: one that goes on in its place, or nobody."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.broker import EmbeddedBroker
from onceflow.config import load
from onceflow.errors import Displaced, Fenced
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline import displaced
from onceflow.pipeline.displaced import told_apart
from onceflow.transaction.anchor import ensure_anchor_topic
from onceflow.transaction.coordinator import TransactionCoordinator
from onceflow.transaction.protocol import Protocol, Settings
from onceflow.transaction.requests import Requests

NOBODY = "127.0.0.1:9"


class Fencing:
    """Drivers of one pipeline, none of which has a Spark."""

    def __init__(self, client: KafkaClient, settings: ClusterSettings, directory: Path) -> None:
        file = directory / "pipeline.toml"
        file.write_text(
            f'name = "{directory.name}"\n[kafka]\nbootstrap_servers = "{NOBODY}"\n[[source]]\nname = "s"\ntopics = ["in"]\n'
            'format = "raw"\n[[sink]]\nfrom = "s"\ntopic = "out"\nvalue = "value"\n'
        )
        self.plan = load(file, {}).plan
        self.settings = settings
        self._version = client.transaction_version()
        self.requests = Requests(client, self.plan.name, self._version, timeout_ms=60_000)

    def driver(self, name: str) -> TransactionCoordinator:
        """One that has claimed the name."""
        started = TransactionCoordinator(self.requests, Protocol(Settings(name, self._version >= 2)))
        started.start()
        return started

    def driver_that_is_fenced_before_it_claims(self, name: str) -> Fenced:
        """Its error."""

        def on_step(step: str, batch_id: int) -> None:
            if step == "READ":
                self.requests.initialise(None)

        return self.error_of(
            TransactionCoordinator(self.requests, Protocol(Settings(name, self._version >= 2)), on_step)
        )

    def error_of(self, driver: TransactionCoordinator) -> Fenced:
        """What a driver ends with that somebody fenced."""
        with pytest.raises(Fenced) as raised:
            driver.start()
        error: Fenced = pickle.loads(pickle.dumps(raised.value))
        return error


@pytest.fixture
def fencing(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Fencing]:
    settings = ClusterSettings.of(broker.bootstrap_servers)
    with KafkaClient(settings.for_protocol()) as client:
        ensure_anchor_topic(client)
        yield Fencing(client, settings, tmp_path)


class Clock:
    """Which goes on when somebody waits. ``meanwhile`` is done then, once."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self._meanwhile = iter([meanwhile])

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for do in self._meanwhile:
            do()


def test_whoever_took_the_transactional_id_alone_has_taken_nothing_over(
    fencing: Fencing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = fencing.driver("ours")
    fencing.requests.initialise(None)
    fenced = fencing.error_of(ours)
    clock = Clock()
    monkeypatch.setattr(displaced, "time", clock)
    told = told_apart(fenced, fencing.plan, fencing.settings)
    assert isinstance(told, Displaced)
    assert told.message == f"{fenced.message}; nobody has claimed the name within 10 s"
    assert clock.now == displaced.PATIENCE_S
    fencing.driver("the next one")  # nothing is in its way


def test_a_driver_that_claims_the_name_a_moment_later_has_taken_over(
    fencing: Fencing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = fencing.driver("ours")
    fencing.requests.initialise(None)
    fenced = fencing.error_of(ours)
    clock = Clock(lambda: fencing.driver("the newer one"))
    monkeypatch.setattr(displaced, "time", clock)
    assert told_apart(fenced, fencing.plan, fencing.settings) is fenced
    assert 0 < clock.now < 1, "seen at the next look"


def test_a_driver_that_was_fenced_before_it_could_claim_tells_the_claim_that_it_found_from_a_new_one(
    fencing: Fencing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a standby whose own early fence is handled late."""
    fencing.driver("the one before")
    ours = fencing.driver_that_is_fenced_before_it_claims("ours")
    monkeypatch.setattr(displaced, "time", Clock())
    assert isinstance(told_apart(ours, fencing.plan, fencing.settings), Displaced)
    fencing.driver("the newer one")
    assert told_apart(ours, fencing.plan, fencing.settings) is ours


def test_where_the_cluster_does_not_answer_somebody_may_have_taken_over(
    fencing: Fencing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = fencing.driver("ours")
    fencing.requests.initialise(None)
    fenced = fencing.error_of(ours)
    monkeypatch.setattr(displaced, "PATIENCE_S", 0.5)
    assert told_apart(fenced, fencing.plan, ClusterSettings.of(NOBODY)) is fenced
