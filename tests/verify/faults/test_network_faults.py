"""Each fault of the network really happens, and costs a pipeline that commits all the time not one record."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import cast

import pytest
import tests.faults.light
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.admin import DescribeTransactionsRequest
from tests.faults.support import Cluster, eventually
from tests.verify.faults.bare import PATIENCE_S, BareWorld, SteadyDriver

from onceflow.broker import EmbeddedBroker
from onceflow.kafka.client import TRANSACTION, KafkaClient
from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Event, Identity
from onceflow.transaction.performing import Performer
from onceflow.transaction.questions import Questions
from onceflow.transaction.requests import Requests
from onceflow.transaction.talk import Pace
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults import network
from onceflow.verify.faults.network import (
    CutConnections,
    DelayRequests,
    DuplicateRequests,
    LateEndTxn,
    LoseEndTxnAnswer,
    OneWayCut,
)
from onceflow.verify.simulator.variants import VARIANTS
from onceflow.verify.wire import Do, Rule, apis
from onceflow.verify.wire.rules import ActiveRule

pytestmark = pytest.mark.faults

ARRIVED = "the late EndTxn arrived while the next transaction was open"
CHANCES = 3
FREQUENT = {kind: apis.KINDS[kind] for kind in ("PRODUCE", "TXN_OFFSET_COMMIT", "END_TXN")}


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def wired(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker behind a wire, of each transaction version."""
    directory = tmp_path_factory.mktemp("wired")
    with KafkaCluster(directory, transaction_version=request.param, wire=True) as cluster:
        yield cluster


@pytest.fixture
def world(wired: KafkaCluster, tmp_path: Path) -> Iterator[BareWorld]:
    """With a driver that writes; at the end all it has committed is there exactly once."""
    driver = SteadyDriver(wired, tmp_path)
    driver.goes_on()
    yield BareWorld(wired, driver)
    driver.goes_on()
    judge = Cluster(cast(EmbeddedBroker, wired))
    written = driver.end()
    judge.check_exactly(driver.name, written)
    judge.close()


def test_lose_endtxn_answer(world: BareWorld) -> None:
    for seed in range(3):
        LoseEndTxnAnswer().inject(world.as_world(), Random(seed))
        assert (met := re.match(r"(\d) of (\d) ", world.notes[-1]))
        assert met[1] == met[2]
    assert "ABORT" not in world.driver_of_batches.steps


def test_late_endtxn(world: BareWorld) -> None:
    for seed in range(3):
        LateEndTxn().inject(world.as_world(), Random(seed))
        assert world.notes[-1] == ARRIVED


@pytest.fixture
def silent(wired: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BareWorld]:
    """With a driver whose batches have no output: its transactions are of offsets alone."""
    monkeypatch.setattr(tests.faults.light.LightDriver, "_write", lambda driver, identity, batch: {})
    driver = SteadyDriver(wired, tmp_path)
    driver.goes_on()
    yield BareWorld(wired, driver)
    driver.goes_on()
    driver.end()


def test_late_endtxn_of_transactions_without_output(silent: BareWorld) -> None:
    """As most are of a plan over long windows, or behind a filter that seldom lets something pass."""
    for seed in range(3):
        LateEndTxn().inject(silent.as_world(), Random(seed))
        assert silent.notes[-1] == ARRIVED
    assert not silent.misses


def test_the_next_transaction_is_open_when_a_late_endtxn_arrives(
    silent: BareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of offsets alone has ended some milliseconds after it began; an EndTxn that comes then is late for nothing."""
    states, release = list[str](), ActiveRule.release

    def look_first(active: ActiveRule) -> None:
        if active.rule.do is Do.HOLD and not active.is_released:
            states.append(state_of_transaction(silent))
        release(active)

    monkeypatch.setattr(ActiveRule, "release", look_first)
    for seed in range(3):
        LateEndTxn().inject(silent.as_world(), Random(seed))
    assert states == ["Ongoing"] * 3


def state_of_transaction(world: BareWorld) -> str:
    request = DescribeTransactionsRequest(transactional_ids=[world.transactional_id])
    with KafkaClient({"bootstrap_servers": [world.kafka.direct_servers]}, patience_s=PATIENCE_S) as client:
        answer = client.ask_coordinator(TRANSACTION, world.transactional_id, request)
    return str(answer.transaction_states[0].transaction_state)


def test_a_late_endtxn_that_comes_when_the_next_transaction_has_ended_has_missed(
    silent: BareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_KEPT_OPEN_S", 0.0)
    wait_applied, ends = ActiveRule.wait_applied, silent.kafka.wires[0].seen

    def after_its_end(active: ActiveRule, times: int = 1, timeout_s: float = PATIENCE_S) -> bool:
        """Whoever looks for the opening hears of it when one more EndTxn has come."""
        applied = wait_applied(active, times, timeout_s)
        if active.rule.apis == network._OPENING:
            before = ends[apis.END_TXN]
            eventually(lambda: ends[apis.END_TXN], lambda now: now > before, "the next EndTxn", PATIENCE_S)
        return applied

    monkeypatch.setattr(ActiveRule, "wait_applied", after_its_end)
    LateEndTxn().inject(silent.as_world(), Random(1))
    assert silent.misses == ["the next transaction ended before the late EndTxn had arrived"]


@pytest.mark.long
def test_late_endtxn_that_nothing_follows_has_missed(silent: BareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no reason to break the run off."""
    monkeypatch.setattr(network, "_OPENING", frozenset[int]())
    monkeypatch.setattr(network, "_PATIENCE_S", 30.0)
    LateEndTxn().inject(silent.as_world(), Random(1))
    assert silent.misses == ["no transaction was begun before the late EndTxn arrived"]


@pytest.mark.parametrize(
    "fault", [DelayRequests(kinds=FREQUENT), DuplicateRequests(kinds=FREQUENT)], ids=lambda fault: fault.name
)
@pytest.mark.in_turn(2)
def test_requests_are_delayed_or_doubled(world: BareWorld, fault: DelayRequests | DuplicateRequests) -> None:
    fault.inject(world.as_world(), Random(1))
    assert (met := re.match(r"(\d+) of (\d+) ", world.notes[-1]))
    assert int(met[1]) > 0


@pytest.mark.parametrize("fault", [DelayRequests(), DuplicateRequests()], ids=lambda fault: fault.name)
@pytest.mark.in_turn(2)
def test_where_no_request_of_the_kinds_that_were_drawn_comes_others_are_drawn(
    world: BareWorld, fault: DelayRequests | DuplicateRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some come in a start alone, and what met nothing shows nothing."""
    draws = list[tuple[str, frozenset[int]]]()
    monkeypatch.setattr(network, "_drawn", lambda random, kinds: draws.pop(0))
    for _ in range(CHANCES):  # on a slow machine the driver may write nothing for as long as a rule lasts
        draws[:] = [("of others", frozenset({apis.LIST_OFFSETS})), ("PRODUCE", FREQUENT["PRODUCE"])]
        fault.inject(world.as_world(), Random(1))
        assert not draws
        if " PRODUCE " in world.notes[-1]:
            break
    assert not world.misses
    assert re.match(r"[1-9]\d* of \d+ PRODUCE ", world.notes[-1])


def test_cut_connections(world: BareWorld) -> None:
    CutConnections(kinds=FREQUENT).inject(world.as_world(), Random(1))
    assert (met := re.match(r"(\d+) connections were cut, (\d+) more", world.notes[-1]))
    assert int(met[1]) > 0
    assert not world.misses


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.in_turn(2)
def test_one_way_cut(world: BareWorld, seed: int) -> None:
    OneWayCut().inject(world.as_world(), Random(seed))
    assert (met := re.match(r"(\d+) connections of node 1 lost every (request|answer)", world.notes[-1]))
    assert int(met[1]) > 0
    assert not world.misses


@pytest.mark.parametrize("fault", [CutConnections(), OneWayCut()], ids=lambda fault: fault.name)
@pytest.mark.in_turn(2)
def test_a_cut_that_cuts_nothing_has_missed(
    wired: KafkaCluster, fault: CutConnections | OneWayCut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_LASTS_S", (0.1, 0.2))
    eventually(lambda: [wire.connections for wire in wired.wires], lambda each: not any(each), "nobody is connected")
    world = BareWorld(wired)
    fault.inject(world.as_world(), Random(1))
    assert len(world.misses) == 1
    assert re.match("0 connections ", world.misses[0])


def test_control_a_late_endtxn_commits_what_a_plain_producer_aborts(wired: KafkaCluster) -> None:
    """librdkafka begins the next transaction under the same epoch, so the late request commits it (KAFKA-17754)."""
    topic = f"control-{wired.transaction_version}"
    admin = AdminClient({"bootstrap.servers": wired.direct_servers})
    admin.create_topics([NewTopic(topic)])[topic].result(PATIENCE_S)
    options = {"bootstrap.servers": wired.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    producer = Producer(options)
    producer.init_transactions(PATIENCE_S)
    rule = Rule(Do.HOLD, frozenset({apis.END_TXN}), count=1)
    with wired.rules.during(rule) as (held,):
        producer.begin_transaction()
        producer.produce(topic, "committed")
        producer.commit_transaction(PATIENCE_S)
        assert held.applied == 1
        producer.begin_transaction()
        producer.produce(topic, "aborted")
        assert producer.flush(PATIENCE_S) == 0
    judge = Cluster(cast(EmbeddedBroker, wired))
    judge.stable_end(topic)  # nobody has ended the second transaction but the late request
    with suppress(KafkaException):
        producer.abort_transaction(PATIENCE_S)
    assert [value for _, _, value in judge.read(topic)] == ["committed", "aborted"]
    judge.close()


class CommitsOnce(Requests):
    """Sends a commit once, whatever becomes of it."""

    def end(self, identity: Identity, commit: bool) -> Event:
        if not commit:
            return super().end(identity, commit)
        asking = Asking(Questions(self.name, self.version, self.timeout_ms), Pace.real(0))
        return Performer(self.client, self.id).run(asking.end(identity, commit))


def test_control_who_aborts_a_commit_without_an_answer_writes_again_what_is_committed(
    wired: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tests.faults.light, "Requests", CommitsOnce)
    monkeypatch.setattr(tests.faults.light, "Protocol", VARIANTS["abort after commit"].machine)
    driver = SteadyDriver(wired, tmp_path)
    driver.goes_on()
    LoseEndTxnAnswer().inject(BareWorld(wired).as_world(), Random(1))
    driver.goes_on()
    written = driver.end()
    judge = Cluster(cast(EmbeddedBroker, wired))
    found = Counter(str(value) for _, _, value in judge.read(driver.name))
    judge.close()
    assert set(found) == {value for _, value in written}
    assert max(found.values()) > 1
    assert "ABORT" in driver.steps
