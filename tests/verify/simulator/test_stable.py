"""The last stable offset in the model and its judge: what readers of committed records get while transactions are open."""

from __future__ import annotations

import pytest

from onceflow.transaction.messages import Identity
from onceflow.verify.simulator import Scenario, run
from onceflow.verify.simulator.anomalies import Anomaly
from onceflow.verify.simulator.broker import Broker
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.partition import Partition
from onceflow.verify.simulator.reader import LONGEST_HOLD
from onceflow.verify.simulator.requests import OK, AddPartitions, EndTransaction, InitProducerId, ListOffset, Produce
from onceflow.verify.simulator.scheduler import Scheduler

ONE, ANOTHER, THIRD = Identity(1, 0), Identity(2, 0), Identity(3, 0)
SEEDS = range(40)


def test_the_oldest_transaction_that_is_open_holds_it_whoever_has_it_and_markers_take_offsets() -> None:
    partition = Partition()
    partition.begin_with((0,))
    assert partition.last_stable_offset == 1
    for identity, values in ((ONE, (1, 2)), (ANOTHER, (3,)), (ONE, (4,))):
        sequence = 2 if values == (4,) else 0
        assert partition.append(Produce(identity, 0, sequence, values), strict=True) is OK
    assert told(partition) == (1, [0])
    partition.mark(ANOTHER, commit=True)
    assert told(partition) == (1, [0]), "the older one is open"
    assert partition.visible == [0, 3]
    assert partition.append(Produce(THIRD, 0, 0, (5,)), strict=True) is OK
    partition.mark(ONE, commit=True)
    assert told(partition) == (6, [0, 1, 2, 3, 4]), "offset 5 is a marker"
    partition.mark(THIRD, commit=False)
    assert told(partition) == (9, [0, 1, 2, 3, 4])
    partition.mark(THIRD, commit=False)
    assert told(partition) == (10, [0, 1, 2, 3, 4]), "a marker that ends nothing takes an offset as well"


def told(partition: Partition) -> tuple[int, list[int]]:
    return partition.last_stable_offset, partition.readable


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_decided_holds_it_until_the_marker_is_written(version: int) -> None:
    scheduler = Scheduler()
    broker = Broker(scheduler, Choices(0, {}), version)
    identity = broker.ask(InitProducerId(None)).identity
    assert identity is not None
    if version == 1:
        broker.ask(AddPartitions(identity, 0))
    assert broker.ask(Produce(identity, 0, 0, (7, 8))).code == 0
    assert broker.ask(EndTransaction(identity, commit=True)).code == 0
    assert broker.ask(ListOffset(0)).offset == 0
    scheduler.step()
    assert broker.ask(ListOffset(0)).offset == 3


def shown(scenario: Scenario) -> set[Anomaly]:
    """What some seeds show."""
    return {anomaly for seed in SEEDS for anomaly in run(seed, scenario=scenario).shown}


@pytest.mark.parametrize("version", [1, 2])
def test_the_judge_sees_a_leader_that_holds_no_reader_back(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads past records of which nobody knows yet whether they are committed."""
    scenario = Scenario(version=version)
    assert not shown(scenario)
    monkeypatch.setattr(Partition, "last_stable_offset", Partition.end)
    assert shown(scenario) == {Anomaly.MISREAD}


@pytest.mark.parametrize("version", [1, 2])
def test_the_judge_sees_a_leader_with_less_than_readers_have_read(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election: the newest records are gone, although they are committed."""
    scenario = Scenario(version=version, rates={"move": 0.1, "rest": 0.3})
    assert not shown(scenario)
    monkeypatch.setattr(Partition, "move", cut)
    assert Anomaly.WENT_BACK in shown(scenario)


def cut(partition: Partition) -> None:
    if partition._log and not partition.hanging:
        partition._end = partition._log.pop().offset


@pytest.mark.parametrize("version", [1, 2])
def test_the_judge_sees_a_coordinator_that_lets_transactions_last(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their driver is stopped for long, and nobody takes its place. In the end all is there, and nothing hangs."""
    scenario = Scenario(version=version, rates={"driver": 0.1})
    assert not shown(scenario)
    monkeypatch.setattr(Broker, "_start_timer", lambda broker, begun: None)
    assert shown(scenario) == {Anomaly.HELD}


@pytest.mark.parametrize("version", [1, 2])
def test_the_slowest_markers_of_a_transaction_that_times_out_are_no_anomaly(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one tick less were one: transactions come as near to the bound as a request takes."""
    scenario = Scenario(version=version, rates={"driver": 0.1, "marker": 0.9})
    assert not shown(scenario)
    monkeypatch.setattr("onceflow.verify.simulator.reader.LONGEST_HOLD", LONGEST_HOLD - 5)
    assert shown(scenario) == {Anomaly.HELD}
