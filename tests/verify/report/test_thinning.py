from __future__ import annotations

import numpy as np
import pytest

from onceflow.verify.report.thinning import merged, places, thin, tracks, unbroken


def test_a_million_points_keep_their_ends_and_their_peaks() -> None:
    at = np.linspace(0, 3600, 1_000_000)
    value = np.sin(at)
    value[123_456], value[777_777] = 50, -50
    few_at, few = thin(at, value, 500)
    assert 500 < len(few) <= 1002
    assert (few_at[0], few_at[-1]) == (0, 3600)
    assert (few.max(), few.min()) == (50, -50)
    assert (np.diff(few_at) > 0).all()
    assert set(few_at) <= set(at)


def test_few_points_stay_as_they_are_but_for_order_and_holes() -> None:
    at, value = thin(np.array([3.0, 1.0, 2.0, np.nan]), np.array([30.0, 10.0, np.inf, 5.0]), 10)
    assert (at.tolist(), value.tolist()) == ([1, 3], [10, 30])


@pytest.mark.parametrize("at", [np.zeros(1000), np.repeat([0.0, 1e9], 500)])
def test_points_at_one_time_are_thinned_too(at: np.ndarray) -> None:
    value = np.arange(1000.0)
    assert {0, 999} <= set(thin(at, value, 10)[1].tolist())
    assert len(thin(at, value, 10)[0]) <= 22


def test_places_are_no_more_than_can_be_seen() -> None:
    assert len(places(np.linspace(0, 100, 10_000).tolist(), 100, 200)) == 201
    assert places([50.1, 0.3, 0.3], 100, 2).tolist() == [0.3, 50.1]


def test_spans_that_overlap_lie_on_tracks_of_their_own() -> None:
    assert tracks([(0, 5), (5, 9), (1, 2), (3, 8)], 4) == [[(0, 5), (5, 9)], [(1, 2), (3, 8)]]
    assert tracks([(0, 9), (1, 9), (2, 9)], 2) == [[(0, 9)], [(1, 9), (2, 9)]]


def test_many_spans_become_few_and_cover_the_same() -> None:
    spans = [(n * 1.0, n + 0.5) for n in range(1000)]
    assert merged(spans, 1000, 1000) == spans
    assert merged(spans, 100, 1000) == [(0, 999.5)]
    assert merged([(0, 1), (0.2, 0.3), (80, 90)], 2, 100) == [(0, 1), (80, 90)]


def test_a_line_is_broken_where_something_is_not_known() -> None:
    value = np.array([np.nan, 1, 2, np.nan, np.inf, 3, np.nan])
    found = unbroken(np.arange(7.0), value)
    assert [(at.tolist(), some.tolist()) for at, some in found] == [([1, 2], [1, 2]), ([5], [3])]
    assert unbroken(np.arange(2.0), np.array([np.nan, np.nan])) == []
