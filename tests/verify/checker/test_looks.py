"""The last look at each place, against its definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onceflow.verify.checker import Evidence, check_history
from onceflow.verify.checker.evidence import place
from onceflow.verify.checker.looks import Looks, last_over
from onceflow.verify.history import Columns, Recorder
from onceflow.verify.history.recorder import log_end, send, window

LENGTH = 40
ranges = st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted), max_size=30)


@given(ranges)
def test_the_last_range_over_each_index(chosen: list[list[int]]) -> None:
    begin, end = np.array(chosen, np.int64).reshape(-1, 2).T
    expected = [
        max((number for number, (low, high) in enumerate(chosen) if low <= index < high), default=-1)
        for index in range(LENGTH)
    ]
    assert last_over(begin, end, LENGTH).tolist() == expected


def test_a_look_is_a_window_or_the_end_of_the_log_and_counts_where_its_operation_ends() -> None:
    history = Recorder()
    history.add("one", window("k", 0, 4), window("j", 0, 9))  # rows 0, 1
    history.add("two", window("k", 2, 3))  # row 2
    history.add("two", window("k", 0, 1), status="fail")
    history.add("probe", log_end("k", 3))  # row 4
    looks = Looks(Evidence(Columns.of(history.table())))
    assert looks.last_at(place(np.zeros(6, np.int64), np.arange(6))).tolist() == [0, 0, 2, 4, 4, 4]
    assert looks.last_at(place(np.ones(3, np.int64), np.array([0, 8, 9]))).tolist() == [1, 1, -1]
    here = place(np.array([0, 1, 0, 0, 1]), np.array([0, 0, 2, 3, 9]))
    assert looks.last_from_here_to_end(here).tolist() == [0, -1, 2, 4, -1]  # where j ends nobody says
    assert looks.ended(np.array([0, 1, 2, 4, -1])).tolist() == [1, 1, 2, 4, -1]


def test_a_history_of_keys_without_rows_shows_nothing() -> None:
    """As that of a run that broke off before anything was recorded."""
    history = Recorder()
    history.add("one", send("k", "a", 0), window("k", 0, 4), log_end("k", 3))
    assert check_history(history.table()[:0]).violations == {}
