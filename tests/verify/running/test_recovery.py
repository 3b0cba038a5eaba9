"""Recovery times and holds of the last stable offset, from what was seen."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from onceflow.verify.engines import ENGINES
from onceflow.verify.oracle.judging.matching import NOTHING
from onceflow.verify.result import Encounter, Lost
from onceflow.verify.running.course import Course, Effect
from onceflow.verify.running.new_output import Output, Sights
from onceflow.verify.running.recovery import Strike, longest_hold, others_lost, recoveries
from onceflow.verify.running.timeline import Timeline


def effect(batch: int, at_s: float, generation: int = 1) -> Effect:
    return Effect(generation, batch, at_s)


Seen = Sequence[float | tuple[float, int]]
"""When each record was seen, and of which batch it is, where that is known."""


def output(effects: list[Effect], seen: Seen, told: list[Effect] | None = None) -> Output:
    """Commits take no time, but for those that were ``told`` later."""
    named = [each if isinstance(each, tuple) else (each, NOTHING) for each in seen]
    at_s, batch = np.array([at_s for at_s, _ in named], float), np.array([batch for _, batch in named], int)
    return Output(effects, effects if told is None else told, Sights(at_s, batch))


def measured(strikes: list[Strike], found: Output) -> list[tuple[str, float | None]]:
    return [
        (each.fault, None if each.seconds is None else round(each.seconds, 6)) for each in recoveries(strikes, found)
    ]


def test_a_recovery_ends_with_the_first_record_of_a_batch_that_was_not_committed_before() -> None:
    strikes = [Strike("kill", 10.0)]
    effects = [effect(4, 9.0), effect(5, 13.0, 2)]
    assert measured(strikes, output(effects, [9.1, 10.2, 13.5, 14.0])) == [("kill", 3.5)]


def test_a_batch_whose_commit_had_begun_does_not_count_though_it_comes_again() -> None:
    """Killed between EndTxn and its answer: the batch may be visible a moment later, and that is no recovery."""
    strikes = [Strike("kill", 10.0)]
    effects = [effect(4, 9.9), effect(4, 12.0, 2), effect(5, 14.0, 2)]
    assert measured(strikes, output(effects, [10.1, 12.1, 14.1])) == [("kill", 4.1)]


def test_what_the_struck_driver_commits_itself_is_no_recovery() -> None:
    """The Python of a driver without a JVM sends no more, but may commit what it has sent."""
    effects = [effect(6, 9.5), effect(7, 10.02), effect(8, 40.0, 2)]
    known = [(9.6, 6), (10.1, 7), (40.1, 8)]
    for seen in (known, [at_s for at_s, _ in known]):
        assert measured([Strike("jvm", 10.0, generation=1)], output(effects, seen)) == [("jvm", 30.1)]
    again = output([*effects[:2], effect(7, 39.0, 2), effects[-1]], [(39.1, 7), (40.1, 8)])
    assert measured([Strike("jvm", 10.0, generation=1)], again) == [("jvm", 30.1)], "it may have been committed before"
    two = output([*effects[:2], effect(8, 10.05), effect(9, 40.0, 2)], [10.1, 10.2, 40.1])
    assert measured([Strike("kill", 10.0, generation=1)], two) == [("kill", 30.1)], "the signal came later"


def test_what_another_driver_commits_meanwhile_is_a_recovery() -> None:
    effects = [effect(6, 9.5), effect(7, 10.02, 2)]
    assert measured([Strike("kill", 10.0, generation=1)], output(effects, [(10.1, 7)])) == [("kill", 0.1)]


def test_from_the_last_kill_on_its_own_driver_does_not_count() -> None:
    strikes = [Strike("twice", 10.0, generation=1), Strike("twice", 12.0, generation=2)]
    effects = [effect(4, 9.0), effect(5, 12.02, 2), effect(6, 15.0, 3)]
    (found,) = recoveries(strikes, output(effects, [(12.1, 5), (15.5, 6)]))
    assert found.seconds == pytest.approx(2.1), "for the first kill the second driver is another one"
    assert (found.since_last_kill.at_s, found.since_last_kill.seconds) == (12.0, 3.5)


@pytest.mark.parametrize("lost", [Lost.DRIVER, Lost.OTHER])
def test_records_of_an_older_batch_that_are_seen_late_are_no_recovery(lost: Lost) -> None:
    """The reader gets what there is a few times a second, and a marker takes its time."""
    strikes = [Strike("kill", 10.0, lost=lost)]
    begun, told = [effect(6, 9.93), effect(7, 10.02)], [effect(6, 9.94), effect(7, 16.0)]
    assert measured(strikes, output(begun, [(10.15, 6), (16.2, 7)], told)) == [("kill", 6.2)]
    assert measured(strikes, output(begun, [(10.15, 6), (15.9, 7)], told)) == [("kill", 5.9)], "told is behind visible"
    unknown = output(begun, [10.15, 16.2], told)
    assert measured(strikes, unknown) == [("kill", 6.2)], "where batches are not known, what is told counts"
    assert measured(strikes, output(begun, [10.15, 16.2], told[:1])) == [("kill", None)], "and it is never told"


def test_a_later_batch_ends_a_recovery_where_the_first_one_writes_nothing() -> None:
    begun = [effect(6, 9.0), effect(7, 13.0, 2), effect(8, 14.0, 2)]
    assert measured([Strike("kill", 10.0)], output(begun, [(13.1, 6), (14.2, 8)])) == [("kill", 4.2)]


def test_a_batch_that_was_never_told_to_begin_does_not_end_a_recovery() -> None:
    """An engine that tells nothing before it has committed: what was committed as it was killed is seen a moment later."""
    told = [effect(6, 9.0), effect(7, 13.0, 2), effect(8, 14.0, 2)]
    assert measured([Strike("kill", 10.0)], output(told, [(10.1, 7), (14.2, 8)])) == [("kill", 4.2)]


def test_the_output_of_a_run_is_in_its_seconds_and_in_order() -> None:
    """Each driver is heard by a thread of its own, and the clock is that of the machine."""
    course = Course(ENGINES["onceflow"], Timeline(), threading.Condition())
    course.effects = [Effect(2, 8, 1012.0), Effect(1, 7, 1010.0)]
    course.commits_told = [Effect(2, 8, 1013.0)]
    found = Output.of(course, 1000.0, output([], []).seen)
    assert (found.begun, found.told) == ([effect(7, 10.0), effect(8, 12.0, 2)], [effect(8, 13.0, 2)])


def test_a_kill_in_a_recovery_makes_it_longer() -> None:
    """There was no output from the first one on, and the recovery is not that of one kill."""
    strikes = [Strike("twice", 10.0), Strike("twice", 12.0), Strike("twice", 20.0)]
    effects = [effect(4, 9.0), effect(5, 15.0, 3), effect(6, 22.0, 4)]
    assert measured(strikes, output(effects, [15.5, 23.0])) == [("twice", 5.5), ("twice", 3.0)]
    found = recoveries(strikes, output(effects, [15.5, 23.0]))
    assert [each.others for each in found] == [("twice",), ()]
    assert [(each.since_last_kill.at_s, each.since_last_kill.seconds) for each in found] == [(12.0, 3.5), (20.0, 3.0)]


def test_a_second_loss_by_one_fault_is_not_one_of_one_loss() -> None:
    """A standby that was frozen wakes, and fences the successor behind the recovery from the first loss."""
    strikes = [Strike("woke", 10.0), Strike("woke", 22.0, lost=Lost.ENDED), Strike("woke", 90.0)]
    effects = [effect(4, 9.0), effect(5, 13.0, 2), effect(6, 70.0, 3), effect(7, 93.0, 4)]
    encounters = [Encounter("woke", 9.5, True, ""), Encounter("woke", 89.0, True, "")]
    found = recoveries(strikes, output(effects, [13.5, 70.5, 93.5]), encounters)
    assert [(each.seconds, each.others) for each in found] == [(3.5, ()), (48.5, ("woke",)), (3.5, ())]


def test_a_driver_that_is_stopped_and_ends_when_it_wakes_is_one_loss() -> None:
    strikes = [Strike("stop", 10.0, kills=False), Strike("stop", 12.0, lost=Lost.ENDED)]
    encounters = [Encounter("stop", 9.5, True, "")]
    (found,) = recoveries(strikes, output([effect(4, 9.0), effect(5, 15.0, 2)], [15.5]), encounters)
    assert (found.seconds, found.others) == (3.5, ())


def test_a_kill_right_before_it_is_over_has_its_own_time() -> None:
    """The successor's first batch is visible a moment after it was killed: that is no output behind this kill."""
    strikes = [Strike("kill", 10.0), Strike("kill", 13.9)]
    effects = [effect(4, 9.0), effect(5, 13.8, 2), effect(6, 18.0, 3)]
    (found,) = recoveries(strikes, output(effects, [14.0, 18.3]))
    assert (found.seconds, found.since_last_kill.at_s) == (4.0, 13.9)
    assert found.since_last_kill.seconds == pytest.approx(4.4)


def test_a_successor_that_ends_by_itself_is_not_killed_again() -> None:
    strikes = [Strike("kill", 10.0), Strike("kill", 13.0, lost=Lost.ENDED)]
    (found,) = recoveries(strikes, output([effect(4, 9.0), effect(5, 18.0, 3)], [18.3]))
    assert found.since_last_kill == found


def test_a_stop_of_the_successor_makes_it_longer() -> None:
    strikes = [Strike("kill", 10.0), Strike("pause", 40.0, kills=False)]
    effects = [effect(4, 9.0), effect(5, 59.0, 3)]
    assert measured(strikes, output(effects, [60.0])) == [("kill", 50.0)]
    (found,) = recoveries(strikes, output(effects, [60.0]))
    assert found.since_last_kill == found


def test_a_driver_that_was_only_stopped_is_no_recovery() -> None:
    strikes = [Strike("kill", 10.0), Strike("pause", 20.0, kills=False)]
    effects = [effect(4, 9.0), effect(5, 15.0, 2), effect(6, 25.0, 3)]
    assert measured(strikes, output(effects, [15.5, 26.0])) == [("kill", 5.5)]


def test_a_resumed_checkpoint_begins_at_batch_0_again() -> None:
    strikes = [Strike("lose-offsets", 10.0)]
    assert measured(strikes, output([effect(7, 9.0), effect(0, 13.0, 2)], [13.2])) == [("lose-offsets", 3.2)]


def test_nothing_new_until_the_end_is_told_as_such() -> None:
    assert measured([Strike("kill", 10.0)], output([effect(4, 9.0)], [9.5])) == [("kill", None)]
    assert measured([Strike("kill", 10.0)], output([effect(4, 9.0), effect(5, 13.0)], [9.5])) == [("kill", None)]


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
    found = recoveries(strikes, output(effects, [13.5, 55.5]), faults)
    assert [each.others for each in found] == [("cut",), ("freeze",)]


def test_without_an_end_all_faults_that_follow_have_a_hand_in_a_recovery() -> None:
    (found,) = recoveries([Strike("kill", 10.0)], output([effect(4, 9.0)], [9.5]), [met("kill", 9.9), met("cut", 99.0)])
    assert found.others == ("cut",)


def test_another_process_that_is_lost_has_a_recovery_where_work_was_under_way() -> None:
    """The same driver goes on: its next batch is the first that had not begun to be committed."""
    faults = [
        met("kill-executor", 10.0), Encounter("kill-broker", 20.0, False, "no batch was under way"),
        met("pause-broker", 25.0), met("kill-broker", 30.0), met("cut", 31.0, in_row=True),
    ]  # fmt: skip
    strikes = others_lost(faults, {"kill-executor", "kill-broker"})
    effects = [effect(4, 9.9), effect(4, 12.0), effect(5, 13.0), effect(6, 36.0)]
    found = recoveries(strikes, output(effects, [12.1, 13.5, 36.25]), faults)
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


def test_what_opens_before_another_driver_acts_is_of_the_dead() -> None:
    """Executors that have not missed their driver yet run its next tasks, each with a partition of its own."""
    killed = [Strike("kill", 10.0, generation=1)]
    table = samples(
        ("a", 0, 10.1, 5, 5), ("a", 0, 12.5, 5, 9), ("a", 0, 12.75, 5, 9), ("a", 0, 32.0, 10, 10),
        ("a", 0, 32.25, 10, 12), ("a", 0, 90.0, 13, 13),
    )  # fmt: skip
    assert longest_hold(table, killed, {1: 2.0, 2: 31.0, 3: 60.0}) == 22.0
    assert longest_hold(table, killed, {1: 2.0}) == 22.0, "nobody has come behind it"
    assert longest_hold(table, [Strike("kill", 10.0)], {1: 2.0, 2: 31.0}) == 0.0
    assert longest_hold(table, killed, {2: 31.0}) == 0.0, "it had not acted: another one still may"
    paused = [Strike("pause", 10.0, kills=False, generation=1)]
    assert longest_hold(table, paused, {1: 2.0, 2: 31.0}) == 0.0, "it may have gone on itself"


def test_what_may_have_opened_as_another_driver_acted_is_not_of_the_dead() -> None:
    """The end is asked for behind the stable offset: the next driver's claim may stand between both."""
    killed = [Strike("kill", 10.0, generation=1)]
    table = samples(("a", 0, 10.1, 5, 5), ("a", 0, 30.9, 5, 6), ("a", 0, 31.3, 7, 7), answers_take_s=0.05)
    assert longest_hold(table, killed, {1: 2.0, 2: 31.0}) == 0.0


def test_what_others_commit_between_both_questions_of_a_sample_is_no_hold() -> None:
    """The readers behind the output may have the same partition of the groups' topic for their own."""
    killed = [Strike("kill", 10.0, generation=1)]
    table = samples(("a", 0, 10.1, 5, 5), ("a", 0, 20.0, 5, 6), ("a", 0, 20.25, 6, 6), ("a", 0, 32.0, 7, 7))
    assert longest_hold(table, killed, {1: 2.0, 2: 31.0}) == 0.0


def test_of_two_holds_of_the_dead_the_one_that_ends_later_counts() -> None:
    killed = [Strike("kill", 10.0, generation=1)]
    table = samples(
        ("a", 0, 10.1, 5, 9),
        ("a", 0, 10.4, 9, 9),
        ("a", 0, 12.5, 9, 12),
        ("a", 0, 12.75, 9, 12),
        ("a", 0, 32.0, 13, 13),
    )
    assert longest_hold(table, killed, {1: 2.0, 2: 31.0}) == 22.0
    assert longest_hold(table, killed, {1: 2.0, 2: 12.0}) == pytest.approx(0.4)
