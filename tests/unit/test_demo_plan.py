"""The demo's plan and the messages between it and its workers."""

from __future__ import annotations

import math

import pytest

from onceflow.demo.assignment import Assignment, Hold, Message, Moment, Pipeline, Told
from onceflow.demo.drive import workers_needed
from onceflow.demo.events import read_events
from onceflow.demo.faults import PLANS, Fault, Target
from onceflow.demo.moments import Moments
from onceflow.demo.pipeline import EVENTS_PER_BATCH
from onceflow.transaction.protocol import State

OWN_MOMENTS = {Moment.PRODUCE, Moment.WRITTEN, Moment.COMMITTED}


@pytest.mark.parametrize("pipeline", Pipeline)
def test_every_planned_batch_comes(pipeline: Pipeline) -> None:
    batches = math.ceil(sum(1 for _ in read_events()) / EVENTS_PER_BATCH)

    assert all(-1 <= fault.hold.batch < batches - 1 for fault in PLANS[pipeline])


def test_both_pipelines_are_hit_alike() -> None:
    ours, theirs = PLANS[Pipeline.ONCEFLOW], PLANS[Pipeline.BUILT_IN]

    assert [(fault.text, fault.target) for fault in ours] == [(fault.text, fault.target) for fault in theirs]
    assert workers_needed(ours) == 6


def test_moments_have_the_names_of_the_protocol() -> None:
    assert {moment.value for moment in set(Moment) - OWN_MOMENTS} <= {state.name for state in State}


def test_only_the_last_fault_leaves_its_worker_alive() -> None:
    for plan in PLANS.values():
        assert [fault.target for fault in plan[:-1]] == [Target.DRIVER] * (len(plan) - 1)


@pytest.mark.parametrize("hold", [None, Hold(Moment.PRODUCE, 4, nth=2)])
def test_an_assignment_travels(hold: Hold | None) -> None:
    assignment = Assignment(Pipeline.BUILT_IN, "127.0.0.1:9092", "/a b/c", hold)

    assert Assignment.of_line(assignment.as_line()) == assignment


def test_a_message_travels_among_what_java_says() -> None:
    message = Message(Told.HELD, "WRITE", 3)

    assert Message.of_line(message.as_line()) == message
    assert Message.of_line("WARNING: Using incubator modules") is None
    assert Message.of_line('{"told": "else"}') is None
    assert Message.of_line("7") is None


class _Worker:
    """What Moments tells, and how often it waited."""

    def __init__(self, hold: Hold | None) -> None:
        self.told: list[Message] = []
        self.waited = 0
        self.moments = Moments(hold, self.told.append, self._wait)

    def _wait(self) -> None:
        self.waited += 1


def test_a_worker_waits_at_the_planned_step_and_at_no_other() -> None:
    worker = _Worker(Hold(Moment.PRODUCE, 4, nth=2))
    for step, batch in [("PRODUCE", 3), ("PRODUCE", 3), ("WRITE", 4), ("PRODUCE", 4)]:
        worker.moments(step, batch)
    assert worker.waited == 0

    worker.moments("PRODUCE", 4)

    assert worker.waited == 1
    assert worker.told[-1] == Message(Told.HELD, "PRODUCE", 4)
    worker.moments("PRODUCE", 4)
    assert worker.waited == 1


def test_steps_that_nothing_can_be_planned_at_are_told_too() -> None:
    worker = _Worker(None)

    worker.moments("RESOLVE", 2)

    assert worker.told == [Message(Told.STEP, "RESOLVE", 2)]


def test_a_fault_knows_its_place() -> None:
    fault = Fault("before the write", Target.DRIVER, Hold(Moment.WRITE, 2))

    assert not fault.half_written
