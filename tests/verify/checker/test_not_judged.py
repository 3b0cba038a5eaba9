"""Of a good history, which parts it proves nothing of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.verify.checker import CHECKS, check_history
from onceflow.verify.history import Recorder
from onceflow.verify.history.recorder import assign, effect, gone, log_end, poll, position, send, stable_end, window

Story = Callable[[Recorder], object]


def copied_and_read(history: Recorder) -> None:
    """Everything was looked at, and asked for at the end."""
    history.add("writer", send("in-0", "a", 0))
    history.add("copier", poll("in-0", 0, "a", "copy"), send("out-0", "b", 0), send("accounts", "a"), txn=1)
    history.add("copier", position("in-0", 1, "copy"), txn=1)
    history.add("final", window("in-0", 0, 1), poll("in-0", 0, "a"), window("out-0", 0, 2), poll("out-0", 0, "b"))
    history.add("final", window("accounts", 0, 1), effect("accounts", "a"))
    history.add(
        "probe", *[row for key, end in (("in-0", 1), ("out-0", 2)) for row in (log_end(key, end), stable_end(key, end))]
    )
    history.add("probe", position("in-0", 1, "copy"))


NOT_ASKED = (
    ": no log_end and stable_end are in the history that were asked for behind all that transactions wrote there"
)
READ_SINCE = (
    ": somebody read behind its stable_end while that was asked for, or since, so it was not asked for at the end"
)
PARTS: list[tuple[Story, str]] = [
    (
        lambda history: (
            history.add("other", poll("in-0", 0, "a", "late"), position("in-0", 1, "late"), txn=9),
            history.add("probe", position("in-0", 1, "late"), status="fail"),
        ),
        "how far group late came on in-0: its position and the stable_end were not both seen at the end",
    ),
    (
        lambda history: (
            history.add("consumer", poll("in-0", 0, "a", "plain")),
            history.add("probe", position("in-0", 0, "other"), position("in-0", 1, "plain")),
            history.add("probe", position("in-0", 1, "other")),
        ),
        "whether group other consumed all that it went past: no poll in the history names the group",
    ),
    (
        lambda history: (
            history.add("consumer", poll("in-0", 0, "a", "plain"), status="info"),
            history.add("probe", position("in-0", 1, "plain")),
        ),
        "whether group plain consumed 1 record on in-0 that its position went past: what polled them is of unknown outcome",
    ),
    (
        lambda history: (
            history.add("consumer", poll("out-0", 0, "b", "copy")),
            history.add("probe", position("out-0", 1, "copy")),
        ),
        "whether group copy consumed all that it went past on out-0: its transactions give it positions on other keys only",
    ),
    (
        lambda history: (
            history.add("final", poll("in-1", 0, "x"), poll("in-1", 1, "y")),
            history.add("writer", send("in-1", "x", 0), send("in-1", "y", 1)),
            history.add("probe", position("in-1", 2, "copy"), stable_end("in-1", 2)),
        ),
        "whether group copy consumed what stands before its position on in-1: no poll in the history is of the group there, and "
        "no earlier position",
    ),
    (
        lambda history: history.add("writer", send("k", "x", 0), send("j", "y")),
        "2 records that were committed on j, k: nobody read them, and no window that was asked for later reaches there "
        "(where an offset is not known: windows from 0 up to a log_end that was asked later as well)",
    ),
    (
        lambda history: history.add("writer", send("in-0", "x", 7)),
        "1 record that was committed on in-0: nobody read it, and no window that was asked for later reaches there",
    ),
    (
        lambda history: (history.add("writer", send("k", "x", 0)), history.add("broker", gone("k", 0, 1))),
        "1 record that was committed on k: nobody read it before a range was gone",
    ),
    (
        lambda history: history.add("writer", send("in-0", "x"), status="info"),
        "1 record of unknown outcome on in-0: nobody looked whether it is there",
    ),
    (
        lambda history: history.add("reader", *[poll(key, 0, "x") for key in "dcbae"]),
        "what should be on a, b, c and 2 more: no send to it is in the history, so nothing can be missing or invented",
    ),
    (
        lambda history: history.add("reader", effect("archive", "a")),
        "which effects archive should have: no send tells of them (without an offset), so only repetitions were looked for",
    ),
    (
        lambda history: (
            history.add("writer", send("k", "x", 0), txn=7, status="fail"),
            history.add("probe", log_end("k", 1), stable_end("k", 1), status="fail"),
        ),
        f"whether a transaction hangs on k{NOT_ASKED}",
    ),
    (
        lambda history: (
            history.add("probe", log_end("k", 5), stable_end("k", 2)),
            history.add("zombie", send("k", "x"), txn=7, status="fail"),
        ),
        f"whether a transaction hangs on k{NOT_ASKED}",
    ),
    (
        lambda history: (
            history.add("probe", log_end("k", 2)),
            history.add("zombie", send("k", "x"), txn=7, status="fail"),
            history.add("probe", stable_end("k", 2)),
        ),
        f"whether a transaction hangs on k{NOT_ASKED}",
    ),
    (
        lambda history: (
            history.add("writer", send("out-0", "x", 2), txn=7, status="info"),
            history.add("final", window("out-0", 2, 3), poll("out-0", 2, "x")),
            history.add("probe", log_end("out-0", 4), stable_end("out-0", 2)),
            history.add("late", poll("out-0", 2, "x")),
        ),
        f"whether a transaction hangs on out-0{READ_SINCE}",
    ),
    (
        lambda history: (
            history.add("writer", send("out-0", "x", 2), txn=7),
            history.add("reader", window("out-0", 2, 3), poll("out-0", 2, "x")),
            history.add("probe", stable_end("out-0", 2), log_end("out-0", 4)),
        ),
        f"whether a transaction hangs on out-0{READ_SINCE}",
    ),
    (
        lambda history: (
            history.add("booker", send("accounts", "x")),
            history.add("other", window("accounts", 0, 2), effect("accounts", "a"), effect("accounts", "x")),
            history.add("final", window("accounts", 0, 1), effect("accounts", "a")),
        ),
        "whether 1 effect on accounts was there in the end: the look that ended last did not find it, and may have looked before "
        "another one that did",
    ),
    (
        lambda history: (
            history.add("booker", poll("in-0", 0, "a", "book")),
            history.add("other booker", poll("in-0", 0, "a", "book")),
            history.add("probe", position("in-0", 1, "book")),
        ),
        "whether group book handled what it polled more than once on in-0: that was in no transaction, so only effects tell",
    ),
    (
        lambda history: (
            history.add("booker", assign("in-0", 0), poll("in-0", 0, "a", "copy")),
            history.add("probe", position("in-0", 1, "copy")),
        ),
        "whether group copy handled what it polled more than once on in-0: not only in transactions, so only effects tell",
    ),
    (
        lambda history: (
            history.add("booker", poll("in-0", 0, "a", "book"), assign("in-0", 0), poll("in-0", 0, "a", "book"), txn=8),
            history.add("probe", position("in-0", 1, "book")),
        ),
        "whether group book handled what it polled more than once on in-0: that was in one transaction, so only effects tell",
    ),
    (
        lambda history: (
            history.add("other copier", poll("in-0", 0, "a", "copy"), txn=8, status="info"),
            history.add("probe", position("in-0", 1, "copy")),
        ),
        "whether group copy handled what it polled more than once on in-0: nothing tells what became of a transaction that did",
    ),
    (
        lambda history: (
            history.add("other writer", send("k", "x"), status="info"),
            history.add("other writer", send("k", "y", 0)),
            history.add("final", window("k", 0, 2), poll("k", 0, "y"), poll("k", 1, "x")),
        ),
        "the order of 1 record on k, before what the same process had sent before: one of the two sends got no answer, and may "
        "have taken effect later",
    ),
    (
        lambda history: (
            history.add("probe", log_end("in-0", 5), stable_end("in-0", 5)),
            history.add("probe", log_end("in-0", 3), stable_end("in-0", 3)),
        ),
        "what was at the end of in-0: it was seen further on before, only known records are missed",
    ),
    (
        lambda history: (
            history.add("probe", stable_end("in-0", 5)),
            history.add("probe", log_end("in-0", 3)),
            history.add("probe", log_end("in-0", 5), stable_end("in-0", 5)),
        ),
        "what was at the end of in-0: it was seen further on before, only known records are missed",
    ),
    (
        lambda history: (
            history.add("probe", stable_end("out-0", 5), log_end("out-0", 5)),
            history.add("probe", stable_end("out-0", 4), log_end("out-0", 5)),
            history.add("probe", log_end("out-0", 5), stable_end("out-0", 5)),
        ),
        "what was at the end of out-0: it was seen further on before, only known records are missed",
    ),
    (
        lambda history: history.add("probe", log_end("in-0", 2), stable_end("in-0", 5)),
        "whether a transaction hangs on in-0: its stable_end was seen behind its log_end, so both were not asked of one log",
    ),
    (
        lambda history: history.add("adder", poll("in-0", 0, "a", "sum")),
        "how far group sum came on in-0: its position and the stable_end were not both seen at the end",
    ),
    (
        lambda history: history.add("copier", position("in-0", 1, "copy"), txn=8),
        "how far group copy came on in-0: its position and the stable_end were not both seen at the end",
    ),
    (
        lambda history: (
            history.add("probe", position("in-1", 0, "copy")),
            history.add("writer", send("in-1", "x", 0)),
            history.add("copier", poll("in-1", 0, "x", "copy"), position("in-1", 1, "copy"), txn=8, status="fail"),
            history.add("final", window("in-1", 0, 1), poll("in-1", 0, "x")),
            history.add("probe", log_end("in-1", 1), stable_end("in-1", 1)),
        ),
        "how far group copy came on in-1: its position and the stable_end were not both seen at the end",
    ),
    (
        lambda history: (
            history.add("one", poll("in-0", 0, "a", "late"), position("in-0", 1, "late"), txn=8, status="fail"),
            history.add("two", poll("in-0", 0, "a", "late"), status="fail"),
        ),
        "how far group late came on in-0: its position and the stable_end were not both seen at the end",
    ),
    (
        lambda history: history.add("probe", position("i", 0, "copy")),
        "how far group copy came on i: its position and the stable_end were not both seen at the end",
    ),
    (
        lambda history: (
            history.add("adder", position("in-0", 1, "sum"), txn=8),
            history.add("probe", position("in-0", 1, "sum")),
        ),
        "whether group sum consumed all that it went past: no poll in the history names the group",
    ),
]


def test_of_a_history_in_which_all_was_looked_at_all_is_judged() -> None:
    history = Recorder()
    copied_and_read(history)
    verdict = check_history(history.table())
    assert (verdict.violations, verdict.unproved, verdict.not_judged) == ({}, "", ())


@pytest.mark.parametrize(("more", "sentence"), PARTS, ids=[sentence[:40] for _, sentence in PARTS])
def test_a_part_that_was_not_looked_at_is_named(more: Story, sentence: str) -> None:
    history = Recorder()
    copied_and_read(history)
    more(history)
    verdict = check_history(history.table())
    assert (verdict.violations, verdict.not_judged) == ({}, (sentence,))


def test_what_was_looked_for_in_vain_is_judged() -> None:
    history = Recorder()
    copied_and_read(history)
    history.add("writer", send("in-0", "x", 1), send("in-0", "y"))
    history.add("final", window("in-0", 1, 9))
    history.add("probe", log_end("in-0", 1), stable_end("in-0", 1), position("in-0", 1, "copy"))
    verdict = check_history(history.table())
    assert (verdict.violations, verdict.not_judged) == ({"lost": 1, "unseen": 1}, ())


def test_who_writes_without_a_transaction_leaves_none_open() -> None:
    """So what stands open beside it hangs, also where it wrote behind the question."""
    history = Recorder()
    copied_and_read(history)
    history.add("probe", log_end("out-0", 5), stable_end("out-0", 2))
    history.add("other", send("out-0", "x"), status="fail")
    assert check_history(history.table()).violations == {"hung_transaction": 1}


def test_what_was_sent_between_the_questions_for_the_ends_hangs_nowhere() -> None:
    history = Recorder()
    copied_and_read(history)
    history.add("probe", stable_end("out-0", 2))
    history.add("other", send("out-0", "x", 2))
    history.add("probe", log_end("out-0", 3))
    history.add("final", window("out-0", 2, 3), poll("out-0", 2, "x"))
    verdict = check_history(history.table())
    assert (verdict.violations, verdict.not_judged) == ({}, (f"whether a transaction hangs on out-0{READ_SINCE}",))


def test_of_two_who_ask_at_the_same_time_one_may_be_told_of_less() -> None:
    history = Recorder()
    copied_and_read(history)
    history.add("probe", log_end("in-0", 5), stable_end("in-0", 5))
    history.add("slower probe", log_end("in-0", 1), stable_end("in-0", 1))
    assert check_history(history.table()).not_judged == ()


def test_readers_are_held_against_each_other_where_no_send_is_recorded() -> None:
    """Foreign producers: nothing can be missing, but one place has one record."""
    history = Recorder()
    for reader in ("one", "two"):
        history.add(reader, poll("k", 0, "a"), poll("k", 1, "b"), window("k", 0, 2))
    verdict = check_history(history.table())
    assert (verdict.violations, verdict.unproved) == ({}, "")
    history.add("three", poll("k", 0, "c"))
    assert check_history(history.table()).violations == {"inconsistent_offsets": 1}


def test_who_makes_some_checks_only_is_not_told_of_others() -> None:
    history = Recorder()
    history.add("writer", send("k", "x", 0))
    assert check_history(history.table(), [CHECKS["lost"]]).not_judged == ()
    assert check_history(history.table()).not_judged
