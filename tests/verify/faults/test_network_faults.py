"""Each fault of the network really happens, and costs a pipeline that commits all the time not one record."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Self

import pytest
import tests.faults.light
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from tests.faults.light import records_of
from tests.faults.support import Cluster, eventually
from tests.undefended import abort_commits_without_an_answer
from tests.verify.faults.bare import PARTITIONS, PATIENCE_S, BareWorld, Steady, SteadyDriver

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults import network
from onceflow.verify.faults.network import (
    CutConnections,
    DelayRequests,
    DuplicateRequests,
    LoseEndTxnAnswer,
    OneWayCut,
)
from onceflow.verify.wire import apis

pytestmark = pytest.mark.faults

CHANCES = 3
FETCH = {"FETCH": apis.READS["FETCH"]}  # the driver sends none
FREQUENT = {kind: apis.KINDS[kind] for kind in ("PRODUCE", "TXN_OFFSET_COMMIT", "END_TXN")}


def test_lose_endtxn_answer(world: BareWorld) -> None:
    for seed in range(3):
        LoseEndTxnAnswer().inject(world.as_world(), Random(seed))
        assert (met := re.match(r"(\d) of (\d) ", world.notes[-1]))
        assert met[1] == met[2]
    assert "ABORT" not in world.driver_of_batches.steps


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


class Behind(Steady):
    """A consumer of committed records behind the wire; what it reads within a block."""

    def __init__(self, world: BareWorld) -> None:
        super().__init__()
        self.values: Counter[str] = Counter()
        options = {"bootstrap.servers": world.kafka.bootstrap_servers, "group.id": "behind", "log_level": 0}
        self._consumer = Consumer({**options, "enable.auto.commit": False, "isolation.level": "read_committed"})
        topic = world.driver_of_batches.name
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ends()
        self._consumer.close()

    def _work(self) -> None:
        while not self._ending.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values[(message.value() or b"").decode()] += 1


@pytest.mark.parametrize(
    "fault",
    [DelayRequests(kinds=FETCH), DuplicateRequests(kinds=FETCH), CutConnections(kinds=FETCH)],
    ids=lambda fault: fault.name,
)
@pytest.mark.in_turn(2)
def test_who_reads_gets_each_record_once(
    world: BareWorld, fault: DelayRequests | DuplicateRequests | CutConnections
) -> None:
    with Behind(world) as reader:
        fault.inject(world.as_world(), Random(1))
        world.driver_of_batches.goes_on()
        written = {value for batch in range(world.driver_of_batches.batches) for _, value in records_of(batch)}
        eventually(lambda: reader.values.keys() >= written, bool, "all of it", PATIENCE_S)
    assert not world.misses
    assert " FETCH " in world.notes[-1]
    assert set(reader.values.values()) == {1}


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


def test_control_who_aborts_a_commit_without_an_answer_writes_again_what_is_committed(
    wired: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort_commits_without_an_answer(monkeypatch, tests.faults.light)
    driver = SteadyDriver(wired, tmp_path)
    driver.goes_on()
    LoseEndTxnAnswer().inject(BareWorld(wired).as_world(), Random(1))
    driver.goes_on()
    written = driver.end()
    judge = Cluster(wired)
    found = Counter(str(value) for _, _, value in judge.read(driver.name))
    judge.close()
    assert set(found) == {value for _, value in written}
    assert max(found.values()) > 1
    assert "ABORT" in driver.steps
