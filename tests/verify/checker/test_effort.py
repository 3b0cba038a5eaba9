"""How many steps the checker takes where much of a history belongs together: not one for each two rows that do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

from onceflow.verify.checker import Evidence, read_edges
from onceflow.verify.checker.cycles import cycles_in
from onceflow.verify.checker.isolation import intermediate_read, wr_cycle
from onceflow.verify.checker.views import Views
from onceflow.verify.history import Columns, Recorder, coding
from onceflow.verify.history.coding import Ints
from onceflow.verify.history.recorder import poll, send, window

Writes = Callable[[Recorder, int], None]


def in_one_transaction(history: Recorder, records: int) -> None:
    history.add("writer", *[send("k", number, number) for number in range(records)], txn=0)


def in_one_transaction_each(history: Recorder, records: int) -> None:
    for number in range(records):
        history.add("writer", send("k", number, number), txn=number)


@pytest.mark.parametrize("write", [in_one_transaction, in_one_transaction_each])
def test_windows_that_reach_back_to_the_beginning_cost_no_step_for_each_record(write: Writes) -> None:
    many, few = cumulative(write, 400), cumulative(write, 20)
    assert steps(lambda: intermediate_read(many)) < 2 * steps(lambda: intermediate_read(few))


def test_of_windows_that_reach_back_few_places_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, next_asked = [], Views._next_asked

    def counting(views: Views, op: Ints, number: Ints) -> Ints:
        looked_at.append(len(number))
        return next_asked(views, op, number)

    monkeypatch.setattr(Views, "_next_asked", counting)
    assert len(intermediate_read(cumulative(in_one_transaction, 400))) == 399
    assert 399 <= sum(looked_at) <= 3 * 400


def test_a_value_with_many_senders_costs_no_step_for_each() -> None:
    many, few = repeated(400), repeated(20)
    assert steps(lambda: many.writer) < 2 * steps(lambda: few.writer)


def test_of_attempts_that_share_little_few_reads_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of unknown outcome reads and sends much, and each of what it sent another one may have sent."""
    looked_at = []

    def counting(begin: Ints, end: Ints, name: Ints) -> tuple[Ints, Ints]:
        looked_at.append(int((end - begin).sum()))
        return coding.expanded(begin, end, name)

    monkeypatch.setattr(read_edges, "expanded", counting)
    assert len(wr_cycle(sent_again_one_by_one(300))) == 0
    assert looked_at
    assert sum(looked_at) <= 3 * 300


def sent_again_one_by_one(records: int) -> Evidence:
    history = Recorder()
    for number in range(records):
        history.add("writer", send("in", number, number), txn=number)
    both = [row for number in range(records) for row in (poll("in", number, number), send("out", number))]
    history.add("copier", *both, status="info", txn=records)
    for number in range(records):
        step = poll("in", number, number), send("out", number)
        history.add(f"next {number}", *step, status="info", txn=records + 1 + number)
    history.add("reader", *[poll("out", number, number) for number in range(records)])
    return Evidence(Columns.of(history.table()))


def test_the_walk_to_many_circles_is_not_begun_anew_for_each() -> None:
    many, few = circles_behind_a_long_way(400), circles_behind_a_long_way(40)
    assert steps(many) < 20 * steps(few)


def circles_behind_a_long_way(count: int) -> Callable[[], object]:
    """From vertex 0 a way of as many steps to one from which each of the circles is reached, and from the last one back."""
    edges = [(number, number + 1) for number in range(count)]
    for number in range(count):
        one, other = count + 1 + 2 * number, count + 2 + 2 * number
        edges += [(count, one), (one, other), (other, one)]
    source, target = np.array([*edges, (count + 2 * count, 0)]).T
    return lambda: list(cycles_in(source, target, np.arange(3 * count + 1)))


def cumulative(write: Writes, records: int) -> Evidence:
    """A reader that polls one record after the other, and asks each time for all from the beginning on."""
    history = Recorder()
    write(history, records)
    for number in range(records):
        history.add("reader", poll("k", number, number), window("k", 0, number + 1))
    return Evidence(Columns.of(history.table()))


def repeated(attempts: int) -> Evidence:
    """One value that is sent again and again, until it is read."""
    history = Recorder()
    for number in range(attempts):
        history.add("writer", send("k", "v"), status="fail", txn=number)
    history.add("reader", poll("k", 0, "v"))
    return Evidence(Columns.of(history.table()))


def steps(search: Callable[[], object]) -> int:
    """How many calls this takes, of Python and of C."""
    count, before = 0, sys.getprofile()

    def step(_frame: FrameType, _event: str, _what: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(step)
    try:
        search()
    finally:
        sys.setprofile(before)
    return count
