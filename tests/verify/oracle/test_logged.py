"""The judge on what the logs tell of attempts: a good run is good, and each way in which it can be spoilt is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.verify.oracle.logs import CLAIM, Attempt, attempt_of, good_attempts, log_of
from tests.verify.oracle.tables import BATCHES, END, PER_BATCH, Look, Tables, outputs

from onceflow.verify.oracle.judging import Judgement, judge

ABORTED = Attempt(9, wrote={0: (END, END + PER_BATCH)}, outcome="abort")
"""Behind all output, so that nothing stands in its way."""


def judged(attempts: Sequence[Attempt], tables: Tables | None = None) -> Judgement:
    tables = tables or Tables()
    return judge(replace(tables.recorded(), log=log_of(attempts)), tables.expected())


def violations(attempts: Sequence[Attempt], tables: Tables | None = None) -> dict[str, int]:
    return judged(attempts, tables).violations


GOOD_LOOKS = (Look(0, (), query=""), Look(1, (0, 0)), Look(2, (1, 1)), Look(BATCHES, (2, 2)))


@pytest.mark.parametrize("looks", [(), GOOD_LOOKS], ids=["nobody looked", "looks"])
@pytest.mark.parametrize(
    "attempts",
    [
        good_attempts(),
        [*good_attempts(), ABORTED],
        [*good_attempts(), Attempt(9, next_batch=BATCHES)],  # the claim of another driver, which has no batch
        [CLAIM, attempt_of(0), attempt_of(1), Attempt(9, next_batch=5, ended=(4, 4), outcome="abort"), attempt_of(2)],
        [Attempt(0, next_batch=7, ended=(5, 5), outcome="abort", query="another"), *good_attempts()],
    ],
    ids=["one attempt each", "an attempt aborted", "a claim", "progress aborted", "another query before"],
)
def test_a_good_run_is_good(attempts: list[Attempt], looks: Sequence[Look]) -> None:
    judgement = judged(attempts, Tables(looks=looks))
    assert judgement.violations == {}
    assert judgement.reasons == ()
    assert judgement.not_judged == judge(Tables(looks=looks).recorded(), Tables().expected()).not_judged


def test_whoever_reads_what_an_aborted_attempt_wrote_is_named() -> None:
    """Though the same record was committed as well, and the final reader got that alone."""
    repeated = replace(outputs()[-1], partition=0, offset=END)
    tables = Tables(concurrent=[*outputs(), repeated])
    assert violations([*good_attempts(), ABORTED], tables)["aborted_read"] == 1
    assert "aborted_read" not in violations(good_attempts(), tables)


def test_a_batch_of_two_transactions_is_named() -> None:
    """The second one writes it once more; nobody else would be told that it was one that committed its progress, too."""
    again = attempt_of(2, epoch=9, wrote={0: (END, END + 1)})
    visible = [*outputs(), replace(outputs()[2 * PER_BATCH], offset=END)]
    assert violations([*good_attempts(), again], Tables(visible=visible)) == {"consumed_twice": 1, "duplicated": 1}


def test_output_and_progress_of_two_transactions_are_named() -> None:
    """Whoever looks at the end finds all of it: output, offsets, and progress."""
    output, progress = replace(attempt_of(1), next_batch=None, ended=()), replace(attempt_of(1), epoch=9, wrote={})
    assert violations([CLAIM, attempt_of(0), output, progress, attempt_of(2)]) == {"consumed_twice": 1}


def test_output_of_a_batch_in_the_transaction_of_another_is_named() -> None:
    """Batch 2 has what batch 1 should have had on partition 1."""
    wrote = {0: attempt_of(2).wrote[0], 1: (attempt_of(1).wrote[1][0], attempt_of(2).wrote[1][1])}
    torn = [CLAIM, attempt_of(0), attempt_of(1, wrote={0: attempt_of(1).wrote[0]}), attempt_of(2, wrote=wrote)]
    assert violations(torn) == {"consumed_twice": 1}


def test_positions_are_those_that_transactions_really_gave() -> None:
    """The checkpoint says where batch 1 ended; what it committed is known of the log alone."""
    looks = [*GOOD_LOOKS[:2], Look(2, (2, 1)), *GOOD_LOOKS[3:]]
    torn = [CLAIM, attempt_of(0), attempt_of(1, ended=(2, 1)), attempt_of(2)]
    assert violations(good_attempts(), Tables(looks=looks)) == {"torn_progress": 2}
    assert violations(torn, Tables(looks=looks)) == {}  # what was seen is what was given
    further = [*good_attempts()[:-1], attempt_of(2, ended=(3, 2))]
    assert violations(further, Tables())["torn_progress"] == 1  # and the group does not stand there


def test_a_position_that_was_aborted_may_be_seen_by_nobody() -> None:
    aborted = Attempt(9, next_batch=2, ended=(7, 1), outcome="abort")
    attempts = [CLAIM, attempt_of(0), aborted, attempt_of(1), attempt_of(2)]
    assert violations(attempts, Tables(looks=[*GOOD_LOOKS[:2], Look(2, (7, 1)), *GOOD_LOOKS[3:]]))["torn_progress"] >= 1


def test_a_transaction_that_was_aborted_on_one_partition_is_torn() -> None:
    """No replay is needed to see that: its other records are visible."""
    torn = attempt_of(2, elsewhere={1: "abort"})
    visible = [each for each in outputs() if (each.batch, each.partition) != (2, 1)]
    tables = Tables(visible=visible)
    found = judged([*good_attempts()[:-1], torn], tables)
    assert found.violations["torn_transaction"] == PER_BATCH
    never_committed = [row for row in found.history.to_pylist() if str(row["value"]).startswith("never committed")]
    assert len(never_committed) == PER_BATCH
    assert {row["status"] for row in never_committed} == {"ok"}


def test_what_was_left_open_is_of_unknown_outcome() -> None:
    left = replace(ABORTED, outcome="")
    found = judged([*good_attempts(), left])
    assert found.violations == {}
    statuses = [row["status"] for row in found.history.to_pylist() if str(row["value"]).startswith("never committed")]
    assert statuses == ["info"] * PER_BATCH


def test_without_the_log_nobody_looks_for_batches_of_two_transactions() -> None:
    """A report that lists a check which cannot find anything says more than is so."""
    names = {check.anomaly for check in judge(Tables().recorded(), Tables().expected()).checks}
    assert not names & {"consumed_twice", "consumed_never"}
    assert {check.anomaly for check in judged(good_attempts()).checks} == {*names, "consumed_twice", "consumed_never"}


def test_a_record_that_no_batch_has_read_and_a_transaction_went_past_is_named() -> None:
    read = [each for each in Tables().read if (each.batch, each.partition) != (1, 0)]
    gone = [each for each in outputs() if (each.batch, each.partition) != (1, 0)]
    tables = Tables(read=read, wanted=gone, visible=gone)
    assert violations(good_attempts(), tables)["consumed_never"] == PER_BATCH
