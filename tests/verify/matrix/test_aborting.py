"""The engine that aborts: a third of all batches, each once, at a produce request of its first attempt."""

from __future__ import annotations

import pickle

import pytest
from pyspark import TaskContext

from onceflow.transaction.failures import AttemptFailed
from onceflow.verify.engines.refusing import ABORTED, InTasks, Refusing, RefusingInTasks, request_refused

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


def test_the_tasks_of_a_first_attempt_are_told_what_is_refused_and_those_of_a_second_one_nothing() -> None:
    told: list[tuple[str, int]] = []
    refusing = RefusingInTasks(lambda step, batch: told.append((step, batch)))
    begun = [(batch, attempt) for batch in range(LEAST_BATCHES) for attempt in (1, 2)]
    sent = []
    for batch, _ in begun:
        refusing("WRITE", batch)
        sent.append(pickle.dumps(refusing.in_tasks))
        refusing("ABORT", batch)
    refused = [pickle.loads(each).refused for each in sent]
    assert refused == [request_refused(batch) if attempt == 1 else 0 for batch, attempt in begun]
    assert told == [(step, batch) for batch, _ in begun for step in ("WRITE", "ABORT")]


@pytest.mark.parametrize(("refused", "tasks"), [(0, set()), (1, {0, 1, 2, 3}), (2, {0, 2})])
def test_every_task_is_refused_or_every_other_one(
    refused: int, tasks: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # behind the test this process may be a driver again
    context = TaskContext._getOrCreate()

    def is_refused(task: int) -> bool:
        context._partitionId = task
        try:
            InTasks(refused)()
        except AttemptFailed:
            return True
        return False

    assert {task for task in range(4) if is_refused(task)} == tasks
