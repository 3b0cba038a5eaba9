"""The engine that aborts: a third of all batches, each once, at a produce request of its first attempt."""

from __future__ import annotations

import pytest

from onceflow.transaction.failures import AttemptFailed
from onceflow.verify.engines.aborting import ABORTED, Refusing, request_refused

BATCHES = 3000


def test_about_a_third_is_refused_half_of_them_before_anything_is_written() -> None:
    refused = [request_refused(batch) for batch in range(BATCHES)]
    assert abs(sum(each > 0 for each in refused) / BATCHES - ABORTED) < 0.03
    assert abs(refused.count(1) - refused.count(2)) < BATCHES / 20


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
