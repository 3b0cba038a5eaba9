"""Quantities over time: what is not known is a gap, and what comes after the run is no part of it."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest

from onceflow.verify.cluster.placement import GROUPS_TOPIC
from onceflow.verify.oracle.judging.matching import NOTHING
from onceflow.verify.recording.tables import READ, STABLE
from onceflow.verify.result import Happening, Lane
from onceflow.verify.running.outcome import (
    SILENT_S,
    doubted_times,
    first_sights,
    held_by_the_dead,
    stood_for,
    summed,
    until,
)
from onceflow.verify.running.recovery import Strike
from onceflow.verify.running.timeline import Timeline


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


@pytest.mark.parametrize(
    ("moved_s", "told"), [(0.4, ""), (-0.4, ""), (3.21, "ahead by 3.2 s"), (-3600.0, "back by 3600.0 s")]
)
def test_a_clock_that_was_set_puts_the_times_in_doubt(
    monkeypatch: pytest.MonkeyPatch, moved_s: float, told: str
) -> None:
    """Engines are other processes, with which the run shares the wall clock alone."""
    timeline, true = Timeline(), time.time
    monkeypatch.setattr(time, "time", lambda: true() + moved_s)
    assert timeline.clock_moved_s == pytest.approx(moved_s, abs=0.05)
    found = doubted_times(timeline.clock_moved_s)
    assert told in found
    assert bool(found) == bool(told)


def test_what_lives_on_while_the_run_is_judged_ends_with_the_run() -> None:
    alive, late = Happening(Lane.BROKER, "broker 1", 0, 95), Happening(Lane.NOTE, "ended", 80, 80)
    early = Happening(Lane.BATCH, "batch 1", 3, 4)
    assert until([alive, late, early], 60) == (Happening(Lane.BROKER, "broker 1", 0, 60), early)


def stable(*samples: tuple[str, float, int, int]) -> pa.Table:
    """Samples of one partition of each topic: topic, time, last stable offset, end."""
    rows = [(at_s, topic, 0, 0, stable, end, at_s) for topic, at_s, stable, end in samples]
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, STABLE, strict=True)], schema=STABLE)


def test_the_dead_hold_what_they_write_to_and_where_their_positions_are() -> None:
    """The input is held by writers that live; the output was free at once, and the group was not."""
    samples = stable(
        ("in", 10.1, 5, 9), ("in", 90.0, 5, 9),
        ("out", 10.1, 3, 3), ("out", 90.0, 3, 3),
        (GROUPS_TOPIC, 10.1, 7, 9), (GROUPS_TOPIC, 22.5, 10, 10), (GROUPS_TOPIC, 90.0, 10, 10),
    )  # fmt: skip
    strikes = [Strike("kill", 10.0)]
    assert held_by_the_dead(samples, ("out",), strikes, {}) == 12.5
    assert held_by_the_dead(samples, ("out", "in"), strikes, {}) == 80.0


def test_what_is_left_of_a_killed_driver_holds_until_another_one_acts() -> None:
    samples = stable(("out", 10.1, 3, 3), ("out", 15.0, 3, 8), ("out", 15.3, 3, 8), ("out", 22.5, 9, 9))
    strikes = [Strike("kill", 10.0, generation=1)]
    assert held_by_the_dead(samples, ("out",), strikes, {1: 2.0, 2: 22.0}) == 12.5
    assert held_by_the_dead(samples, ("out",), strikes, {1: 2.0, 2: 14.0}) == 0.0


def test_what_stands_still_counts_whoever_holds_it() -> None:
    """Nobody was killed. Two batches, one behind the other, hold it at two offsets, and the longer one counts alone."""
    samples = stable(
        ("in", 10.0, 5, 9), ("in", 90.0, 5, 9),
        ("out", 10.0, 3, 3), ("out", 11.0, 3, 8), ("out", 13.0, 9, 20), ("out", 29.0, 21, 21), ("out", 90.0, 21, 21),
    )  # fmt: skip
    assert stood_for(samples, ("out",)) == 16.0
    assert stood_for(samples.slice(2, 1), ("out",)) == 0.0
    assert stood_for(samples, ("other",)) is None


def test_a_record_that_a_reader_got_again_is_seen_once() -> None:
    rows = [(1.0, 0, "a", 0, 5), (2.0, 1, "a", 0, 6), (3.0, 2, "a", 0, 5), (3.0, 2, "a", 1, 5), (3.5, 3, "b", 0, 5)]
    columns = zip(*((*row, None, None, 7) for row in rows), strict=True)
    reads = pa.table([pa.array(each, field.type) for each, field in zip(columns, READ, strict=True)], schema=READ)
    batches = pa.array([7, 7, 7, 8, NOTHING])
    found = first_sights(reads.append_column("batch", batches))
    assert (found.at_s.tolist(), found.batch.tolist()) == ([1.0, 2.0, 3.0, 3.5], [7, 7, 8, NOTHING])
    nothing = first_sights(READ.empty_table().append_column("batch", pa.array([], pa.int64())))
    assert (nothing.at_s.tolist(), nothing.batch.tolist()) == ([], [])
