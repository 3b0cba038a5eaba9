from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from onceflow.verify.checker import Evidence, Replay, diverged_output, expand, per_record, unproved_output
from onceflow.verify.checker.compared import Compared
from onceflow.verify.history import Columns, Recorder
from onceflow.verify.history.recorder import Row, assign, gone, log_end, poll, position, send, window

Find = Callable[[Recorder], list[tuple[Any, ...]]]
IDENTITY = expand({"in-0": "out-0", "in-1": "out-1"})
PARITY = per_record(lambda _, __, value: [(f"out-{int(str(value)) % 2}", value)])


def found(history: Recorder, replay: Replay = IDENTITY, group: str | None = None) -> list[tuple[Any, ...]]:
    evidence = Evidence(Columns.of(history.table()))
    table = diverged_output(evidence, Compared(evidence, replay, ["in-0", "in-1"], ["out-0", "out-1"]), group)
    assert set(table["anomaly"].to_pylist()) <= {"diverged_output"}
    return [(row["key"], row["offset"], row["value"], row["detail"]) for row in table.to_pylist()]


def log(*records: tuple[str, int, int]) -> Recorder:
    """Input 1 to 3 on in-0, 10 and 11 on in-1, and the output given, read to its end."""
    history = Recorder()
    history.add("writer", send("in-0", 1, 0), send("in-0", 2, 1), send("in-0", 3, 3))
    history.add("writer", send("in-1", 10, 0), send("in-1", 11, 1))
    history.add("reader", *[poll(*record) for record in records], window("out-0", 0, 9), window("out-1", 0, 9))
    history.add("end", log_end("out-0", 9), log_end("out-1", 9))
    return history


GOOD = [("out-0", 0, 1), ("out-0", 1, 2), ("out-0", 2, 3), ("out-1", 0, 10), ("out-1", 1, 11)]


@pytest.mark.parametrize("length", range(4))
def test_any_prefix_of_the_input_is_good(length: int) -> None:
    assert found(log(*GOOD[:length])) == []


def test_output_must_be_what_the_position_says() -> None:
    history = log(*GOOD[:2])
    history.add("probe", position("in-0", 1, "copy"), position("in-0", 3, "other"), position("in-1", 1, "copy"))
    assert [row[3] for row in found(history, group="copy")] == ["its input is not committed as processed"]
    history.add("end", log_end("out-0", 9), log_end("out-1", 9))  # the input of in-1 may have been processed meanwhile
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
    history.add("late reader", window("in-0", 0, 9), log_end("in-0", 9))
    assert found(history) == [("out-0", 3, 4, "nothing in the input leads to this record")]


def test_output_of_input_before_the_first_look_is_not_accused() -> None:
    """Nobody says who wrote the input, and the reader began at 5."""
    history = Recorder()
    history.add("reader", window("in-0", 5, 9), poll("in-0", 5, 6))
    history.add("reader", window("out-0", 0, 9), poll("out-0", 0, 1), poll("out-0", 1, 6))
    assert found(history) == []
    history.add("reader", window("in-0", 0, 5))
    assert found(history) == [("out-0", 0, 1, "nothing in the input leads to this record")]


EXTRA = "nothing in the input leads to this record"
INVENTED = [("out-0", 4, 99), ("out-1", 2, 98)]
ACCUSED = [(*record, EXTRA) for record in INVENTED]


def doubted(status: str = "info", *, offset: int | None = None, times: int = 1) -> Recorder:
    """All output is there, that of 4 on in-0 (sent, nobody knows whether it is there) once, and 99 and 98, of nothing."""
    history = log(*GOOD, ("out-0", 3, 4), *INVENTED)
    for _ in range(times):
        history.add("writer", send("in-0", 4, offset), status=status)
    return history


@pytest.mark.parametrize("status", ["ok", "info"])
def test_input_in_doubt_excuses_its_own_output_alone(status: str) -> None:
    assert found(doubted(status)) == ACCUSED
    assert found(doubted("fail")) == [("out-0", 3, 4, EXTRA), *ACCUSED]


def test_input_in_doubt_excuses_its_output_as_often_as_it_was_sent() -> None:
    history = doubted()
    history.add("reader", poll("out-0", 5, 4))
    assert found(history) == [*ACCUSED[:1], ("out-0", 5, 4, EXTRA), *ACCUSED[1:]]
    history.add("writer", send("in-0", 4), status="info")
    assert found(history) == ACCUSED


def test_an_attempt_beside_the_one_that_was_read_is_in_doubt_too() -> None:
    history = doubted(times=2)
    history.add("reader", poll("in-0", 5, 4), window("in-0", 5, 6), poll("out-0", 5, 4))
    history.add("reader", window("out-0", 0, 9))
    assert found(history) == ACCUSED
    history.add("reader", window("in-0", 0, 9), log_end("in-0", 9))
    assert found(history) == [*ACCUSED[:1], ("out-0", 5, 4, EXTRA), *ACCUSED[1:]]


def swallowing(_: str, offset: Any, value: Any) -> list[tuple[str, Any]]:
    try:
        return [("out-0" if value < 10 and offset >= 0 else "out-1", value)]
    except TypeError:
        return []


@pytest.mark.parametrize(
    "f",
    [
        lambda _, offset, value: [("out-0" if value < 10 else "out-1", value)] if offset != 7 else [],
        lambda _, offset, value: [("out-0" if value < 10 else "out-1", value)] if isinstance(offset, int) else [],
        lambda _, offset, value: [("out-0" if value < 10 else "out-1", value)] if f"{offset}" else [],
        swallowing,
    ],
    ids=["compares", "asks for the type", "writes", "swallows"],
)
def test_a_function_that_needs_the_offset_leaves_all_output_in_doubt(f: Callable[..., Any]) -> None:
    assert found(doubted(), per_record(f)) == []
    assert found(doubted(offset=4), per_record(f)) == ACCUSED  # it is known, if the record is there
    assert found(doubted("fail"), per_record(f)) == [("out-0", 3, 4, EXTRA), *ACCUSED]


def test_a_function_that_fails_on_input_in_doubt_leaves_all_output_in_doubt() -> None:
    def f(_: str, __: int, value: Any) -> list[tuple[str, Any]]:
        return [("out-0" if value < 10 else "out-1", value // (value != 4))]

    assert found(doubted(), per_record(f)) == []


def test_a_function_of_all_input_at_once_leaves_all_output_in_doubt() -> None:
    """What it makes of one record may depend on all the others."""
    assert found(doubted(), lambda records: IDENTITY(records.slice(0))) == []


def test_which_of_two_equal_records_was_seen_decides_nothing() -> None:
    """1 was sent again, and that may stand at 9, or the first one may; so what was seen of it tells no order, and no place."""
    history = Recorder()
    history.add("writer", send("in-0", 2, 1), send("in-0", 1, 3))
    history.add("reader", window("out-0", 0, 9), poll("out-0", 0, 1), poll("out-0", 1, 2))
    assert [row[3] for row in found(history)] == ["it stands before output of an earlier record"]
    history.add("writer", send("in-0", 1), status="info")
    assert found(history) == []


@pytest.mark.parametrize("times", [1, 2])
def test_input_before_the_first_look_excuses_output_of_its_own_key_alone(times: int) -> None:
    history = Recorder()
    history.add("reader", window("in-0", 5, 9), window("in-1", 0, 9))
    history.add("reader", window("out-0", 0, 9), poll("out-0", 0, 1), window("out-1", 0, 9), poll("out-1", 0, 1))
    targets = expand({"in-0": "out-0", "in-1": "out-1"}, times)
    assert found(history, targets) == [("out-1", 0, 1, EXTRA)]
    assert found(history, per_record(lambda key, _, value: [(key.replace("in", "out"), value)])) == [
        ("out-1", 0, 1, EXTRA)
    ]
    assert found(history, PARITY) == []  # where it goes depends on the value


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


def copied() -> Recorder:
    """All of in-0, copied by two transactions, and the position says so."""
    history = Recorder()
    history.add("writer", *[send("in-0", number + 1, number) for number in range(3)])
    history.add("copier", poll("in-0", 0, 1, "copy"), send("out-0", 1), position("in-0", 1, "copy"), txn=1)
    rest = poll("in-0", 1, 2, "copy"), poll("in-0", 2, 3, "copy"), position("in-0", 3, "copy")
    history.add("copier", *rest, send("out-0", 2), send("out-0", 3), txn=2)
    history.add("probe", position("in-0", 3, "copy"))
    return history


MISSING = "output of this record is missing"


def test_output_that_nobody_looked_for_is_not_missing() -> None:
    history = copied()
    assert found(history, group="copy") == []
    assert unproved_output(evidence_of(history), ["out-0", "out-1"]) == "nobody looked at out-0, out-1"
    history.add("reader", window("out-0", 0, 1), poll("out-0", 0, 1))
    history.add("probe", log_end("out-0", 5))
    assert found(history, group="copy") == []
    assert unproved_output(evidence_of(history), ["out-0"]) == ""
    history.add("reader", window("out-0", 1, 5))
    assert found(history, group="copy") == [("in-0", 1, 2, MISSING), ("in-0", 2, 3, MISSING)]


def test_a_window_that_was_not_answered_is_no_look_at_the_output() -> None:
    history = copied()
    history.add("reader", window("out-0", 0, 5), status="info")
    assert found(history, group="copy") == []
    assert unproved_output(evidence_of(history), ["out-0"]) == "nobody looked at out-0"


def evidence_of(history: Recorder) -> Evidence:
    return Evidence(Columns.of(history.table()))


@pytest.mark.parametrize(
    "look", [[window("out-0", 1, 4)], [assign("out-0", 1), poll("out-0", 4, 3)]], ids=["a window", "on the way"]
)
def test_output_before_what_was_read_is_missing_if_somebody_asked_for_its_place(look: list[Row]) -> None:
    """As a record is lost then, whenever he asked: what is read proves that nothing comes before it any more."""
    history = copied()
    history.add("reader", window("out-0", 0, 1), poll("out-0", 0, 1))
    history.add("who begins behind it", assign("out-0", 4), window("out-0", 4, 5), poll("out-0", 4, 3))
    assert found(history, group="copy") == []
    history.add("another", *look)
    assert found(history, group="copy") == [("in-0", 1, 2, MISSING)]


def test_who_does_not_say_how_far_he_looked_read_all() -> None:
    history = copied()
    history.add("reader", poll("out-0", 0, 1))
    assert found(history, group="copy") == [("in-0", 1, 2, MISSING), ("in-0", 2, 3, MISSING)]


@pytest.mark.parametrize(
    ("low", "high", "missing"),
    [(0, 2, []), (3, 4, []), (0, 1, [2]), (5, 9, [2])],
    ids=["over", "at", "below", "behind"],
)
def test_output_that_may_have_been_dropped_is_not_missing(low: int, high: int, missing: list[int]) -> None:
    """It stood behind 1 at 0, and before 3 at 4."""
    history = copied()
    history.add("reader", window("out-0", 0, 1), poll("out-0", 0, 1))
    history.add("broker", gone("out-0", low, high))
    history.add("reader", window("out-0", 0, 5), poll("out-0", 4, 3))
    assert found(history, group="copy") == [("in-0", 1, value, MISSING) for value in missing]


def test_output_of_input_that_may_have_been_dropped_is_not_accused() -> None:
    history = log(*GOOD, ("out-0", 3, 4))
    history.add("writer", send("in-0", 4))
    history.add("broker", gone("in-0", 4, 5))
    history.add("late reader", window("in-0", 0, 9))
    assert found(history) == []


def test_output_stands_in_the_transaction_that_consumed_its_input() -> None:
    history = copied()
    history.add("reader", *[poll("out-0", number, number + 1) for number in range(3)])
    assert found(history, group="copy") == []
    history.add("writer", send("in-1", 10, 0))
    history.add("copier", poll("in-1", 0, 10, "copy"), position("in-1", 1, "copy"), txn=3)
    history.add("copier", send("out-1", 10, 0), txn=4)
    history.add("reader", window("out-1", 0, 1), poll("out-1", 0, 10))
    assert found(history, group="copy") == [("out-1", 0, 10, "another transaction wrote it than consumed its input")]
    assert found(history, group="sum") == []
    assert found(history) == []


def test_which_transaction_wrote_output_is_not_known_of_attempts_of_unknown_outcome() -> None:
    """Nor which one consumed, of input that a failed one took, or another one as well (which is consumed_twice)."""
    history = Recorder()
    history.add("writer", send("in-0", 1, 0), send("in-0", 2, 1), send("in-0", 3, 2))
    history.add("copier", poll("in-0", 0, 1, "copy"), poll("in-0", 2, 3, "copy"), txn=1, status="fail")
    for txn in (2, 3):
        history.add("copier", poll("in-0", 1, 2, "copy"), send("out-0", 2), txn=txn, status="info")
    history.add("copier", poll("in-0", 0, 1, "copy"), send("out-0", 1, 0), poll("in-0", 1, 2, "copy"), txn=4)
    history.add("copier", poll("in-0", 0, 1, "copy"), txn=5)
    history.add("copier", send("out-0", 3), txn=6)
    history.add("reader", poll("out-0", 0, 1), poll("out-0", 3, 2), poll("out-0", 5, 3))
    history.add("probe", position("in-0", 3, "copy"))
    assert found(history, group="copy") == []
