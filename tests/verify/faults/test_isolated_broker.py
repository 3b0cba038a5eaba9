"""A broker that its peers cannot reach, and its clients can: one way and both, whatever it leads and coordinates.

And a leader that freezes with what nobody has followed yet, and leaders that hear nothing of what is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tests.faults.light
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.faults.light import Job, LightDriver, records_of
from tests.faults.support import Cluster, eventually, expected_records
from tests.faults.takeover import Died, Dying, listen
from tests.verify.faults.bare import PATIENCE_S, BareWorld, SteadyDriver
from tests.writer.refusing import refuse_commit

import onceflow.writer.writer
from onceflow.errors import BrokerUnreachable, Fenced, OutcomeForgotten, OutcomeUnknown, TransactionAborted
from onceflow.kafka import codes
from onceflow.kafka.client import GROUP, TRANSACTION, Again, KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.kafka_python import EndTxnRequest, FindCoordinatorRequest
from onceflow.transaction.asking import Asking
from onceflow.transaction.enrolling import enrol
from onceflow.transaction.messages import Coordinated, Described, Ended, Identity, Initialised, Snapshot
from onceflow.transaction.performing import Performer
from onceflow.transaction.questions import Questions
from onceflow.transaction.requests import Requests, transactional_id
from onceflow.transaction.talk import Pace
from onceflow.verify.cluster import KafkaCluster, Node, placement
from onceflow.verify.faults.brokers import PauseBroker
from onceflow.verify.faults.isolated import IsolateBroker, Way, cut_off
from onceflow.verify.wire import ActiveRule, Direction, Do, Rule, apis
from onceflow.writer.coordination import State, Transactions
from onceflow.writer.ledger import Found, Ledger
from onceflow.writer.marker import Marker
from onceflow.writer.writer import Writer

pytestmark = pytest.mark.faults

EVENTS = [str(number) for number in range(20)]
GONE = [Way.OUT, Way.BOTH]  # the others miss it
TIMEOUT_S = 120.0


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def meshed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers that reach each other through wires, of each transaction version."""
    directory = tmp_path_factory.mktemp("meshed")
    with KafkaCluster(directory, brokers=3, transaction_version=request.param, heap_mb=192, between=True) as cluster:
        yield cluster


@pytest.fixture
def judge(meshed: KafkaCluster) -> Iterator[Cluster]:
    found = Cluster(meshed)
    yield found
    found.close()


def topic_of(cluster: KafkaCluster, judge: Cluster) -> tuple[str, Node]:
    """A topic of one partition with three replicas, and who leads it."""
    name = judge.unique("isolated")
    judge.admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    cluster.wait_until_healthy()
    return name, cluster.leader(name, 0)


def another_leads(cluster: KafkaCluster, topic: str, old: Node) -> bool:
    """As those see it who are not cut off."""
    other = cluster.others(old)[0]
    try:
        return placement.view(cluster.client, other.id, topics=[topic]).partitions[topic, 0].leader not in (-1, old.id)
    except Again:
        return False


def beginning_with(node: Node, way: Way, cluster: KafkaCluster) -> Random:
    """A source of chances whose first choices are these."""
    for seed in range(1000):
        random = Random(seed)
        if (random.choice(cluster.nodes), random.choice(list(Way))) == (node, way):
            return Random(seed)
    raise AssertionError(node)


WHO: dict[str, Callable[[KafkaCluster, SteadyDriver], Node]] = {
    "leader": lambda cluster, driver: cluster.leader(driver.name, 0),
    "coordinator": lambda cluster, driver: cluster.transaction_coordinator(f"onceflow-{driver.name}"),
}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("way", Way, ids=lambda way: way.name.lower())
@pytest.mark.in_turn(3)
def test_a_driver_goes_on_and_writes_once(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, way: Way, who: str
) -> None:
    driver = SteadyDriver(meshed, tmp_path)
    driver.goes_on()
    node, world = WHO[who](meshed, driver), BareWorld(meshed, driver)
    IsolateBroker().inject(world.as_world(), beginning_with(node, way, meshed))
    assert world.notes[-1].startswith(f"node {node.id} {way}: ")
    assert not world.misses
    driver.goes_on()
    judge.check_exactly(driver.name, driver.end())


@pytest.mark.parametrize("way", GONE, ids=lambda way: way.name.lower())
def test_a_writer_s_events_are_there_once(meshed: KafkaCluster, judge: Cluster, way: Way) -> None:
    """Nothing is acknowledged that the isolated leader has alone."""
    topic, leader = topic_of(meshed, judge)
    with Writer(bootstrap_servers=meshed.bootstrap_servers, source="shop") as writer:
        writer.send(topic, b"before", id="before").result()
        with meshed.peer_rules.during(*cut_off(meshed, leader, way)):
            sent = [writer.send(topic, text.encode(), id=text) for text in EVENTS]
            eventually(lambda: another_leads(meshed, topic, leader), bool, "another leader", PATIENCE_S)
        for delivery in sent:
            delivery.result()
    meshed.wait_until_healthy()
    assert [value for _, _, value in judge.read(topic)] == ["before", *EVENTS]


@pytest.mark.parametrize("way", GONE, ids=lambda way: way.name.lower())
def test_control_with_acks_of_the_leader_alone_they_are_lost(meshed: KafkaCluster, judge: Cluster, way: Way) -> None:
    """It acknowledges what it takes while nobody follows, and drops it when it follows."""
    topic, leader = topic_of(meshed, judge)
    lost = Producer({"bootstrap.servers": meshed.bootstrap_servers, "acks": 1, "log_level": 0})
    lost.produce(topic, "before")  # it knows the leader, and is connected to it
    assert lost.flush(TIMEOUT_S) == 0
    eventually(lambda: judge.read(topic), bool, "the event is with all of them", PATIENCE_S)
    with meshed.peer_rules.during(*cut_off(meshed, leader, way)):
        for text in EVENTS:
            lost.produce(topic, text)
        assert lost.flush(TIMEOUT_S) == 0, "all of them are acknowledged"
        eventually(lambda: another_leads(meshed, topic, leader), bool, "another leader", PATIENCE_S)
    meshed.wait_until_healthy()
    assert [value for _, _, value in judge.read(topic)] == ["before"]


# ------------------------------------------------------------------------- a leader that freezes, and wakes as none


@contextmanager
def nobody_follows(cluster: KafkaCluster, leader: Node) -> Iterator[None]:
    """Followers ask the leader for its records, and nothing arrives of what it answers; all else does, so nobody misses them."""
    lost = Rule(Do.DROP, frozenset({apis.FETCH}), Direction.ANSWER, nodes=frozenset({leader.id}), client="^broker-")
    with cluster.peer_rules.during(lost):
        yield


def freeze(cluster: KafkaCluster, leader: Node) -> None:
    """Until another one leads; then it wakes, and hears of that."""
    seed = next(seed for seed in range(1000) if Random(seed).choice(cluster.nodes) is leader)
    world = BareWorld(cluster)
    PauseBroker().inject(world.as_world(), Random(seed))
    assert world.notes == [f"node {leader.id} frozen"]


def is_written(node: Node, topic: str, text: str) -> bool:
    """Whether a node has it in its log."""
    return any(text.encode() in file.read_bytes() for file in node.directory.rglob(f"{topic}-0/*.log"))


def test_a_writer_s_events_are_there_once_though_the_leader_froze_that_alone_had_them(
    meshed: KafkaCluster, judge: Cluster
) -> None:
    topic, leader = topic_of(meshed, judge)
    events = [f"event {text}" for text in EVENTS]
    with Writer(bootstrap_servers=meshed.bootstrap_servers, source="shop") as writer:
        writer.send(topic, b"before", id="before").result()
        with nobody_follows(meshed, leader):
            sent = [writer.send(topic, text.encode(), id=text) for text in events]
            eventually(lambda: is_written(leader, topic, events[-1]), bool, "it has them", PATIENCE_S)
            assert not any(is_written(node, topic, events[0]) for node in meshed.others(leader))
            freeze(meshed, leader)
        for delivery in sent:
            delivery.result()
    assert [value for _, _, value in judge.read(topic)] == ["before", *events]


def test_control_with_acks_of_the_leader_alone_what_it_freezes_with_is_lost(
    meshed: KafkaCluster, judge: Cluster
) -> None:
    """It acknowledged what nobody had followed, and drops it when it wakes and hears that another one leads."""
    topic, leader = topic_of(meshed, judge)
    lost = Producer({"bootstrap.servers": meshed.bootstrap_servers, "acks": 1, "log_level": 0})
    lost.list_topics(topic, TIMEOUT_S)
    with nobody_follows(meshed, leader):
        for text in EVENTS:
            lost.produce(topic, text)
        assert lost.flush(TIMEOUT_S) == 0, "all of them are acknowledged"
        freeze(meshed, leader)
    assert not judge.read(topic)


# ------------------------------------------------------------------------- markers that do not come to the leaders

TIMES = 8  # that the next driver asks in vain


class Unheard(Dying):
    """Its commit is answered, and it ends; the leaders do not hear of it."""

    def __init__(self, job: Job, lose_markers: Callable[[], object]) -> None:
        super().__init__(job, "DONE")
        self._lose_markers = lose_markers

    def step(self, step: str, batch_id: int) -> None:
        if (step, batch_id) == ("COMMIT", 0):
            self._lose_markers()
        super().step(step, batch_id)


def test_who_takes_over_asks_again_as_long_as_the_markers_of_the_one_before_are_not_written(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CONCURRENT_TRANSACTIONS each time, at which franz-go gave up. See ``tests/faults/test_known_bugs.py`` for who gives up."""
    topic, _ = topic_of(meshed, judge)
    job = Job(meshed.bootstrap_servers, topic, topic, str(tmp_path / topic), patience_s=PATIENCE_S)
    markers = Rule(Do.DROP, frozenset({apis.WRITE_TXN_MARKERS}))
    lost: list[ActiveRule] = []
    told: list[int] = []
    with ExitStack() as losing:

        def hear(code: int) -> None:
            told.append(code)
            if told.count(codes.CONCURRENT_TRANSACTIONS) == TIMES:
                losing.close()  # the coordinator finds the connection broken, and sends them again

        Unheard(job, lambda: lost.extend(losing.enter_context(meshed.peer_rules.during(markers)))).run()
        assert lost[0].wait_applied()
        listen(monkeypatch, hear)
        driver = LightDriver(job)
        driver.run()
    in_vain = told[: told.index(codes.NONE)]
    assert in_vain.count(codes.CONCURRENT_TRANSACTIONS) >= TIMES
    assert driver.done() == 2
    judge.check_exactly(topic, expected_records(2))


# ------------------------------------------------------------------------- a group coordinator that has been replaced


class DiesUnnoted(LightDriver):
    """Commits the batch, and is killed before its checkpoint knows."""

    def __init__(self, job: Job, last: int) -> None:
        super().__init__(job)
        self._last = last

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if (step, batch_id) == ("DONE", self._last):
            raise Died


class ToldByTheOld(KafkaClient):
    """The first one that it asks for the group's coordinator is the old one, which takes itself for it; the next is any node."""

    def __init__(self, old: Node, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._old: int | None = old.id

    def ask(self, node_id: int | None, request: Any) -> Any:
        if isinstance(request, FindCoordinatorRequest) and request.key_type == GROUP and self._old is not None:
            node_id, self._old = self._old, None
        return super().ask(node_id, request)


def alone_with_the_group(cluster: KafkaCluster, transactional_id: str, group: str, topic: str) -> Node:
    """Makes a node coordinate the group that neither coordinates the transactions of the id nor leads the topic."""
    node, other = cluster.others(cluster.transaction_coordinator(transactional_id))
    cluster.move_group_coordinator(group, node)
    cluster.move_leader(topic, 0, other)
    cluster.wait_until_healthy()
    return node


def taken_over_from_the_old(
    cluster: KafkaCluster, judge: Cluster, directory: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The topic into which two drivers wrote three batches, the second of them while the old coordinator was cut off."""
    topic, _ = topic_of(cluster, judge)
    name = judge.unique("replaced")
    group = alone_with_the_group(cluster, f"onceflow-{name}", f"onceflow-{name}", topic)
    options = {"request_timeout_ms": 5_000}
    job = Job(cluster.bootstrap_servers, name, topic, str(directory / name), 1, patience_s=PATIENCE_S, options=options)
    first = LightDriver(job)
    first.run_batch(first.open(), 0)
    assert first.requests.read_committed().progress, "its markers are written, and with all replicas"
    first.close()
    with cluster.peer_rules.during(*cut_off(cluster, group, way)):
        eventually(lambda: cluster.is_fenced(group), bool, "the others miss it", PATIENCE_S)
        others = ",".join(node.address for node in cluster.others(group))
        with pytest.raises(Died):
            DiesUnnoted(replace(job, batches=2, bootstrap_servers=others), 1).run()
        monkeypatch.setattr(tests.faults.light, "KafkaClient", partial(ToldByTheOld, group))
        LightDriver(replace(job, batches=3, bootstrap_servers=group.address)).run()
    cluster.wait_until_healthy()
    return topic


@pytest.mark.parametrize("way", GONE, ids=lambda way: way.name.lower())
def test_who_takes_over_believes_no_group_coordinator_that_has_been_replaced(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not heard that another one took over, and answers with what it knows: not with the batch that came since."""
    topic = taken_over_from_the_old(meshed, judge, tmp_path, way, monkeypatch)
    judge.check_exactly(topic, expected_records(3))


def test_control_who_believes_it_writes_the_batch_a_second_time(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As onceflow did: KIP-447's stable read is answered by whoever takes itself for the coordinator."""
    store = Asking.store
    monkeypatch.setattr(
        Asking, "store", lambda asking, identity, progress, source, read: store(asking, identity, progress, source)
    )
    topic = taken_over_from_the_old(meshed, judge, tmp_path, Way.BOTH, monkeypatch)
    first, second, third = (records_of(batch) for batch in range(3))
    assert sorted((key, value) for _, key, value in judge.read(topic)) == sorted(first + second + second + third)


# ------------------------------------------------------------------- a transaction coordinator that has been replaced


def test_a_replaced_coordinator_says_that_a_transaction_is_committed_that_is_open_at_the_one_behind_it(
    meshed: KafkaCluster, judge: Cluster
) -> None:
    """The last thing that it heard of this epoch is a commit. So a writer looks up what is answered behind a lost connection."""
    topic, _ = topic_of(meshed, judge)
    name = judge.unique("ended")

    def opens(client: KafkaClient, identity: Identity) -> None:
        talk = enrol(transactional_id(name), identity, [(topic, 0)], Pace.real(PATIENCE_S))
        Performer(client, transactional_id(name)).run(talk)

    with KafkaClient(ClusterSettings.of(meshed.bootstrap_servers).for_protocol(), patience_s=PATIENCE_S) as client:
        requests = Requests(client, name, version=1, timeout_ms=60_000)
        (identity,) = [event.identity for event in [requests.initialise(None)] if isinstance(event, Initialised)]
        opens(client, identity)
        assert requests.end(identity, commit=True) == Ended(None)
        requests.describe(settle=True)  # else it has markers to write, and says that
    old = meshed.transaction_coordinator(requests.id)
    others = ",".join(node.address for node in meshed.others(old))
    with meshed.peer_rules.during(*cut_off(meshed, old, Way.BOTH)):
        eventually(lambda: meshed.is_fenced(old), bool, "the others miss it", PATIENCE_S)
        with (
            KafkaClient(ClusterSettings.of(others).for_protocol(), patience_s=PATIENCE_S) as client,
            KafkaClient(ClusterSettings.of(old.address).for_protocol(), patience_s=PATIENCE_S) as client_of_the_old,
        ):
            requests = Requests(client, name, version=1, timeout_ms=60_000)
            opens(client, identity)
            end = Questions(name, version=1, timeout_ms=60_000).end_txn(identity, commit=True)
            assert end.read(client_of_the_old.ask(old.id, end.request)) == Ended(None)
            assert requests.describe(settle=False) == Described(Snapshot(Coordinated.ONGOING, identity))
            requests.initialise(None)
    meshed.wait_until_healthy()


class BesideTheOld(KafkaClient):
    """Once ``misled``, it is named the old coordinator of the transactional id, and asks that one until it looks again."""

    def __init__(self, old: Node, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._old = old
        self._to_the_old = KafkaClient(ClusterSettings.of(old.address).for_protocol(), patience_s=PATIENCE_S)
        self._believes_it = self.misled = False
        self.told = list[int]()

    def ask(self, node_id: int | None, request: Any) -> Any:
        if isinstance(request, FindCoordinatorRequest) and request.key_type == TRANSACTION:
            self._believes_it, self.misled = self.misled, False
            node_id = self._old.id if self._believes_it else node_id
        if not self._believes_it or node_id != self._old.id:
            return super().ask(node_id, request)
        self._to_the_old.open()
        answer = self._to_the_old.ask(self._old.id, request)
        if isinstance(request, EndTxnRequest):
            self.told.append(answer.error_code)
        return answer

    def close(self) -> None:
        self._to_the_old.close()
        super().close()


class LosesTheConnection(LightDriver):
    """To whom it has opened the transaction of batch 1 with: who coordinates is looked up right before the commit."""

    @property
    def client(self) -> BesideTheOld:
        assert isinstance(self.requests.client, BesideTheOld)
        return self.requests.client

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        if (step, batch_id) == ("COMMIT", 1) and self.steps.count((step, batch_id)) == 1:
            self.client.misled = True
            self.client.forget_coordinator(TRANSACTION, self.requests.id)


def test_a_replaced_coordinator_says_that_of_no_batch_for_each_has_an_epoch_of_its_own(
    meshed: KafkaCluster, judge: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not heard of that, and shows what was before. Where that is an older identity (version 1), the driver stops as if
    it were fenced, and the next goes on; where it is the same, the driver finds out who coordinates when it fences. Where the old
    one leads the topic, too, it has begun to write down that the batch is in its partition, and asks for patience meanwhile.
    """
    topic, _ = topic_of(meshed, judge)
    name = judge.unique("refused")
    old = meshed.transaction_coordinator(f"onceflow-{name}")
    limits: dict[str, Any] = {"timeout_ms": 10_000, "patience_s": PATIENCE_S, "options": {"request_timeout_ms": 5_000}}
    job = Job(meshed.bootstrap_servers, name, topic, str(tmp_path / name), **limits)
    driver = LosesTheConnection(job)
    with monkeypatch.context() as patched:
        patched.setattr(tests.faults.light, "KafkaClient", partial(BesideTheOld, old))
        coordinator = driver.open()
    with ExitStack() as left:
        left.enter_context(closing(driver))
        driver.run_batch(coordinator, 0)
        driver.requests.describe(settle=True)  # else it has markers to write, and says that
        left.enter_context(meshed.peer_rules.during(*cut_off(meshed, old, Way.BOTH)))
        eventually(lambda: meshed.is_fenced(old), bool, "the others miss it", PATIENCE_S)
        with pytest.raises(Fenced) if meshed.transaction_version == 1 else nullcontext():
            driver.run_batch(coordinator, 1)
        assert driver.client.told
        assert set(driver.client.told) <= codes.REFUSED | {codes.CONCURRENT_TRANSACTIONS}
        others = ",".join(node.address for node in meshed.others(old))
        LightDriver(replace(job, batches=3, bootstrap_servers=others)).run()
    meshed.wait_until_healthy()
    judge.check_exactly(topic, expected_records(3))


# ----------------------------------------------------------- a replaced group coordinator, and what a writer takes from it


class LedgerOfTheOld(Ledger):
    """The first two questions are answered by the old coordinator: a look and what is read behind a fence, or that twice."""

    lies = 2

    def __init__(self, *arguments: Any, old: Node) -> None:
        super().__init__(*arguments)
        self._old = Ledger(ClusterSettings.of(old.address), *arguments[1:])
        self.told = list[Marker]()

    def read(self, *, stable: bool = True) -> Marker:
        return super().read(stable=stable) if len(self.told) >= self.lies else self._told_by_the_old().marker

    def read_with_nonce(self) -> Found:
        return super().read_with_nonce() if len(self.told) >= self.lies else self._told_by_the_old()

    def _told_by_the_old(self) -> Found:
        """librdkafka may ask another broker who coordinates, and then hears the truth."""
        newest = super().read_with_nonce()
        found = eventually(self._old.read_with_nonce, lambda found: found != newest, "what it knew", PATIENCE_S)
        self.told.append(found.marker)
        return found


@dataclass(frozen=True, slots=True)
class Replaced:
    """A group coordinator that is cut off, and has been replaced; it knows of the ``first`` writer's claim and block, "0"."""

    topic: str
    transactional_id: str
    servers: str
    """The others'."""
    old: Node
    first: Writer

    def writer(self, **kafka: object) -> Writer:
        return Writer(
            bootstrap_servers=self.servers, source="shop", transactional_id=self.transactional_id, kafka=kafka
        )

    def commit(self, writer: Writer, text: str) -> None:
        with writer.transaction(progress=text):
            writer.send(self.topic, text.encode(), id=text)

    def values(self, judge: Cluster) -> list[str | None]:
        return [value for _, _, value in judge.read(self.topic)]


@pytest.fixture
def replaced(meshed: KafkaCluster, judge: Cluster) -> Iterator[Replaced]:
    topic, _ = topic_of(meshed, judge)
    name = judge.unique("writer")
    with Writer(bootstrap_servers=meshed.bootstrap_servers, transactional_id=name):
        pass  # makes what topics there are to make
    old = alone_with_the_group(meshed, name, f"onceflow.writer.{name}", topic)
    servers = ",".join(node.address for node in meshed.others(old))
    with Writer(bootstrap_servers=servers, source="shop", transactional_id=name) as first:
        found = Replaced(topic, name, servers, old, first)
        found.commit(first, "0")
        assert Ledger(ClusterSettings.of(old.address), name, PATIENCE_S).read().number == 1, "its markers are written"
        with meshed.peer_rules.during(*cut_off(meshed, old, Way.BOTH)):
            eventually(lambda: meshed.is_fenced(old), bool, "the others miss it", PATIENCE_S)
            yield found
        meshed.wait_until_healthy()


def told_by_the_old(monkeypatch: pytest.MonkeyPatch, replaced: Replaced) -> list[LedgerOfTheOld]:
    """From now on each writer is, once; and whom they ask."""
    ledgers = list[LedgerOfTheOld]()

    def ledger_of(*arguments: Any) -> Ledger:
        ledgers.append(LedgerOfTheOld(*arguments, old=replaced.old))
        return ledgers[-1]

    monkeypatch.setattr(onceflow.writer.writer, "Ledger", ledger_of)
    return ledgers


def test_a_writer_that_starts_is_not_told_of_an_older_progress(
    replaced: Replaced, judge: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replaced.writer() as writer:
        replaced.commit(writer, "1")
    ledgers = told_by_the_old(monkeypatch, replaced)
    with replaced.writer() as writer:
        assert [marker.progress for marker in ledgers[0].told] == ["0", "0"]
        assert writer.progress == "1"
        replaced.commit(writer, "2")
    assert replaced.values(judge) == ["0", "1", "2"]


def test_where_none_but_the_old_answers_a_writer_does_not_start(
    replaced: Replaced, judge: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerOfTheOld, "lies", 10**9)
    told_by_the_old(monkeypatch, replaced)
    with pytest.raises(BrokerUnreachable, match="did not know what was committed just before"):
        replaced.writer(**{"delivery.timeout.ms": 10_000}).open()
    assert replaced.values(judge) == ["0"]


def believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever answers, as onceflow did."""
    monkeypatch.setattr(Transactions, "_read_behind_fence", lambda transactions: transactions._ledger.read())


def test_control_who_believes_what_it_is_told_sends_a_block_again(
    replaced: Replaced, judge: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replaced.writer() as writer:
        replaced.commit(writer, "1")
    told_by_the_old(monkeypatch, replaced)
    believe(monkeypatch)
    with replaced.writer() as writer:
        replaced.commit(writer, str(int(writer.progress) + 1))
    assert replaced.values(judge) == ["0", "1", "1"]


def forget_the_old(writer: Writer) -> None:
    """With a new producer, which the others tell nothing of it."""
    transactions = writer._with_transactions()
    transactions.state = State.BROKEN
    transactions.take_back()
    assert transactions.state is State.READY


@contextmanager
def lost_answer(writer: Writer, replaced: Replaced, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerOfTheOld]:
    """The writer's next commit is made, and its answer lost; who looks for it is told by the old."""
    transactions = writer._with_transactions()
    cluster = ClusterSettings.of(replaced.servers)
    ledger = LedgerOfTheOld(cluster, replaced.transactional_id, PATIENCE_S, old=replaced.old)
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "_ledger", ledger)
        refuse_commit(patch, transactions, is_made=True)
        yield ledger


def test_a_writer_in_doubt_is_not_told_that_its_block_was_aborted(
    replaced: Replaced, judge: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_the_old(replaced.first)
    with lost_answer(replaced.first, replaced, monkeypatch) as ledger:
        replaced.commit(replaced.first, "1")
        assert [marker.number for marker in ledger.told] == [1, 1]
    replaced.commit(replaced.first, "2")
    assert replaced.values(judge) == ["0", "1", "2"]


def test_where_none_but_the_old_answers_the_commit_stays_in_doubt(
    replaced: Replaced, judge: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerOfTheOld, "lies", 10**9)
    forget_the_old(replaced.first)
    monkeypatch.setattr(replaced.first._with_transactions(), "_patience_s", 10.0)
    with lost_answer(replaced.first, replaced, monkeypatch), pytest.raises(OutcomeUnknown):
        replaced.commit(replaced.first, "1")
    assert replaced.first.settle() is True
    replaced.commit(replaced.first, "2")
    assert replaced.values(judge) == ["0", "1", "2"]


def test_control_who_believes_it_sends_the_block_again(
    replaced: Replaced, judge: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_the_old(replaced.first)
    believe(monkeypatch)
    with lost_answer(replaced.first, replaced, monkeypatch), pytest.raises(TransactionAborted):
        replaced.commit(replaced.first, "1")
    replaced.commit(replaced.first, "1")
    assert replaced.values(judge) == ["0", "1", "1"]


def test_a_writer_in_doubt_does_not_take_the_one_before_it_for_a_later_one(
    replaced: Replaced, judge: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replaced.writer() as writer:
        with lost_answer(writer, replaced, monkeypatch) as ledger:
            replaced.commit(writer, "1")
            assert {marker.owner for marker in ledger.told} == {replaced.first._with_transactions().instance}
        replaced.commit(writer, "2")
    assert replaced.values(judge) == ["0", "1", "2"]


def test_control_who_does_cannot_tell_what_became_of_its_block(
    replaced: Replaced, judge: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As onceflow did."""
    monkeypatch.setattr(Marker, "is_taken_from", lambda marker, instance, _: marker.owner not in ("", instance))
    with replaced.writer() as writer, lost_answer(writer, replaced, monkeypatch), pytest.raises(OutcomeForgotten):
        replaced.commit(writer, "1")
    assert replaced.values(judge) == ["0", "1"]
