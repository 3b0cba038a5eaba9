from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from onceflow.verify.checker import Evidence, Replay, diverged_output, expand, per_record
from onceflow.verify.history import Columns, Recorder
from onceflow.verify.history.recorder import poll, position, send, window

Find = Callable[[Recorder], list[tuple[Any, ...]]]
IDENTITY = expand({"in-0": "out-0", "in-1": "out-1"})
PARITY = per_record(lambda _, __, value: [(f"out-{int(str(value)) % 2}", value)])


def found(history: Recorder, replay: Replay = IDENTITY, group: str | None = None) -> list[tuple[Any, ...]]:
    evidence = Evidence(Columns.of(history.table()))
    table = diverged_output(evidence, replay, ["in-0", "in-1"], ["out-0", "out-1"], group)
    assert set(table["anomaly"].to_pylist()) <= {"diverged_output"}
    return [(row["key"], row["offset"], row["value"], row["detail"]) for row in table.to_pylist()]


def log(*records: tuple[str, int, int]) -> Recorder:
    """Input 1 to 3 on in-0, 10 and 11 on in-1, and the output given."""
    history = Recorder()
    history.add("writer", send("in-0", 1, 0), send("in-0", 2, 1), send("in-0", 3, 3))
    history.add("writer", send("in-1", 10, 0), send("in-1", 11, 1))
    history.add("reader", *[poll(*record) for record in records])
    return history


GOOD = [("out-0", 0, 1), ("out-0", 1, 2), ("out-0", 2, 3), ("out-1", 0, 10), ("out-1", 1, 11)]


@pytest.mark.parametrize("length", range(4))
def test_any_prefix_of_the_input_is_good(length: int) -> None:
    assert found(log(*GOOD[:length])) == []


def test_output_must_be_what_the_position_says() -> None:
    history = log(*GOOD[:2])
    history.add("probe", position("in-0", 1, "copy"), position("in-0", 3, "other"), position("in-1", 1, "copy"))
    assert found(history, group="copy") == [
        ("in-1", 0, 10, "output of this record is missing"),
        ("out-0", 1, 2, "its input is not committed as processed"),
    ]
    assert found(history) == []


def test_output_of_a_record_in_the_middle_is_missing() -> None:
    assert found(log(GOOD[0], GOOD[2])) == [("in-0", 1, 2, "output of this record is missing")]


def test_output_that_nothing_leads_to() -> None:
    extra = "nothing in the input leads to this record"
    assert found(log(*GOOD, ("out-0", 3, 99))) == [("out-0", 3, 99, extra)]
    assert found(log(*GOOD, ("out-0", 3, 3))) == [("out-0", 3, 3, extra)]  # once more than expected
    assert found(log(*GOOD, ("out-1", 2, 1))) == [("out-1", 2, 1, extra)]  # on the wrong partition


@pytest.mark.parametrize("status", ["ok", "info"])
def test_output_of_input_that_nobody_looked_for_is_not_accused(status: str) -> None:
    """Where it stands, or whether it does, is not known, so f was not given it; once somebody looks it is."""
    history = log(*GOOD, ("out-0", 3, 4))
    history.add("writer", send("in-0", 4), status=status)
    assert found(history) == []
    history.add("late reader", window("in-0", 0, 9))
    assert found(history) == [("out-0", 3, 4, "nothing in the input leads to this record")]


def test_output_in_another_order() -> None:
    swapped = [("out-0", 0, 2), ("out-0", 1, 1)]
    assert found(log(*swapped)) == [("out-0", 0, 2, "it stands before output of an earlier record")]


def test_output_of_two_inputs_may_interleave_on_one_partition() -> None:
    one = expand({"in-0": "out-0", "in-1": "out-0"})
    assert found(log(("out-0", 0, 10), ("out-0", 1, 1), ("out-0", 2, 2), ("out-0", 3, 11)), one) == []


def test_one_record_goes_to_the_partition_that_f_says() -> None:
    good = [("out-1", 0, 1), ("out-0", 0, 2), ("out-1", 1, 3)]
    assert found(log(*good), PARITY) == []
    # 3 is visible on one partition, so 2, which comes before it, must be on the other
    assert found(log(good[0], good[2]), PARITY) == [("in-0", 1, 2, "output of this record is missing")]


def test_each_record_leads_to_several() -> None:
    twice = expand({"in-0": "out-0", "in-1": "out-1"}, times=2)
    assert found(log(("out-0", 0, 2), ("out-0", 1, 3), ("out-0", 2, 4), ("out-0", 3, 5)), twice) == []
    # half of the output of one record: not all or nothing
    assert found(log(("out-0", 0, 2), ("out-0", 1, 3), ("out-0", 2, 4)), twice) == [
        ("in-0", 1, 2, "output of this record is missing")
    ]


def test_a_value_that_comes_twice_is_expected_twice() -> None:
    constant = per_record(lambda *_: [("out-0", 7)])
    history = Recorder()
    history.add("reader", poll("in-0", 0, 1), poll("in-0", 1, 2), poll("out-0", 0, 7))
    assert found(history, constant) == []
    history.add("reader", poll("out-0", 1, 7))
    assert found(history, constant) == []
    history.add("reader", poll("out-0", 2, 7))
    assert len(found(history, constant)) == 1


def test_what_was_aborted_is_neither_input_nor_output() -> None:
    history = Recorder()
    history.add("writer", send("in-0", 1, 0), status="fail")
    history.add("writer", send("in-0", 2, 1))
    history.add("copier", send("out-0", 2, 0), txn=1, status="fail")
    history.add("copier", send("out-0", 2, 2), txn=2)
    history.add("reader", poll("out-0", 2, 2))
    assert found(history) == []


def test_a_replay_that_is_out_of_order_is_refused() -> None:
    backwards = pa.table({"input": [1, 0], "key": ["out-0", "out-0"], "value": [1, 2]})
    with pytest.raises(ValueError, match="in the order of the input"):
        found(log(*GOOD), lambda _: backwards)
