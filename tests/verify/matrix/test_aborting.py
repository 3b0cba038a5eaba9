"""The engine that aborts: a third of all batches, each once, in its first attempt."""

from __future__ import annotations

import pytest

from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.messages import Counts
from onceflow.verify.engines.refusing import ABORTED, Refusing, RefusingExecutors, request_refused

BATCHES = 3000
LEAST_BATCHES = 20
"""That a cell has, however few its messages are."""


def test_about_a_third_is_refused_half_of_them_before_anything_is_written() -> None:
    refused = [request_refused(batch) for batch in range(BATCHES)]
    assert abs(sum(each > 0 for each in refused) / BATCHES - ABORTED) < 0.03
    assert abs(refused.count(1) - refused.count(2)) < BATCHES / 20
    assert set(refused[:LEAST_BATCHES]) == {0, 1, 2}


def test_each_is_refused_once_and_what_waits_at_the_step_comes_first() -> None:
    told: list[tuple[str, int]] = []
    refusing = Refusing(lambda step, batch: told.append((step, batch)))
    batch = next(each for each in range(BATCHES) if request_refused(each) == 2)
    steps = [("WRITE", batch), ("PRODUCE", batch), ("PRODUCE", batch)]
    refusing(*steps[0])
    refusing(*steps[1])
    with pytest.raises(AttemptFailed):
        refusing(*steps[2])
    refusing("ABORT", batch)
    for step in (*steps, ("PRODUCE", batch), ("AUDIT", batch)):
        refusing(*step)
    assert told == [*steps, ("ABORT", batch), *steps, ("PRODUCE", batch), ("AUDIT", batch)]


def test_others_are_let_through() -> None:
    refusing = Refusing(lambda step, batch: None)
    for batch in range(BATCHES):
        if not request_refused(batch):
            for step in ("WRITE", "PRODUCE", "PRODUCE", "PRODUCE", "AUDIT", "STORE", "COMMIT"):
                refusing(step, batch)


def test_executors_are_refused_before_they_write_or_when_all_is_written_and_once_a_batch() -> None:
    told: list[tuple[str, int]] = []
    written: list[tuple[int, ...]] = []

    def write(*given: int) -> Counts:
        written.append(given)
        return {("topic", 0): given[1]}

    refusing = RefusingExecutors(lambda step, batch: told.append((step, batch)), write)
    for batch in range(LEAST_BATCHES):
        refusing("WRITE", batch)
        if request_refused(batch):
            with pytest.raises(AttemptFailed):
                refusing.write(batch, 1)
            refusing("ABORT", batch)
            refusing("WRITE", batch)
        assert refusing.write(batch, 2) == {("topic", 0): 2}
    attempts = [
        attempt
        for batch in range(LEAST_BATCHES)
        for attempt in ([(batch, 1)] * (request_refused(batch) == 2) + [(batch, 2)])
    ]
    assert written == attempts
    aborted = [("WRITE", "ABORT", "WRITE") if request_refused(batch) else ("WRITE",) for batch in range(LEAST_BATCHES)]
    assert told == [(step, batch) for batch, steps in enumerate(aborted) for step in steps]
