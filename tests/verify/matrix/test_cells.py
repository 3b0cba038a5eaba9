"""The cells: all of Kafka's matrix, and those of them that are asked for."""

from __future__ import annotations

from random import Random

from onceflow.verify.matrix.bounces import BounceBroker, BounceClient, step_of
from onceflow.verify.matrix.cells import CELLS, Cell, How, Who, chosen
from onceflow.verify.matrix.settings import bounces_of

NAMES = [
    "hard-brokers-1", "clean-brokers-1", "hard-clients-1", "clean-clients-1",
    "hard-brokers-2", "clean-brokers-2", "hard-clients-2", "clean-clients-2",
]  # fmt: skip


def test_hard_or_clean_by_brokers_or_clients_by_version() -> None:
    assert [cell.name for cell in CELLS] == NAMES
    assert CELLS[0].text == "hard bounces of brokers, transaction version 1"


def test_without_names_all_are_chosen_and_with_names_those_in_the_matrixs_order() -> None:
    assert chosen(None) == (CELLS, [])
    cells, mistakes = chosen(["clean-clients-2", "hard-brokers-1"])
    assert ([cell.name for cell in cells], mistakes) == (["hard-brokers-1", "clean-clients-2"], [])


def test_no_name_at_all_is_a_mistake_and_not_all_cells() -> None:
    told = f"--cells: it names none; leave it out for all of them, or give some of {', '.join(NAMES)}"
    assert chosen([]) == ((), [told])


def test_all_unknown_names_are_told() -> None:
    cells, mistakes = chosen(["hard-broker-1", "everything"])
    assert cells == ()
    assert mistakes == [
        f"--cells everything: one of {', '.join(NAMES)}",
        "--cells hard-broker-1: there is no such cell, did you mean hard-brokers-1?",
    ]


def test_every_broker_is_bounced_once_and_the_client_three_times() -> None:
    assert bounces_of(Cell(How.HARD, Who.BROKERS, 1)) == tuple(BounceBroker(How.HARD, number) for number in range(3))
    assert bounces_of(Cell(How.CLEAN, Who.CLIENTS, 2)) == tuple(BounceClient(How.CLEAN, number) for number in range(3))


def test_the_kills_of_a_run_come_at_different_steps() -> None:
    steps = ("WRITE", "PRODUCE", "AUDIT", "STORE", "COMMIT", "COMMITTED")
    for seed in range(20):
        assert {step_of(steps, number, Random(seed)) for number in range(6)} == set(steps)
    assert step_of(steps, 6, Random(1)) == step_of(steps, 0, Random(1))
    assert step_of((), 1, Random(1)) == ""
