"""Recovery times and holds of the last stable offset, from what was seen."""

from __future__ import annotations

import pyarrow as pa
import pytest

from onceflow.verify.result import Encounter, Lost
from onceflow.verify.running.course import Effect
from onceflow.verify.running.recovery import Strike, longest_hold, others_lost, recoveries

BEGAN = 1000.0


def effect(batch: int, at_s: float, generation: int = 1) -> Effect:
    return Effect(generation, batch, BEGAN + at_s)


def measured(strikes: list[Strike], effects: list[Effect], seen_s: list[float]) -> list[tuple[str, float | None]]:
    found = recoveries(strikes, effects, BEGAN, seen_s)
    return [(each.fault, None if each.seconds is None else round(each.seconds, 6)) for each in found]


def test_a_recovery_ends_with_the_first_record_of_a_batch_that_was_not_committed_before() -> None:
    strikes = [Strike("kill", 10.0)]
    effects = [effect(4, 9.0), effect(5, 13.0, 2)]
    assert measured(strikes, effects, [9.1, 10.2, 13.5, 14.0]) == [("kill", 3.5)]


def test_a_batch_whose_commit_had_begun_does_not_count_though_it_comes_again() -> None:
    """Killed between EndTxn and its answer: the batch may be visible a moment later, and that is no recovery."""
    strikes = [Strike("kill", 10.0)]
    effects = [effect(4, 9.9), effect(4, 12.0, 2), effect(5, 14.0, 2)]
    assert measured(strikes, effects, [10.1, 12.1, 14.1]) == [("kill", 4.1)]


def test_a_kill_in_a_recovery_makes_it_longer() -> None:
    """There was no output from the first one on, and the recovery is not that of one kill."""
    strikes = [Strike("twice", 10.0), Strike("twice", 12.0), Strike("twice", 20.0)]
    effects = [effect(4, 9.0), effect(5, 15.0, 3), effect(6, 22.0, 4)]
    assert measured(strikes, effects, [15.5, 23.0]) == [("twice", 5.5), ("twice", 3.0)]
    found = recoveries(strikes, effects, BEGAN, [15.5, 23.0])
    assert [each.others for each in found] == [("twice",), ()]
    assert [(each.since_last_kill.at_s, each.since_last_kill.seconds) for each in found] == [(12.0, 3.5), (20.0, 3.0)]


def test_a_second_loss_by_one_fault_is_not_one_of_one_loss() -> None:
    """A standby that was frozen wakes, and fences the successor behind the recovery from the first loss."""
    strikes = [Strike("woke", 10.0), Strike("woke", 22.0, lost=Lost.ENDED), Strike("woke", 90.0)]
    effects = [effect(4, 9.0), effect(5, 13.0, 2), effect(6, 70.0, 3), effect(7, 93.0, 4)]
    encounters = [Encounter("woke", 9.5, True, ""), Encounter("woke", 89.0, True, "")]
    found = recoveries(strikes, effects, BEGAN, [13.5, 70.5, 93.5], encounters)
    assert [(each.seconds, each.others) for each in found] == [(3.5, ()), (48.5, ("woke",)), (3.5, ())]


def test_a_driver_that_is_stopped_and_ends_when_it_wakes_is_one_loss() -> None:
    strikes = [Strike("stop", 10.0, kills=False), Strike("stop", 12.0, lost=Lost.ENDED)]
    encounters = [Encounter("stop", 9.5, True, "")]
    (found,) = recoveries(strikes, [effect(4, 9.0), effect(5, 15.0, 2)], BEGAN, [15.5], encounters)
    assert (found.seconds, found.others) == (3.5, ())


def test_a_kill_right_before_it_is_over_has_its_own_time() -> None:
    """The successor's first batch is visible a moment after it was killed: that is no output behind this kill."""
    strikes = [Strike("kill", 10.0), Strike("kill", 13.9)]
    effects = [effect(4, 9.0), effect(5, 13.8, 2), effect(6, 18.0, 3)]
    (found,) = recoveries(strikes, effects, BEGAN, [14.0, 18.3])
    assert (found.seconds, found.since_last_kill.at_s) == (4.0, 13.9)
    assert found.since_last_kill.seconds == pytest.approx(4.4)


def test_a_successor_that_ends_by_itself_is_not_killed_again() -> None:
    strikes = [Strike("kill", 10.0), Strike("kill", 13.0, lost=Lost.ENDED)]
    (found,) = recoveries(strikes, [effect(4, 9.0), effect(5, 18.0, 3)], BEGAN, [18.3])
    assert found.since_last_kill == found


def test_a_stop_of_the_successor_makes_it_longer() -> None:
    strikes = [Strike("kill", 10.0), Strike("pause", 40.0, kills=False)]
    effects = [effect(4, 9.0), effect(5, 59.0, 3)]
    assert measured(strikes, effects, [60.0]) == [("kill", 50.0)]
    (found,) = recoveries(strikes, effects, BEGAN, [60.0])
    assert found.since_last_kill == found


def test_a_driver_that_was_only_stopped_is_no_recovery() -> None:
    strikes = [Strike("kill", 10.0), Strike("pause", 20.0, kills=False)]
    effects = [effect(4, 9.0), effect(5, 15.0, 2), effect(6, 25.0, 3)]
    assert measured(strikes, effects, [15.5, 26.0]) == [("kill", 5.5)]


def test_a_resumed_checkpoint_begins_at_batch_0_again() -> None:
    strikes = [Strike("lose-offsets", 10.0)]
    assert measured(strikes, [effect(7, 9.0), effect(0, 13.0, 2)], [13.2]) == [("lose-offsets", 3.2)]


def test_nothing_new_until_the_end_is_told_as_such() -> None:
    assert measured([Strike("kill", 10.0)], [effect(4, 9.0)], [9.5]) == [("kill", None)]
    assert measured([Strike("kill", 10.0)], [effect(4, 9.0), effect(5, 13.0)], [9.5]) == [("kill", None)]


def met(fault: str, at_s: float, *, in_row: bool = False) -> Encounter:
    return Encounter(fault, at_s, True, "", in_row=in_row)


def test_a_recovery_names_the_faults_that_had_a_hand_in_it() -> None:
    """Those before it in its row, and those that came until new output was seen; not those that were waited for."""
    strikes = [Strike("kill", 10.0), Strike("kill", 50.0)]
    effects = [effect(4, 9.0), effect(5, 13.0, 2), effect(6, 55.0, 3)]
    faults = [
        met("early", 2.0), met("kill", 9.5), met("cut", 12.0, in_row=True), met("delay", 14.0, in_row=True),
        met("freeze", 45.0), met("kill", 49.0, in_row=True), met("late", 56.0),
    ]  # fmt: skip
    found = recoveries(strikes, effects, BEGAN, [13.5, 55.5], faults)
    assert [each.others for each in found] == [("cut",), ("freeze",)]


def test_without_an_end_all_faults_that_follow_have_a_hand_in_a_recovery() -> None:
    (found,) = recoveries([Strike("kill", 10.0)], [effect(4, 9.0)], BEGAN, [9.5], [met("kill", 9.9), met("cut", 99.0)])
    assert found.others == ("cut",)


def test_another_process_that_is_lost_has_a_recovery_where_work_was_under_way() -> None:
    """The same driver goes on: its next batch is the first that had not begun to be committed."""
    faults = [
        met("kill-executor", 10.0), Encounter("kill-broker", 20.0, False, "no batch was under way"),
        met("pause-broker", 25.0), met("kill-broker", 30.0), met("cut", 31.0, in_row=True),
    ]  # fmt: skip
    strikes = others_lost(faults, {"kill-executor", "kill-broker"})
    effects = [effect(4, 9.9), effect(4, 12.0), effect(5, 13.0), effect(6, 36.0)]
    found = recoveries(strikes, effects, BEGAN, [12.1, 13.5, 36.25], faults)
    assert [(each.fault, each.seconds, each.others) for each in found] == [
        ("kill-executor", 3.5, ()),
        ("kill-broker", 6.25, ("cut",)),
    ]
    assert {each.lost for each in found} == {Lost.OTHER}


def samples(*rows: tuple[str, int, float, int, int], answers_take_s: float = 0.0) -> pa.Table:
    names = ("topic", "partition", "at_s", "stable", "end", "answered_s")
    types = (pa.string(), pa.int32(), pa.float64(), pa.int64(), pa.int64(), pa.float64())
    answered = [(*row, row[2] + answers_take_s) for row in rows]
    columns = [*zip(*answered, strict=True)] or [()] * len(names)
    return pa.table([pa.array(each, kind) for each, kind in zip(columns, types, strict=True)], names=[*names])


def test_the_longest_hold_after_a_kill_is_that_of_one_partition() -> None:
    table = samples(
        ("a", 0, 9.0, 5, 5), ("a", 0, 10.5, 5, 9), ("a", 0, 12.0, 5, 9), ("a", 0, 13.0, 10, 10),
        ("a", 1, 10.5, 3, 4), ("a", 1, 11.0, 5, 5),
    )  # fmt: skip
    assert longest_hold(table, [Strike("kill", 10.0)]) == 3.0


def test_transactions_of_those_that_live_are_not_counted() -> None:
    table = samples(("a", 0, 10.5, 5, 9), ("a", 0, 20.0, 5, 9))
    assert longest_hold(table, []) is None
    open_later = samples(("a", 0, 10.5, 9, 9), ("a", 0, 11.0, 9, 12), ("a", 0, 15.0, 13, 13))
    assert longest_hold(open_later, [Strike("kill", 10.0)]) == 0.0


def test_a_hold_without_an_end_lasts_until_the_last_sample() -> None:
    table = samples(("a", 0, 10.5, 5, 9), ("a", 0, 30.0, 5, 9))
    assert longest_hold(table, [Strike("kill", 10.0)]) == 20.0


def test_a_hold_lasts_until_an_answer_shows_that_it_is_over() -> None:
    """A broker that was frozen answers late, of the moment at which it answers; when it was asked, the hold was there."""
    strike = [Strike("kill", 10.0)]
    held = [("a", 0, 10.5, 5, 9), ("a", 0, 12.0, 5, 9)]
    assert longest_hold(samples(*held, ("a", 0, 13.0, 10, 10), answers_take_s=2.0), strike) == 5.0
    assert longest_hold(samples(*held, answers_take_s=2.0), strike) == 4.0, "of the last sample of all as well"
    at_once = samples(("a", 0, 9.0, 5, 5), ("a", 0, 10.5, 9, 9), answers_take_s=2.75)
    assert longest_hold(at_once, strike) == 3.25, "for so long it may have been one: nobody was answered"


def test_what_nobody_looked_at_may_have_been_a_hold() -> None:
    strike = [Strike("kill", 10.0)]
    before, late = samples(("a", 0, 9.0, 5, 5)), samples(("a", 0, 9.0, 5, 5), ("a", 0, 60.0, 9, 9))
    assert longest_hold(samples(), strike) is None
    assert longest_hold(before, strike) is None
    assert longest_hold(late, strike) == 50.0


def test_a_partition_that_nobody_looked_at_any_more_makes_the_hold_unknown() -> None:
    table = samples(("a", 0, 10.5, 5, 9), ("a", 0, 11.0, 9, 9), ("b", 0, 9.0, 5, 5))
    assert longest_hold(table, [Strike("kill", 10.0)]) is None


def test_a_hold_that_the_first_look_shows_is_counted_however_late_that_is() -> None:
    table = samples(("a", 0, 12.0, 5, 9), ("a", 0, 50.0, 9, 9))
    assert longest_hold(table, [Strike("kill", 10.0)]) == 40.0


def test_a_partition_that_was_added_after_a_kill_held_nothing_then() -> None:
    rows = [("a", 0, float(at_s), 5, 5) for at_s in (9, 10, 11, 40, 50)]
    added = samples(*rows, ("a", 1, 40.0, 0, 3), ("a", 1, 50.0, 4, 4))
    assert longest_hold(added, [Strike("kill", 10.0)]) == 0.0
    assert longest_hold(added, [Strike("kill", 38.0)]) == 12.0, "it was there, and nobody knew of it yet"


def test_a_hold_that_begins_a_moment_after_the_kill_is_counted() -> None:
    """A Produce of the dead driver was on the wire still."""
    table = samples(("a", 0, 10.1, 5, 5), ("a", 0, 10.4, 5, 9), ("a", 0, 60.0, 9, 9))
    assert longest_hold(table, [Strike("kill", 10.0)]) == 50.0
