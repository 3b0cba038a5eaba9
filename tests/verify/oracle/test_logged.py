"""The judge on what the logs tell of attempts: a good run is good, and each way in which it can be spoilt is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest
from tests.verify.oracle.logs import CLAIM, Attempt, any_good_run, attempt_of, good_attempts, log_of
from tests.verify.oracle.tables import BATCHES, END, PER_BATCH, Look, Tables, outputs

from onceflow.verify.oracle.judging import Judgement, judge
from onceflow.verify.recording.log import Log
from onceflow.verify.recording.tables import GIVEN

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
        [
            *(Attempt(7 + n, next_batch=6 + n, ended=(4 + n, 4), query="another") for n in range(2)),
            *good_attempts()[1:],
        ],
        [CLAIM, attempt_of(0, epoch=0), *good_attempts()[2:]],  # of which it is not known what belongs together
    ],
    ids=[
        "one attempt each",
        "aborted",
        "a claim",
        "progress aborted",
        "another query aborted",
        "another query",
        "one epoch",
    ],
)
def test_a_good_run_is_good(attempts: list[Attempt], looks: Sequence[Look]) -> None:
    judgement = judged(attempts, Tables(looks=looks))
    assert judgement.violations == {}
    assert judgement.reasons == ()
    assert judgement.not_judged == judge(Tables(looks=looks).recorded(), Tables().expected()).not_judged


@pytest.mark.parametrize("seed", range(20))
def test_attempts_of_a_good_run_accuse_nobody(seed: int) -> None:
    """Whatever was aborted, claimed, left open or without output, with equal contents and free partitions."""
    tables, attempts = any_good_run(Random(seed))
    assert violations(attempts, tables) == {}


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
    assert violations([CLAIM, attempt_of(0), output, progress, attempt_of(2)]) == {
        "consumed_twice": 1, "torn_transaction": 1
    }  # fmt: skip


@pytest.mark.parametrize(("refused", "more"), [("", {}), ("the plan calls rand()", {"lost": 1})])
def test_output_whose_progress_is_committed_beside_it_is_torn(refused: str, more: dict[str, int]) -> None:
    """Also where nobody knows of which batch a record is; then the batch is one that no transaction has."""
    tables = Tables(refused=refused)
    beside = replace(attempt_of(1), epoch=9, wrote={}, outcome="plain")
    attempts = [CLAIM, attempt_of(0), replace(attempt_of(1), next_batch=None, ended=()), beside, attempt_of(2)]
    assert violations(attempts, tables) == {"torn_transaction": 1, **more}


def test_output_of_no_transaction_is_torn() -> None:
    """At exactly once nothing is written so, even where all of it is there."""
    plain = attempt_of(1, outcome="plain", next_batch=None, ended=())
    progress = replace(attempt_of(1), epoch=9, wrote={})
    found = violations([CLAIM, attempt_of(0), plain, progress, attempt_of(2)])
    assert found == {"torn_transaction": 2}  # on two partitions


@pytest.mark.parametrize(
    ("beside", "found"),
    [
        (Attempt(9, next_batch=2, ended=(2, 2), outcome="plain"), 1),
        (Attempt(9, next_batch=3, ended=(1, 1), outcome="plain"), 2),
        (Attempt(9, next_batch=2, ended=(7, 1), outcome="plain"), 1),
        (Attempt(9, removed=True, outcome="plain"), 1),
    ],
    ids=["offsets ahead", "progress ahead", "given by nobody", "progress removed"],
)
def test_what_is_committed_outside_of_transactions_shows_in_the_log(beside: Attempt, found: int) -> None:
    """And the next batch puts it right."""
    attempts = [CLAIM, attempt_of(0), attempt_of(1), beside, attempt_of(2)]
    assert violations(attempts) == {"torn_progress": found}


def test_output_of_a_batch_in_the_transaction_of_another_is_named() -> None:
    """Batch 2 has what batch 1 should have had on partition 1."""
    wrote = {0: attempt_of(2).wrote[0], 1: (attempt_of(1).wrote[1][0], attempt_of(2).wrote[1][1])}
    torn = [CLAIM, attempt_of(0), attempt_of(1, wrote={0: attempt_of(1).wrote[0]}), attempt_of(2, wrote=wrote)]
    assert violations(torn) == {"consumed_twice": 1}


@pytest.mark.parametrize(
    ("attempts", "found"),
    [
        ([attempt_of(0), attempt_of(1, ended=(2, 1)), attempt_of(2)], 2),  # a partition is further than its batch
        ([attempt_of(0), attempt_of(1, ended=(2, 2)), attempt_of(2)], 1),  # both are: the progress is not
        ([attempt_of(0), attempt_of(1, ended=(0, 0)), attempt_of(2)], 2),  # the progress without the offsets
        (
            [attempt_of(0), Attempt(8, next_batch=1, ended=(1, 1)), attempt_of(1), attempt_of(2)],
            1,
        ),  # they come before it
        (
            [attempt_of(0), attempt_of(1), attempt_of(2), Attempt(8, next_batch=3, ended=(1, 2))],
            1,
        ),  # set back by a claim
    ],
    ids=["one further", "both further", "progress alone", "offsets first", "set back"],
)
def test_what_a_transaction_gives_must_be_of_one_batch(attempts: list[Attempt], found: int) -> None:
    """Nobody has looked in time; that is what the log is for."""
    assert violations([CLAIM, *attempts]) == {"torn_progress": found}


def test_a_transaction_that_was_aborted_on_one_partition_is_torn() -> None:
    """What it lacks is told once."""
    torn = attempt_of(2, elsewhere={1: "abort"})
    visible = [each for each in outputs() if (each.batch, each.partition) != (2, 1)]
    found = judged([*good_attempts()[:-1], torn], Tables(visible=visible))
    assert found.violations == {"torn_transaction": PER_BATCH}
    never_committed = [row for row in found.history.to_pylist() if str(row["value"]).startswith("never committed")]
    assert len(never_committed) == PER_BATCH
    assert {row["status"] for row in never_committed} == {"fail"}


def test_what_was_left_open_is_of_unknown_outcome() -> None:
    left = replace(ABORTED, outcome="")
    found = judged([*good_attempts(), left])
    assert found.violations == {}
    statuses = [row["status"] for row in found.history.to_pylist() if str(row["value"]).startswith("never committed")]
    assert statuses == ["info"] * PER_BATCH


def test_a_batch_that_no_transaction_has_is_named() -> None:
    """It had no output; batch 2 came with its offsets, and with a progress that says that it was."""
    visible = [each for each in outputs() if each.batch != 1]
    attempts = [CLAIM, attempt_of(0), attempt_of(2)]
    assert violations(attempts, Tables(wanted=visible, visible=visible)) == {"lost": 1}


def test_of_several_positions_in_one_transaction_the_last_one_counts() -> None:
    log = log_of(good_attempts())
    rows = log.given.to_pylist()
    twice = replace(log, given=pa.Table.from_pylist([*rows[:-1], {**rows[-1], "offset": 3}, rows[-1]], GIVEN))
    assert judge(replace(Tables().recorded(), log=twice), Tables().expected()).violations == {}


@pytest.mark.parametrize(
    "tables",
    [
        Tables(whole=True),
        Tables(next_batch=None, position=0),
        Tables(planned_ends=("a", "b", "c"), committed_ends=("a", "b", "another")),
    ],
    ids=["whole", "no progress", "planned anew"],
)
def test_where_batches_are_not_known_attempts_accuse_nobody(tables: Tables) -> None:
    """An attempt that is known makes no other writer unknown; and what nothing is looked for by is not listed."""
    without = judge(tables.recorded(), tables.expected())
    found = judged([*good_attempts(), ABORTED], tables)
    assert found.violations == without.violations
    assert found.reasons == without.reasons
    assert {check.anomaly for check in found.checks} == {check.anomaly for check in without.checks}


def test_where_output_is_not_judged_attempts_accuse_nobody() -> None:
    """Batches are known: that one is committed twice shows all the same."""
    refused, attempts = Tables(refused="the plan calls rand()"), [*good_attempts(), ABORTED]
    assert violations(attempts, refused) == {}
    assert judge(replace(Tables().recorded(), log=log_of(attempts)), None).violations == {}
    again = attempt_of(2, epoch=10, wrote={0: (END + 9, END + 10)})
    assert violations([*attempts, again], refused) == {"consumed_twice": 1}


def test_progress_that_a_stranger_wrote_ends_no_judgement() -> None:
    log = log_of([*good_attempts(), ABORTED, Attempt(10, next_batch=BATCHES)])
    rows = [{**row, "metadata": "of a tool"} if row["first"] >= 10 else row for row in log.given.to_pylist()]
    spoilt = replace(log, given=pa.Table.from_pylist(rows, GIVEN))
    assert judge(replace(Tables().recorded(), log=spoilt), Tables().expected()).violations == {}


def test_an_empty_log_has_no_batch() -> None:
    """Nobody could say so of a pipeline whose output is there."""
    found = judge(replace(Tables().recorded(), log=Log()), Tables().expected())
    assert found.violations == {"unseen": BATCHES}


def test_without_the_log_nobody_looks_for_batches_of_two_transactions() -> None:
    """A report that lists a check which cannot find anything says more than is so."""
    names = {check.anomaly for check in judge(Tables().recorded(), Tables().expected()).checks}
    assert "consumed_twice" not in names
    assert {check.anomaly for check in judged(good_attempts()).checks} == {*names, "consumed_twice"}
