"""How many steps the checker takes where much of a history belongs together: not one for each two rows that do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from onceflow.verify.checker import Evidence
from onceflow.verify.checker.isolation import intermediate_read
from onceflow.verify.checker.views import Views
from onceflow.verify.history import Columns, Recorder
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
