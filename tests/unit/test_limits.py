"""What a driver's signs of life mean to the supervisor: a loss in a row, a stall."""

from __future__ import annotations

from onceflow.pipeline.limits import HEALTHY_S, Limits, Losses, Signs


def signs_of_a_driver_that_began(*at_s: float) -> Signs:
    """One that was heard of at those times, and said each time that its query runs."""
    signs = Signs()
    for signs.alive in at_s:
        signs.begin()
    return signs


def test_a_query_that_is_started_again_makes_no_new_driver() -> None:
    losses = Losses(tries=5, count=3)
    losses.add(signs_of_a_driver_that_began(0.0, HEALTHY_S), HEALTHY_S + 1)
    assert losses.count == 1, "it had run for long"


def test_a_driver_that_failed_from_the_start_is_one_more_loss() -> None:
    losses = Losses(tries=5, count=3)
    losses.add(signs_of_a_driver_that_began(0.0), HEALTHY_S - 1)
    assert losses.count == 4


def test_a_query_that_is_started_again_has_begun_a_trigger() -> None:
    signs = signs_of_a_driver_that_began(0.0, 100.0)
    assert not signs.overdue(Limits(stall_s=10), 105.0)
    signs.alive = 111.0
    assert signs.overdue(Limits(stall_s=10), 111.0)
