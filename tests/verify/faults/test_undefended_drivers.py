"""What faults of the brokers break of the production protocol when it, or its client, lacks one defence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import tests.faults.light
from confluent_kafka.admin import NewTopic
from tests.faults.light import Job, LightDriver, records_of
from tests.faults.support import Cluster, eventually
from tests.new_topics import create
from tests.verify.faults.bare import PATIENCE_S, BareWorld, SteadyDriver

from onceflow.errors import Fenced
from onceflow.kafka.client import GROUP, TRANSACTION, KafkaClient, Topic
from onceflow.kafka.missing import SURE_S
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults.brokers import KillCoordinator, MoveCoordinator, MoveLeader, Role
from onceflow.verify.faults.foreign import hijack
from onceflow.verify.simulator.variants import VARIANTS

pytestmark = pytest.mark.faults

LEADERS = -1  # beside the kinds of coordinators
TIMES = 3
BATCHES = 2


@pytest.fixture
def judge(three_brokers: KafkaCluster) -> Iterator[Cluster]:
    found = Cluster(three_brokers)
    yield found
    found.close()


class Settled(KafkaClient):
    """Keeps to the coordinator of one kind that it has found once, or to the leaders, until it may look again."""

    def __init__(self, on: int, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._on = on
        self.may_look = False
        self.misled = 0  # how often it would have looked again

    def forget_coordinator(self, kind: int, key: str) -> None:
        self.misled += kind == self._on
        if self.may_look or kind != self._on:
            super().forget_coordinator(kind, key)

    def topics(self, names: Iterable[str], *, refresh: bool = False, sure_s: float = SURE_S) -> dict[str, Topic]:
        self.misled += refresh and self._on == LEADERS
        return super().topics(names, refresh=refresh and (self.may_look or self._on != LEADERS), sure_s=sure_s)


@pytest.mark.parametrize(
    ("fault", "on"),
    [
        pytest.param(MoveCoordinator("move", Role.TRANSACTIONS), TRANSACTION, id="move-transaction-coordinator"),
        pytest.param(MoveCoordinator("move", Role.OFFSETS), GROUP, id="move-group-coordinator"),
        pytest.param(KillCoordinator("kill", Role.TRANSACTIONS), TRANSACTION, id="kill-coordinator"),
        pytest.param(KillCoordinator("kill", Role.OFFSETS), GROUP, id="kill-group-coordinator", marks=pytest.mark.long),
        pytest.param(MoveLeader(), LEADERS, id="move-leader"),
    ],
)
def test_who_never_looks_again_stands_still(
    three_brokers: KafkaCluster,
    judge: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: MoveCoordinator | MoveLeader | KillCoordinator,
    on: int,
) -> None:
    """All brokers are well again, and those that it asks answer that they are the wrong ones; as soon as it looks it goes on."""
    clients: list[Settled] = []

    def settled(*arguments: Any, **named: Any) -> Settled:
        clients.append(Settled(on, *arguments, **named))
        return clients[-1]

    monkeypatch.setattr(tests.faults.light, "KafkaClient", settled)
    driver = SteadyDriver(three_brokers, tmp_path)
    try:
        driver.goes_on()
        (client,) = clients
        fault.inject(BareWorld(three_brokers, driver).as_world(), Random(1))
        await_misled(client)
        batches = driver.batches
        await_misled(client)
        assert driver.batches == batches
        client.may_look = True
        driver.goes_on()
    finally:
        for each in clients:
            each.may_look = True
        written = driver.end()
    judge.check_exactly(driver.name, written)


def await_misled(client: Settled) -> None:
    wanted = client.misled + TIMES
    eventually(lambda: client.misled, lambda times: times >= wanted, "it asks the wrong ones", PATIENCE_S)


class Hijacked(LightDriver):
    """Loses its transactional id just before the commit of its last batch."""

    hijack: Callable[[], None]

    @property
    def name(self) -> str:
        return self.job.name

    def step(self, step: str, batch_id: int) -> None:
        if (step, batch_id) == ("COMMIT", BATCHES - 1) and (step, batch_id) not in self.steps:
            self.hijack()
        super().step(step, batch_id)


@pytest.mark.parametrize("variant", ["", "unknown is committed"])
def test_who_takes_a_refused_commit_for_done_loses_what_a_hijack_aborted(
    three_brokers: KafkaCluster, judge: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    if variant:
        monkeypatch.setattr(tests.faults.light, "Protocol", VARIANTS[variant].machine)
    topic = judge.unique("hijacked")
    create(judge.admin, NewTopic(topic, 1), PATIENCE_S)
    three_brokers.wait_until_healthy()  # the answer comes before all of them know the topic
    checkpoint = str(tmp_path / topic)
    job = Job(three_brokers.bootstrap_servers, topic, topic, checkpoint, batches=BATCHES, patience_s=PATIENCE_S)
    driver = Hijacked(job)
    world = BareWorld(three_brokers, cast(SteadyDriver, driver))
    driver.hijack = lambda: hijack(world.as_world())
    with suppress(Fenced):
        driver.run()
    driver.run()  # as a supervisor starts it again; what is done is not done again
    assert world.notes
    assert driver.done() == BATCHES
    lost = [] if not variant else records_of(BATCHES - 1)
    expected = [record for batch in range(BATCHES) for record in records_of(batch)]
    judge.check_exactly(topic, [record for record in expected if record not in lost])
