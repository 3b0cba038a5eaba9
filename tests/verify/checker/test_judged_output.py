"""Output that must be a function of the input: what proves that it is missing or early, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceflow.verify.checker import Function, Verdict, check_history, per_record
from onceflow.verify.history import Recorder
from onceflow.verify.history.recorder import Row, assign, gone, log_end, poll, position, send, stable_end, window

TENFOLD = per_record(lambda _, __, value: [("o", value * 10)])


def judged(recorder: Recorder, group: str | None = "g") -> Verdict:
    return check_history(recorder.table(), function=Function(TENFOLD, ["k"], ["o"], group))


def accused(recorder: Recorder, group: str | None = "g") -> list[tuple[Any, ...]]:
    rows = judged(recorder, group).findings.to_pylist()
    return [(row["key"], row["value"], row["detail"]) for row in rows if row["anomaly"] == "diverged_output"]


def said(recorder: Recorder, group: str | None = "g") -> list[str]:
    return [line for line in judged(recorder, group).not_judged if "output" in line]


def wrote(count: int) -> Recorder:
    """Records 1, 2, ... of the input, at 0, 1, ..."""
    recorder = Recorder()
    recorder.add("w", *[send("k", number + 1, number) for number in range(count)])
    return recorder


def copies(recorder: Recorder, txn: int, low: int, high: int, status: str = "ok", *, sends: bool = True) -> None:
    """A transaction of the group makes output of the input from ``low`` up to ``high``, at the same offsets."""
    consumed = [poll("k", number, number + 1, "g") for number in range(low, high)]
    sent = [send("o", 10 * (number + 1), number) for number in range(low, high)] if sends else []
    recorder.add("c", *consumed, position("k", high, "g"), *sent, txn=txn, status=status)


def read(recorder: Recorder, *offsets: int, until: int | None) -> None:
    asked: list[Row] = [] if until is None else [window("o", 0, until)]
    recorder.add("r", assign("o", 0), *[poll("o", offset, 10 * (offset + 1)) for offset in offsets], *asked)


def ends(recorder: Recorder, key: str, offset: int) -> None:
    recorder.add("p", log_end(key, offset), stable_end(key, offset))


EARLY = "its input is not committed as processed"
MISSING = "output of this record is missing"


@pytest.mark.parametrize("status", ["ok", "info", "fail"])
def test_a_position_after_which_the_group_went_on_is_not_the_end(status: str) -> None:
    """Who takes over writes down where it begins. What was asked and not answered says nothing."""
    recorder = wrote(2)
    recorder.add("p", position("k", 0, "g"))
    copies(recorder, 1, 0, 1)
    copies(recorder, 2, 1, 2)
    if status != "ok":
        recorder.add("p", position("k", 1, "g"), status=status)
    read(recorder, 0, 1, until=2)
    assert accused(recorder) == []
    assert any("no position of g" in line for line in said(recorder))
    recorder.add("p", position("k", 1, "g"))
    assert accused(recorder) == [("o", 20, EARLY)]


def test_a_position_is_not_the_end_while_a_transaction_may_be_committed_late() -> None:
    """It gives a further one. One that stands where the transaction gave it does not move any more."""
    recorder = wrote(2)
    copies(recorder, 1, 0, 1, "info")
    recorder.add("p", position("k", 0, "g"))
    recorder.add("w", send("o", 20, 1))
    read(recorder, 0, 1, until=2)
    assert accused(recorder) == []
    recorder.add("p", position("k", 1, "g"))
    assert accused(recorder) == [("o", 20, EARLY)]


@pytest.mark.parametrize("until", [2, None], ids=["a window", "polls alone"])
def test_who_looked_before_output_was_written_proves_nothing_of_it(until: int | None) -> None:
    recorder = wrote(2)
    copies(recorder, 1, 0, 1)
    read(recorder, 0, until=until)
    ends(recorder, "o", 2)
    copies(recorder, 2, 1, 2)
    recorder.add("p", position("k", 2, "g"))
    assert accused(recorder) == []
    assert any("1 record of output on o" in line for line in said(recorder))
    read(recorder, 0, until=until)
    ends(recorder, "o", 2)
    assert accused(recorder) == [("k", 2, MISSING)]


def test_where_the_log_is_seen_to_end_later_nothing_was_written() -> None:
    """What a window asked for lay below the last stable offset: nothing comes there any more."""
    recorder = wrote(2)
    copies(recorder, 1, 0, 1)
    read(recorder, 0, until=2)
    copies(recorder, 2, 1, 2, sends=False)
    ends(recorder, "o", 2)
    recorder.add("p", position("k", 2, "g"))
    assert accused(recorder) == [("k", 2, MISSING)]


@pytest.mark.parametrize("status", ["ok", "info"])
def test_without_a_transaction_that_is_known_the_position_says_when_input_was_processed(status: str) -> None:
    """The commit of one of unknown outcome may come later than all that its process did."""
    recorder = wrote(1)
    if status == "info":
        copies(recorder, 1, 0, 1, "info", sends=False)
    recorder.add("r", window("o", 0, 1), log_end("o", 1))
    recorder.add("p", position("k", 1, "g"))
    assert accused(recorder) == []
    recorder.add("r", window("o", 0, 1), log_end("o", 1))
    assert accused(recorder) == [("k", 1, MISSING)]


def test_without_a_position_the_last_output_that_is_visible_says_when_input_was_processed() -> None:
    """1 goes to o, and 2, of which something is seen later, to o-2."""
    apart = Function(per_record(lambda _, __, value: [("o" if value == 1 else "o-2", value)]), ["k"], ["o", "o-2"])
    recorder = wrote(2)
    recorder.add("r", window("o", 0, 1), log_end("o", 1))
    recorder.add("r", poll("o-2", 0, 2), window("o-2", 0, 1))
    assert check_history(recorder.table(), function=apart).violations == {}
    recorder.add("r", window("o", 0, 1), log_end("o", 1))
    assert check_history(recorder.table(), function=apart).violations == {"diverged_output": 1}


def retained(status: str | None) -> Recorder:
    """Retention drops 1 and 2 before the group, or after a transaction of it, reads them."""
    recorder = wrote(3)
    if status:
        copies(recorder, 1, 0, 2, status, sends=False)
    recorder.add("x", gone("k", 0, 2))
    recorder.add("c", assign("k", 2), poll("k", 2, 3, "g"), position("k", 3, "g"), send("o", 30, 0), txn=2)
    recorder.add("p", position("k", 3, "g"), log_end("k", 3), stable_end("k", 3))
    ends(recorder, "o", 2)
    recorder.add("r", assign("o", 0), poll("o", 0, 30), window("o", 0, 2))
    return recorder


@pytest.mark.parametrize("status", [None, "fail"])
def test_input_that_was_dropped_before_the_group_read_it_leads_to_nothing(status: str | None) -> None:
    assert accused(retained(status)) == []
    assert any("2 records of output on o" in line and "gone" in line for line in said(retained(status)))


def test_input_that_was_dropped_after_the_group_had_read_it_leads_to_output() -> None:
    assert accused(retained("ok")) == [("k", 1, MISSING), ("k", 2, MISSING)]
    assert not any("gone" in line for line in said(retained("ok")))


def test_output_of_input_that_was_dropped_is_as_good_as_any() -> None:
    """Also where nobody knows who consumed it: it is above the place up to which all is processed that it is early."""
    recorder = wrote(2)
    recorder.add("x", gone("k", 0, 2))
    read(recorder, 0, 1, until=2)
    assert accused(recorder, None) == []
    recorder.add("p", position("k", 2, "g"))
    assert accused(recorder) == []


@pytest.mark.parametrize("begin", [0, None, 2])
@pytest.mark.parametrize("asked", ["window", "polls"])
def test_input_is_first_looked_at_where_anybody_began(asked: str, begin: int | None) -> None:
    """Nobody says who wrote it, nor what stands before the first look."""
    recorder = Recorder()
    more = [window("k", 2, 3)] if asked == "window" else []
    recorder.add("c", assign("k", begin), poll("k", 2, 3, "g"), *more, position("k", 3, "g"), txn=1)
    recorder.add("p", position("k", 3, "g"))
    recorder.add("r", assign("o", 0), poll("o", 0, 10), poll("o", 1, 20), poll("o", 2, 30), window("o", 0, 3))
    known = [("o", 10), ("o", 20)] if begin == 0 else []
    assert [row[:2] for row in accused(recorder)] == known


@pytest.mark.parametrize("looks", [[], [assign("k", 0)]], ids=["nobody", "somebody who read nothing"])
def test_input_that_nobody_looked_at_may_lead_to_any_output(looks: list[Row]) -> None:
    recorder = Recorder()
    recorder.add("q", *looks, position("k", 3, "g"))
    read(recorder, 0, 1, until=2)
    assert accused(recorder) == []


def test_output_that_was_looked_for_in_part_is_told() -> None:
    recorder = wrote(3)
    copies(recorder, 1, 0, 3, sends=False)
    recorder.add("p", position("k", 3, "g"), log_end("k", 3), stable_end("k", 3))
    read(recorder, 0, until=1)
    assert accused(recorder) == []
    (line,) = said(recorder)
    assert line.startswith("2 records of output on o")
    recorder.add("r", assign("o", 1), window("o", 1, 3))
    ends(recorder, "o", 3)
    assert accused(recorder) == [("k", 2, MISSING), ("k", 3, MISSING)]
    assert said(recorder) == []
    recorder.add("x", gone("o", 0, 2))
    assert accused(recorder) == []
    assert said(recorder) == [line]


@pytest.mark.parametrize(
    "is_fit", [lambda value: type(value) is int, lambda value: not callable(value)], ids=["type", "callable"]
)
def test_a_function_that_asks_what_a_value_is_gives_nothing_that_can_be_believed(is_fit: Callable[[Any], bool]) -> None:
    """It notices that a value nobody knows is none, and what it would make of one it does not tell."""
    chosen = per_record(lambda _, __, value: [("o", value)] if is_fit(value) else [])
    recorder = Recorder()
    recorder.add("c", assign("k", 2), poll("k", 2, 3, "g"), window("k", 2, 3), position("k", 3, "g"), txn=1)
    recorder.add("r", assign("o", 0), poll("o", 0, 1), poll("o", 1, 3), window("o", 0, 2))
    verdict = check_history(recorder.table(), function=Function(chosen, ["k"], ["o"], "g"))
    assert verdict.violations == {}
    assert any(line.startswith("what ") and "on o" in line for line in verdict.not_judged)
