"""What a driver's signs of life mean to the supervisor: a loss in a row, a stall."""

from __future__ import annotations

import math
import signal

import pytest

from onceflow.errors import BrokerUnreachable
from onceflow.pipeline.limits import HEALTHY_S, IDLE_S, Limits, Losses, Signs


def signs_of_a_driver_that_began(*at_s: float) -> Signs:
    """One that was heard of at those times, and said each time that its query runs."""
    signs = Signs()
    for signs.alive in at_s:
        signs.begin()
    return signs


def test_a_query_that_is_started_again_makes_no_new_driver() -> None:
    losses = Losses(tries=5, count=3)
    losses.add(signs_of_a_driver_that_began(0.0, HEALTHY_S + 1), HEALTHY_S + 2)
    assert losses.count == 1, "it had run for long"


def test_a_driver_that_ended_triggers_for_long_is_the_first_loss_again() -> None:
    signs = signs_of_a_driver_that_began(0.0)
    signs.progress = HEALTHY_S + 1
    losses = Losses(tries=5, count=3)
    losses.add(signs, 10 * HEALTHY_S)
    assert losses.count == 1


def test_drivers_that_end_no_trigger_are_lost_in_a_row_however_long_each_has_lived() -> None:
    """Each takes up the same batch, which never ends, or fails after minutes."""
    losses = Losses(tries=5)
    for number in range(5):
        signs = signs_of_a_driver_that_began(1000.0 * number)
        signs.alive += HEALTHY_S + 1
        if number % 2:
            signs.end(BrokerUnreachable("no broker"))
        losses.add(signs, signs.alive)
    assert losses.are_too_many


def test_a_standby_has_to_be_warm_in_time() -> None:
    signs, limits = Signs(), Limits(silence_s=math.inf, warm_s=10)
    assert not signs.overdue(limits, signs.made + 9)
    assert signs.overdue(limits, signs.made + 11) == "was not warm after 10 s and was killed"
    assert not signs.overdue(Limits(silence_s=math.inf, warm_s=10, stall_s=60), signs.made + 11)
    signs.told = signs.made + 5
    assert not signs.overdue(limits, signs.made + 11), "it runs from cold"
    signs.told, signs.is_warm = None, True
    assert not signs.overdue(limits, signs.made + 11)


def test_a_driver_has_settled_behind_its_first_batch_or_when_it_seems_to_have_none() -> None:
    assert not Signs().has_settled(1000.0), "it has not begun"
    signs = signs_of_a_driver_that_began(100.0)
    assert not signs.has_settled(100.0 + IDLE_S)
    assert signs.has_settled(101.0 + IDLE_S)
    signs.has_committed = True
    assert signs.has_settled(100.0)


def test_a_takeover_is_measured_from_the_loss_of_the_newest_driver_that_went_on_for_long() -> None:
    losses = Losses(tries=5)
    losses.add(signs_of_a_driver_that_began(0.0), 1.0)
    signs = signs_of_a_driver_that_began(2.0)
    signs.progress = 7000.0  # at rest: triggers, and no batch
    losses.add(signs, 7001.0)
    losses.add(signs_of_a_driver_that_began(7002.0), 7003.0)
    assert losses.end(7006.0) == 5.0


@pytest.mark.parametrize(
    ("exit_code", "why"),
    [
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-(signal.SIGRTMIN + 1), f"was killed by signal {signal.SIGRTMIN + 1}"),
        (7, "ended by itself with exit code 7"),
    ],
)
def test_why_a_driver_is_gone(exit_code: int, why: str) -> None:
    assert Signs().why_gone(exit_code) == why


def test_a_supervisor_that_was_paused_makes_nobody_healthy() -> None:
    signs = signs_of_a_driver_that_began(0.0)
    signs.forgive(HEALTHY_S + 1)
    assert not signs.was_healthy


def test_a_driver_that_failed_from_the_start_is_one_more_loss() -> None:
    losses = Losses(tries=5, count=3)
    losses.add(signs_of_a_driver_that_began(0.0), HEALTHY_S - 1)
    assert losses.count == 4


def test_a_query_that_is_started_again_has_begun_a_trigger() -> None:
    signs = signs_of_a_driver_that_began(0.0, 100.0)
    assert not signs.overdue(Limits(stall_s=10), 105.0)
    signs.alive = 111.0
    assert signs.overdue(Limits(stall_s=10), 111.0)
