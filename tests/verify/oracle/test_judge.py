"""The judge on tables: a good run is good, and each way in which it can be spoilt is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.verify.oracle.logs import good_attempts, log_of
from tests.verify.oracle.tables import BATCHES, END, PER_BATCH, Look, Out, Range, Tables, outputs, ranges, swapped

from onceflow.verify.checker import check_history, shrink
from onceflow.verify.oracle.judging import judge
from onceflow.verify.oracle.judging.matching import NOTHING
from onceflow.verify.recording.log import Log


def violations(tables: Tables) -> dict[str, int]:
    return judge(tables.recorded(), tables.expected()).violations


def without_origin(records: list[Out]) -> list[Out]:
    """As a shuffle gives them: their order inside of a batch is not known."""
    return [replace(each, origin=None) for each in records]


@pytest.mark.parametrize(
    "tables",
    [
        Tables(),
        Tables(wanted=without_origin(outputs())),
        Tables(next_batch=None, position=0),  # Spark's own sink: its commit log has them all
        Tables(next_batch=None, finished=(0, 1)),  # the last one is visible, so it happened
        Tables(concurrent=[]),
        Tables(whole=True),
        Tables(grown=frozenset({"out"})),
    ],
    ids=lambda tables: ", ".join(f"{k}={v}" for k, v in vars(tables).items() if k not in ("wanted", "visible", "read")),
)
def test_a_good_run_is_good(tables: Tables) -> None:
    judgement = judge(tables.recorded(), tables.expected())
    assert judgement.violations == {}
    assert judgement.reasons == ()


def test_a_transaction_that_hangs_on_the_groups_partition_is_found() -> None:
    """It holds up no reader of records, and every start of the pipeline."""
    assert violations(Tables(group_stable=49)) == {"hung_transaction": 1}


@pytest.mark.parametrize(("asked_s", "hung"), [(1.5, 1), (0.5, 0), (None, 0)], ids=["before", "since", "not known"])
def test_what_was_read_before_the_ends_were_asked_for_excuses_no_open_transaction(
    asked_s: float | None, hung: int
) -> None:
    """The final reader stops at the stable end, and the one beside the run went behind it, at 1 s."""
    last = outputs()[-1].offset
    visible = [each for each in outputs() if (each.partition, each.offset) != (1, last)]
    tables = Tables(visible=visible, concurrent=outputs(), stable=last, asked_s=asked_s)
    judgement = judge(tables.recorded(), tables.expected())
    found = [row["key"] for row in judgement.findings.to_pylist() if row["anomaly"] == "hung_transaction"]
    assert found.count("out-1") == hung
    assert set(judgement.violations) == {"hung_transaction"}  # of out-0 nothing was read behind the stable end
    said = [part.split(", so")[0] for part in judgement.not_judged]
    why = "somebody read behind its stable_end while that was asked for, or since"
    assert said == ([] if hung else [f"whether a transaction hangs on out-1: {why}"])


def duplicate(tables: Tables) -> None:
    tables.visible.append(replace(tables.visible[1], offset=3))


def lose(tables: Tables) -> None:
    del tables.visible[4]


def lose_a_batch(tables: Tables) -> None:
    tables.visible = [each for each in tables.visible if each.batch != 1]


def change(tables: Tables) -> None:
    tables.visible[4] = replace(tables.visible[4], content=-5)


def swap_in_batch(tables: Tables) -> None:
    tables.visible = swapped(tables.visible, 0, 2)  # both of key 0


def swap_batches(tables: Tables) -> None:
    tables.visible = swapped(tables.visible, 1, 4)


def to_another_partition(tables: Tables) -> None:
    tables.visible[0] = replace(tables.visible[0], partition=1, offset=3)


def count_what_was_aborted(tables: Tables) -> None:
    """The second transaction of the input was aborted, and its output is there."""
    tables.sent_status[1] = "fail"
    tables.input_visible.remove(1)
    tables.wanted = [each for each in tables.wanted if each.batch != 1]


def show_an_aborted_input(tables: Tables) -> None:
    tables.sent_status[1] = "fail"


def show_what_was_not_committed(tables: Tables) -> None:
    tables.next_batch = 2
    tables.finished = (0, 1)
    tables.position = 8


def leave_a_transaction_open(tables: Tables) -> None:
    tables.stable = END - 1


def lag(tables: Tables) -> None:
    tables.position = 8


def run_ahead(tables: Tables) -> None:
    tables.position = END + 1


def commit_output_beside_the_positions(tables: Tables) -> None:
    """The output of the second batch with the positions of the third."""
    tables.next_batch = 2
    tables.finished = (0, 1)
    tables.visible = [each for each in tables.visible if each.batch < 2]


def another_value_later(tables: Tables) -> None:
    tables.concurrent = [replace(tables.visible[0], content=-9), *tables.visible[1:]]


def nothing_expected_there(tables: Tables) -> None:
    tables.wanted = [each for each in tables.wanted if each.partition == 0]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (duplicate, {"duplicated"}),
        (lose, {"torn_transaction"}),
        (lose_a_batch, {"unseen"}),
        (change, {"torn_transaction", "phantom"}),
        (swap_in_batch, {"int_nonmonotonic_send"}),
        (swap_batches, {"nonmonotonic_send"}),
        (to_another_partition, {"torn_transaction", "phantom"}),
        (count_what_was_aborted, {"phantom"}),
        (show_an_aborted_input, {"aborted_read"}),
        (show_what_was_not_committed, {"aborted_read", "stuck_progress"}),
        (leave_a_transaction_open, {"hung_transaction"}),
        (lag, {"stuck_progress", "torn_progress"}),
        (run_ahead, {"torn_progress"}),
        (commit_output_beside_the_positions, {"torn_progress"}),
        (another_value_later, {"phantom", "inconsistent_offsets"}),
        (nothing_expected_there, {"phantom"}),
    ],
)
def test_what_is_spoilt_is_named(spoil: Callable[[Tables], None], named: set[str]) -> None:
    tables = Tables()
    spoil(tables)
    judgement = judge(tables.recorded(), tables.expected())
    assert named <= set(judgement.violations)
    for finding in judgement.findings.to_pylist()[:3]:
        check = next(each for each in judgement.checks if each.anomaly == finding["anomaly"])
        assert 0 < len(shrink(judgement.history, finding, check)) <= 12


def test_a_repetition_is_not_also_a_disorder() -> None:
    tables = Tables()
    tables.visible.append(replace(tables.visible[0], offset=3))
    assert violations(tables) == {"duplicated": 1}


def test_what_a_fault_may_do_to_an_engine_without_progress_is_counted() -> None:
    """Spark's own sink, killed in a batch and run again: the duplicates, and nothing else."""
    tables = Tables(next_batch=None, finished=(0, 2))
    again = [replace(each, offset=each.offset + 20) for each in tables.visible if each.batch == 1]
    tables.visible += again
    assert violations(tables) == {"duplicated": len(again)}


def test_the_order_inside_of_a_batch_is_not_asked_of_a_shuffle() -> None:
    visible = swapped(outputs(), 0, 2)
    assert violations(Tables(wanted=without_origin(outputs()), visible=visible)) == {}
    assert violations(Tables(visible=swapped(outputs(), 0, 1))) == {}  # two keys


def test_records_without_a_key_may_stand_on_any_partition() -> None:
    wanted = [replace(each, partition=-1, key=None) for each in outputs()]
    visible = [replace(each, key=None) for each in outputs()]
    moved = [replace(visible[0], partition=1, offset=3), *visible[1:]]
    assert violations(Tables(wanted=wanted, visible=moved)) == {}
    assert violations(Tables(wanted=wanted, visible=moved[1:])) == {"torn_transaction": 1}


def without_key(records: list[Out]) -> list[Out]:
    return [replace(each, key=None) for each in records]


def test_one_record_on_any_partition_leaves_the_others_of_its_topic_where_the_plan_has_them() -> None:
    """All without a key; the plan names the partition of all but one."""
    everything = without_key(outputs())
    wanted = [replace(everything[0], partition=-1), *everything[1:]]
    assert violations(Tables(wanted=wanted, visible=everything)) == {}
    moved = [replace(everything[0], partition=1, offset=3), *everything[1:]]
    assert violations(Tables(wanted=wanted, visible=moved)) == {}
    assert violations(Tables(wanted=wanted, visible=everything[1:])) == {"torn_transaction": 1}
    assert violations(Tables(wanted=wanted, visible=[*everything, replace(everything[0], offset=3)])) == {
        "duplicated": 1
    }
    strayed = [everything[0], replace(everything[1], partition=1, offset=3), *everything[2:]]
    assert violations(Tables(wanted=wanted, visible=strayed)) == {"torn_transaction": 1, "phantom": 2}


def test_a_record_that_equals_one_on_any_partition_may_be_that() -> None:
    """Which of both was seen nobody can tell, nor in which order they are."""
    x, a = 70, 71
    free, named = Out(-1, 0, x, None, 0), Out(0, 0, x, None, 1)
    other = Out(0, 1, a, None, 1)
    for places in (((0, 0), (0, 4)), ((0, 4), (1, 0)), ((1, 9), (0, 5))):
        visible = [*(Out(*place, x, None) for place in places), Out(0, 6, a, None)]
        assert violations(Tables(wanted=[free, named, other], visible=visible)) == {}
        assert violations(Tables(wanted=[free, named, other], visible=visible[1:])) == {"torn_transaction": 1}
        assert violations(Tables(wanted=[free, named, other], visible=visible[:2])) == {"torn_transaction": 1}


def test_a_topic_that_grew_is_judged_as_a_whole() -> None:
    moved = [replace(outputs()[0], partition=1, offset=3), *outputs()[1:]]
    assert violations(Tables(visible=moved, grown=frozenset({"out"}))) == {}


def test_contents_that_come_again_are_told_apart_by_their_neighbours() -> None:
    """One content in two batches; which of both is missing is told by what stands around."""
    same = [
        replace(each, content=77) if (each.partition, each.offset) in ((0, 1), (0, 5)) else each for each in outputs()
    ]
    missing = [each for each in same if (each.partition, each.offset) != (0, 1)]
    judgement = judge(Tables(visible=missing).recorded(), Tables(wanted=same).expected())
    assert [row["value"] for row in judgement.findings.to_pylist() if row["anomaly"] == "torn_transaction"] == [
        "out-0/0/1"
    ]
    again = [*same, Out(0, 3, 77, key=1)]
    assert violations(Tables(wanted=same, visible=again)) == {"duplicated": 1}


def test_a_batch_that_was_planned_and_never_run_takes_no_record_of_another() -> None:
    """A good end leaves such a batch. It would have written what two batches before it wrote."""
    x, a, b = 70, 71, 72
    good = [Out(0, 0, x, batch=1), Out(0, 1, a, batch=1), Out(0, 4, x, batch=2), Out(0, 5, b, batch=2)]
    never_run = Out(0, 8, x, batch=BATCHES)
    wanted = [*good, never_run]
    assert violations(Tables(wanted=wanted, visible=good)) == {}
    assert violations(Tables(wanted=wanted, visible=wanted)) == {"aborted_read": 2}  # by both readers
    assert violations(Tables(wanted=wanted, visible=good[:2] + good[3:])) == {"torn_transaction": 1}
    twice = [*good, replace(good[0], offset=2)]
    assert set(violations(Tables(wanted=wanted, visible=[*twice, never_run]))) == {"duplicated", "aborted_read"}
    torn = [*good[:2], good[3], never_run]  # the x that is there counts as that of batch 2, and stands behind b
    assert set(violations(Tables(wanted=wanted, visible=torn))) == {"int_nonmonotonic_send"}


def test_a_batch_that_spark_calls_finished_and_that_is_not_committed_is_named() -> None:
    """It closed windows, and read nothing: the source offsets are where they would be with it."""
    windows = Out(0, END, 77, batch=BATCHES)
    called = Tables(
        wanted=[*outputs(), windows], read=[*ranges(), *(Range(BATCHES, p, END, END) for p in range(2))],
        finished=(0, 1, 2, BATCHES),
    )  # fmt: skip
    judgement = judge(called.recorded(), called.expected())
    assert judgement.violations == {"torn_progress": 1}
    (finding,) = judgement.findings.to_pylist()
    assert (finding["key"], finding["offset"]) == ("onceflow-progress-0", BATCHES)
    assert {row["kind"] for row in shrink(judgement.history, finding).to_pylist()} == {"position"}
    assert violations(replace(called, whole=True, visible=[*outputs(), windows])) == {}  # numbers began anew
    assert violations(replace(called, group_stable=49)) == {"hung_transaction": 1}  # which may be its own
    assert violations(replace(called, finished=(0, 1, 2))) == {}  # planned, never run
    assert violations(replace(called, next_batch=BATCHES + 1)) == {"unseen": 1}
    done = replace(called, next_batch=BATCHES + 1, visible=[*outputs(), windows])
    assert violations(done) == {}
    assert violations(replace(done, finished=(0, 1, 2))) == {}  # killed before Spark noted it


def test_what_cannot_be_judged_is_said() -> None:
    refused = Tables(refused="rand()", visible=outputs()[:5])
    judgement = judge(refused.recorded(), refused.expected())
    assert judgement.violations == {}
    assert judgement.reasons == ("the output was not judged: rand()",)
    assert judge(Tables().recorded(), None).reasons == ("the output was not judged: no expectation",)
    lost = Tables(next_batch=5)
    assert "5 batches are committed, the checkpoint names 3" in judge(lost.recorded(), lost.expected()).reasons[0]
    lost.visible.append(Out(0, 12, -1, batch=3))  # of a batch that is not named: no phantom
    assert violations(lost) == {}


def test_a_batch_that_was_planned_anew_is_not_the_one_that_is_committed() -> None:
    """Its entry was lost, and nobody has resumed yet: the positions are those of the committed one, as they should be."""
    anew = [replace(each, until=each.until + 4) if each.batch == BATCHES - 1 else each for each in ranges()]
    lost = Tables(read=anew, planned_ends=("a", "b", "anew"), committed_ends=("b", "c"))
    judgement = judge(lost.recorded(), lost.expected())
    assert judgement.violations == {}
    (reason,) = judgement.reasons
    assert "batch 2 of the checkpoint is not the one that is committed" in reason
    same = replace(lost, planned_ends=("a", "b", "c"))
    assert violations(same) == {"torn_progress": 2}
    assert violations(replace(lost, planned_ends=())) == {"torn_progress": 2}  # an engine of its own: nothing is known
    assert violations(Tables(planned_ends=("a", "b", "c"), committed_ends=("b", "c"))) == {}
    assert judge(replace(lost, whole=True).recorded(), replace(lost, whole=True).expected()).reasons == ()
    before = replace(same, planned_ends=("a", "anew", "c"))  # replaced behind the batches that came after it
    assert "batch 1 of the checkpoint" in judge(before.recorded(), before.expected()).reasons[0]


def test_equal_records_are_no_repetition_where_nothing_is_expected() -> None:
    same = [replace(each, content=5) for each in outputs()]
    for expected in (None, Tables(refused="rand()").expected()):
        judgement = judge(Tables(visible=same).recorded(), expected)
        assert judgement.violations == {}
        assert judgement.lack.startswith("output was not judged")  # also of the history, wherever it is kept
        assert check_history(judgement.history).lack == judgement.lack
    assert judge(Tables().recorded(), Tables().expected()).lack == ""
    other = Tables(visible=same, concurrent=[replace(same[0], content=6), *same[1:]])
    assert judge(other.recorded(), None).violations == {"inconsistent_offsets": 1}


def test_no_output_at_all_proves_nothing() -> None:
    judgement = judge(Tables(wanted=[], visible=[]).recorded(), Tables(wanted=[]).expected())
    assert judgement.violations == {}
    assert "the plan makes no record of this input" in judgement.reasons[0]
    assert judgement.notes == ("no record is expected in out",)


def test_what_is_not_looked_at_is_said() -> None:
    judgement = judge(Tables().recorded(), Tables(unordered=("out",)).expected())
    assert judgement.reasons == ()
    assert judgement.notes == (
        "the order inside of a batch is not judged in out: a shuffle may change it, or several tasks read a partition "
        "(minPartitions, maxRecordsPerPartition)",
    )
    assert judge(Tables().recorded(), Tables().expected()).notes == ()


def test_the_judgement_says_of_which_parts_of_its_history_nothing_is_proved() -> None:
    assert judge(Tables().recorded(), Tables().expected()).not_judged == ()
    judgement = judge(Tables(next_batch=None, position=0).recorded(), Tables().expected())
    assert judgement.not_judged == check_history(judgement.history).not_judged
    assert [part.split(":")[0] for part in judgement.not_judged] == ["how far group pipeline came on in-0, in-1"]


def batches_seen(tables: Tables) -> list[int]:
    """Of each record of the output, as the reader beside the run got it."""
    recorded = tables.recorded()
    seen = judge(recorded, tables.expected()).seen_batch.tolist()
    assert len(seen) == len(recorded.seen)
    topics = recorded.seen["topic"].to_pylist()
    assert {batch for batch, topic in zip(seen, topics, strict=True) if topic == "in"} == {NOTHING}
    return [batch for batch, topic in zip(seen, topics, strict=True) if topic == "out"]


def test_of_each_record_that_was_seen_its_batch_is_known() -> None:
    assert batches_seen(Tables()) == sorted([0, 1, 2] * 2 * PER_BATCH)
    assert batches_seen(Tables(visible=[*outputs(), Out(0, 99, 5000)]))[-1] == NOTHING, "nobody has written it"
    assert set(batches_seen(Tables(whole=True))) == {NOTHING}
    assert set(batches_seen(Tables(refused="rand()"))) == {NOTHING}
    assert len(judge(Tables().recorded(), None).seen_batch) == len(Tables().recorded().seen)


def test_of_a_record_that_may_be_of_another_batch_none_is_known() -> None:
    x, a, b = 70, 71, 72
    wanted = [Out(-1, 0, x, None, 0), Out(0, 0, x, None, 1), Out(0, 1, a, None, 1), Out(0, 2, b, None, 2)]
    visible = [Out(0, 0, x, None), Out(1, 1, x, None), Out(0, 2, a, None), Out(0, 3, b, None)]
    assert batches_seen(Tables(wanted=wanted, visible=visible)) == [NOTHING, NOTHING, 1, 2]


def test_equal_records_on_free_partitions_are_not_in_the_wrong_order() -> None:
    """Offsets of two partitions tell nothing of which record is that of the first batch."""
    x, a, y, b = 70, 71, 72, 73
    batches = enumerate(((x, a), (x, b)))
    wanted = [Out(-1, n, content, None, batch) for batch, pair in batches for n, content in enumerate(pair)]
    visible = [Out(0, 6, x, None), Out(0, 7, a, None), Out(1, 1, x, None), Out(1, 2, b, None)]
    assert violations(Tables(wanted=wanted, visible=visible)) == {}
    different = [replace(each, content=y) if each == wanted[2] else each for each in wanted]
    back = [Out(0, 7, x, None), Out(0, 8, a, None), Out(0, 1, y, None), Out(1, 2, b, None)]
    assert set(violations(Tables(wanted=different, visible=back))) == {"nonmonotonic_send"}  # it is known of others
    assert violations(Tables(wanted=wanted, visible=visible[1:])) == {"torn_transaction": 1}
    twice = [*visible, Out(1, 3, x, None)]
    assert violations(Tables(wanted=wanted, visible=twice)) == {"duplicated": 1}


def test_equal_records_of_two_origins_are_not_in_the_wrong_order() -> None:
    a, x, b = 70, 71, 72
    wanted = [Out(0, n, content, 1, 0, origin) for n, (content, origin) in enumerate([(a, 1), (x, 1), (x, 2), (b, 2)])]
    visible = [Out(0, n, content, 1) for n, content in enumerate([x, b, a, x])]
    assert violations(Tables(wanted=wanted, visible=visible, whole=True)) == {}
    same = [replace(each, origin=1) for each in wanted]
    assert set(violations(Tables(wanted=same, visible=visible, whole=True))) == {"int_nonmonotonic_send"}


def begun_late(batches: int, **others: Any) -> Tables:
    """An engine that left out what so many batches would have read, and all that comes of it."""
    made = [each for each in outputs() if each.batch >= batches]
    return Tables(wanted=made, visible=list(made), read=ranges(4 * batches), **others)


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize(
    "others",
    [{}, {"next_batch": None, "position": 0}, {"whole": True}, {"refused": "rand()"}],
    ids=["onceflow", "without progress", "one batch", "output unknown"],
)
def test_an_engine_that_begins_behind_committed_input_has_skipped_it(batches: int, others: dict[str, Any]) -> None:
    """Its batches fit each other, and nothing of their output is missing: where the input begins is not its word."""
    tables = begun_late(batches, **others)
    judgement = judge(tables.recorded(), tables.expected())
    assert judgement.violations == {"poll_skip": 2}
    for finding in judgement.findings.to_pylist():
        smallest = shrink(judgement.history, finding).to_pylist()
        begins, skipped, accused = sorted(smallest, key=lambda row: (row["kind"], row["offset"]))
        assert (begins["kind"], begins["process"], begins["offset"]) == ("assign", "pipeline", 0)
        assert skipped["kind"] == "poll"
        assert skipped["process"] in ("reader", "final reader")
        assert 0 <= skipped["offset"] < 4 * batches
        assert (accused["kind"], accused["process"], accused["offset"]) == ("poll", "pipeline", 4 * batches)
        assert {row["key"] for row in smallest} == {finding["key"]}


@pytest.mark.parametrize("progress", [{}, {"next_batch": None, "position": 0}], ids=["onceflow", "without progress"])
@pytest.mark.parametrize("of_it", [ranges(END, [1]), []], ids=["read from its end", "never read"])
def test_a_partition_of_which_nothing_was_read_is_named(of_it: list[Range], progress: dict[str, Any]) -> None:
    check_untouched(Tables(read=[*ranges(0, [0]), *of_it], **progress))


def test_a_batch_that_was_not_committed_has_read_nothing() -> None:
    in_the_next = [*ranges(0, [0]), Range(BATCHES, 1, 0, END)]
    check_untouched(Tables(read=in_the_next))
    assert violations(Tables(read=in_the_next, next_batch=BATCHES + 1)) == {}


def check_untouched(tables: Tables) -> None:
    judgement = judge(tables.recorded(), tables.expected())
    assert judgement.violations == {"stuck_progress": 1}
    (finding,) = judgement.findings.to_pylist()
    assert (finding["key"], finding["offset"]) == ("in-1", 0)
    smallest = {row["kind"]: row for row in shrink(judgement.history, finding).to_pylist()}
    position, stable = smallest.pop("position"), smallest.pop("stable_end")
    (record,) = smallest.values()
    assert (position["group"], position["offset"], stable["offset"]) == ("batches of pipeline", 0, END)
    assert (record["key"], record["offset"] < END) == ("in-1", True)


def test_each_reading_of_a_topic_begins_at_its_beginning() -> None:
    again = [*ranges(), *ranges(reading=1)]
    assert violations(Tables(read=again)) == {}
    assert violations(Tables(read=[*ranges(), *ranges(4, reading=1)])) == {"poll_skip": 2}
    assert violations(Tables(read=[*ranges(), *ranges(0, [0], reading=1)])) == {"stuck_progress": 1}
    added = [each for each in ranges() if (each.batch, each.partition) != (0, 1)]
    assert violations(Tables(read=added)) == {"poll_skip": 1}
    late = [replace(each, start=0) if (each.batch, each.partition) == (1, 1) else each for each in added]
    assert violations(Tables(read=late)) == {}


def test_a_beginning_that_is_not_known_is_not_judged() -> None:
    assert violations(begun_late(1, next_batch=5)) == {}  # the checkpoint has lost batches, perhaps the first ones
    assert violations(Tables(wanted=[], visible=[], read=[], next_batch=None, position=0)) == {}


def test_a_part_of_a_transaction_that_one_reader_passed_over_is_no_transaction_read() -> None:
    """G1b: the other one has seen all of it. What was passed over at the beginning of a batch stands between two transactions."""
    good = outputs()
    part = [each for each in good if (each.partition, each.offset) != (0, 1)]
    first = [each for each in good if (each.partition, each.offset) != (0, 0)]
    passed_over = {"intermediate_read": 1, "int_poll_skip": 1}
    assert violations(Tables(concurrent=part)) == passed_over
    assert violations(Tables(concurrent=first)) == {"poll_skip": 1}
    assert violations(Tables(visible=part, concurrent=good)) == {"torn_transaction": 1, **passed_over}


def test_what_stood_before_the_beginning_of_a_log_is_missing() -> None:
    """A run's logs drop nothing by themselves: one that begins behind 0 excuses nothing, neither there nor behind it."""
    good, late = outputs(), {("out", 0): PER_BATCH + 1}
    gone = [each for each in good if (each.batch, each.partition) != (0, 0)]
    torn = {"torn_transaction": PER_BATCH}
    assert violations(Tables(visible=gone, starts=late)) == torn
    assert violations(Tables(visible=gone, concurrent=good, starts=late)) == {**torn, "poll_skip": 1}
    assert violations(Tables(visible=gone[:-1], starts=late)) == {"torn_transaction": PER_BATCH + 1}
    late_input = {("in", 0): PER_BATCH + 1, ("in", 1): PER_BATCH + 1}
    assert violations(begun_late(1, starts=late_input, input_visible={1, 2})) == {"lost": 2 * PER_BATCH}


GOOD_LOOKS = (Look(0, (), query=""), Look(1, (0, 0)), Look(2, (1, 1)), Look(2, (1, 1)), Look(BATCHES, (2, 2)))


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (Look(2, (1, 1)), 0),
        (Look(2, (2, 1)), 2),  # the progress, and the other partition
        (Look(2, (2, 2)), 1),  # the progress alone is too low
        (Look(2, (1, 0)), 1),
        (Look(2, (0, 0)), 2),
        (Look(1, (1, 1)), 1),
        (Look(2, (1, 5)), 1),  # where nobody came
        (Look(7, (1, 1)), 1),
        (Look(2, (2, 1), query="of a checkpoint before"), 0),
        (Look(2, (1,)), 1),  # nothing is committed of the other one
        (Look(2, ()), 2),
        (Look(0, (0, 0), query=""), 1),  # before the first batch
        (Look(0, (1, 1)), 1),  # the progress is gone, and what it belongs to is there
        (Look(0, (1,)), 2),  # and of the other partition nothing
    ],
)
@pytest.mark.parametrize("log", [None, log_of(good_attempts())], ids=["by the plan", "by the log"])
def test_what_was_committed_meanwhile_must_have_been_of_one_batch(look: Look, found: int, log: Log | None) -> None:
    """Though at the end all is well."""
    recorded = Tables(looks=[*GOOD_LOOKS[:3], look, *GOOD_LOOKS[3:]]).recorded()
    judgement = judge(replace(recorded, log=log), Tables().expected())
    assert judgement.violations == ({"torn_progress": found} if found else {})


def test_a_batch_without_input_hides_nothing() -> None:
    """It gives the same offsets once more, as one of a plan does that closes windows."""
    empty = [Range(each.batch, each.partition, each.start, each.start) for each in ranges() if each.batch == 1]
    read = [each for each in ranges() if each.batch == 0]
    looks = [Look(0, (), query=""), Look(1, (0, 0)), Look(1, (0, 0)), Look(0, (0, 0), query=""), Look(2, (0, 0))]
    tables = Tables(read=[*read, *empty], looks=looks, next_batch=2, finished=(0, 1), position=PER_BATCH + 1)
    assert judge(tables.recorded(), tables.expected()).violations["torn_progress"] == 1


def test_of_two_readings_the_one_that_is_less_far_is_what_the_group_has() -> None:
    behind = [replace(each, until=each.start) if each.batch == BATCHES - 1 else each for each in ranges(reading=1)]
    read = sorted([*ranges(), *behind], key=lambda each: (each.batch, each.reading))
    assert "torn_progress" not in violations(Tables(read=read, position=behind[-1].start))
    assert violations(Tables(read=read))["torn_progress"] == 2


def test_a_look_says_nothing_where_batches_are_not_known() -> None:
    torn = Tables(looks=[*GOOD_LOOKS, Look(2, (2, 0))], whole=True)
    assert judge(torn.recorded(), torn.expected()).violations == {}
