"""Output that must be a function of the input: what proves that it is missing or early, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.verify.checker import Function, Verdict, check_history, per_record
from onceflow.verify.history import Recorder
from onceflow.verify.history.recorder import Row, assign, log_end, poll, position, send, stable_end, window

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
