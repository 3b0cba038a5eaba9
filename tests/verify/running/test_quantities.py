"""Quantities over time: what is not known is a gap, and what comes after the run is no part of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.result import Happening, Lane
from onceflow.verify.running.outcome import SILENT_S, summed, until


def sums(*samples: tuple[float, int]) -> list[tuple[float, float]]:
    at_s, value = zip(*samples, strict=True)
    found = summed(pa.chunked_array([pa.array(at_s)]), pa.chunked_array([pa.array(value)]))
    return [(at, float(value)) for at, value in zip(*found, strict=True) if np.isfinite(value)]


def test_partitions_are_summed() -> None:
    assert sums((1.0, 5), (1.0, 7), (2.0, 6), (2.0, 8)) == [(1.0, 12.0), (2.0, 14.0)]


def test_the_sum_of_some_partitions_is_no_sum() -> None:
    """A frozen broker answers for none of its own; the lag must not fall by what they have."""
    assert sums((1.0, 5), (1.0, 7), (2.0, 6), (3.0, 7), (3.0, 9)) == [(1.0, 12.0), (3.0, 16.0)]


def test_a_topic_may_grow() -> None:
    assert sums((1.0, 5), (2.0, 6), (2.0, 1)) == [(1.0, 5.0), (2.0, 7.0)]


def test_silence_is_a_gap() -> None:
    at_s = pa.chunked_array([pa.array([1.0, 1.0 + SILENT_S, 10.0])])
    at, value = summed(at_s, pa.chunked_array([pa.array([1, 2, 3])]))
    assert at.tolist() == [1.0, 1.0 + SILENT_S, (1.0 + SILENT_S + 10.0) / 2, 10.0]
    assert np.isnan(value).tolist() == [False, False, True, False]


def test_what_lives_on_while_the_run_is_judged_ends_with_the_run() -> None:
    alive, late = Happening(Lane.BROKER, "broker 1", 0, 95), Happening(Lane.NOTE, "ended", 80, 80)
    early = Happening(Lane.BATCH, "batch 1", 3, 4)
    assert until([alive, late, early], 60) == (Happening(Lane.BROKER, "broker 1", 0, 60), early)
