"""The production protocol on many seeds: no anomaly, every branch taken, and each run the same when it is run again."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
from tests.verify.simulator.branches.frames import moved_in_the_last_epoch, steady

from onceflow.verify.simulator import Scenario, explore, run, shrink
from onceflow.verify.simulator.anomalies import Anomaly
from onceflow.verify.simulator.campaign import campaign
from onceflow.verify.simulator.variants import VARIANTS

pytestmark = pytest.mark.slow

SEEDS = 10_000


CONFLICTS = Scenario(
    version=1, records=12, batch_records=2, drivers=2, rates={"driver": 0.1, "checkpoint": 0.1, "plan": 0.3}
)
"""Conflicts in plenty, so that one is interrupted while it is looked into: once in some ten thousand ordinary seeds."""


RARE = [(208, CONFLICTS), (3, moved_in_the_last_epoch())]


def test_no_seed_shows_an_anomaly_and_every_branch_is_taken() -> None:
    found = campaign(range(SEEDS))
    assert not found.failed, shrink(run(found.failed[0])).story()
    missed = found.missed
    for seed, scenario in RARE:
        rare = run(seed, scenario=scenario)
        assert not rare.anomalies, rare.story()
        missed -= rare.reached
    assert not missed, f"no seed of {SEEDS} reached: {sorted(missed)}"


INTERRUPTED = Scenario(version=2, records=12, batch_records=2, drivers=2, rates={"driver": 0.15, "second": 0.3})
"""A driver that was interrupted beside its commit, while another one goes on from the same checkpoint."""


FORGOTTEN_NEAR_THE_LAST_EPOCH = Scenario(
    version=1, first_epoch=32764, rates={"driver": 0.05, "second": 0.1, "expire": 0.1}
)
"""A driver sleeps with the last epoch of its producer id, another one takes over, and the coordinator forgets both."""


RESUMED_AS_IT_WAS = Scenario(
    drivers=2,
    rates={"checkpoint": 0.2, "plan": 0.3, "driver": 0.1, "request": 0.1, "replaced": 0.2, "named": 0.7},
)
"""The user resumes from what a group coordinator tells that was replaced, and the driver is told the same."""


WOKEN = Scenario(
    version=1,
    rates={"replaced": 0.15, "named": 0.8, "second": 0.3, "driver": 0.05, "request": 0.1, "marker": 0.1},
)
"""Drivers that wake to a group coordinator which was replaced, and tells of an older claim."""

SHOWED_A_BUG = [
    (116, Scenario.of(116), {"gives up and goes on"}),
    (105, INTERRUPTED, {"gives up and goes on", "reports old conflicts"}),
    (9198, None, {"asks again for the last epoch"}),
    (373, Scenario.of(373), {"aborts under the epoch of the attempt"}),
    (6590, Scenario.of(6590), {"goes on behind the last epoch"}),
    (3, moved_in_the_last_epoch(), {"takes a forgotten producer id for another driver"}),
    (467, FORGOTTEN_NEAR_THE_LAST_EPOCH, {"trusts what follows the last epoch"}),
    (1621, Scenario.of(1621), {"believes what is read"}),
    (399, RESUMED_AS_IT_WAS, {"believes where it begins"}),
    (145, Scenario.of(145), {"stops for an older claim"}),
    (1039, replace(WOKEN, drivers=2), {"takes another commit for its own"}),
    (1590, WOKEN, {"stops for an older claim"}),
]
"""Each with the protocols that lack what mended it: 116 is held by either of two defences, and breaks without both.

A request more or less makes other runs of all seeds: where production has come to send one, others stand here than those that
showed the bug first.
"""
UNMENDED = set[str]().union(*(names for *_, names in SHOWED_A_BUG))


@pytest.mark.parametrize(("seed", "scenario", "broken"), SHOWED_A_BUG)
def test_seeds_that_showed_a_bug(seed: int, scenario: Scenario | None, broken: set[str]) -> None:
    """An older driver that reported a conflict with what a newer one had committed; the last epoch, whose answer was lost."""
    scenario = scenario or as_it_was(seed)
    outcome = run(seed, scenario=scenario)
    assert not outcome.anomalies, outcome.story()
    assert {name for name in UNMENDED if run(seed, VARIANTS[name], scenario=scenario).anomalies} == broken


def test_the_newest_driver_stops_where_nothing_tells_that_it_is_and_another_one_finishes() -> None:
    """Known, and safe: the coordinator has forgotten the transactional id, and an older driver that woke has fenced it."""
    outcome = run(20)
    assert "driver: the newest stops, for it cannot know that it is" in outcome.reached
    assert not outcome.anomalies, outcome.story()


@pytest.mark.parametrize(
    ("seed", "stops"),
    [
        (1127949329, "driver: an older one stops"),
        (1127958139, "driver: the newest stops, for it was told of an older claim"),
    ],
)
def test_whoever_cannot_know_that_it_is_the_newest_may_stop(seed: int, stops: str) -> None:
    """Two of 50,000 seeds that chance drew, in which a driver stopped that was taken for one that has to go on::

        driver 1  sleeps; driver 3 claims, commits all there is, and ends; the id expires
        driver 1  is told by a coordinator that was replaced that the claim is still its own, fences, and hears of driver 3's

        driver 2  claims, and is killed; driver 3 begins, and is told by such a coordinator that nobody has claimed
        driver 3  loses its claim's transaction to the timeout, under the last epoch: it is given another producer id, whose claim
                  it reads is driver 2's, and so it cannot tell whether that came before it

    Another one goes on.
    """
    outcome = run(seed)
    assert stops in outcome.reached
    assert not outcome.anomalies, outcome.story()


def test_a_claim_whose_marker_comes_behind_a_batch_that_is_skipped_begins_no_output_again() -> None:
    """All was there, and some of it was called lost: one of 50,000 seeds that chance drew."""
    outcome = run(1368779340)
    assert not outcome.anomalies, outcome.story()


def as_it_was(seed: int) -> Scenario:
    """Without what scenarios have had since: the run that showed the bug."""
    return replace(
        steady(seed), restarts_leaders=False, records_each=1, readings_differ=False, verifies=True, follows_next=True
    )


FORGOTTEN = Scenario(at_least_once=4, rates={"marker": 0.3})
"""The first claim's marker is late; what at least once has committed is there without progress, and the user begins anew."""


@pytest.mark.parametrize("resumes", [True, False])
def test_a_query_that_begins_elsewhere_is_refused_while_its_claim_is_on_its_way(*, resumes: bool) -> None:
    """Whether somebody asks to resume, or has changed guarantee and checkpoint at once."""
    for version, claims_first, seed in product((1, 2), (True, False), range(40)):
        scenario = replace(FORGOTTEN, version=version, claims_first=claims_first, resumes=resumes)
        outcome = run(seed, scenario=scenario)
        assert not outcome.anomalies, outcome.story()


def test_a_seed_is_the_same_run_bit_for_bit() -> None:
    for seed in range(40):
        assert run(seed, tracing=True) == run(seed, tracing=True)


TOLD = """
from onceflow.verify.simulator import run
for seed in range(40):
    outcome = run(seed, tracing=True)
    print(seed, outcome.scenario, outcome.taken, outcome.anomalies, sorted(outcome.reached), outcome.points)
    print(*outcome.trace, sep="\\n")
"""


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Each process has hashes of its own, by which it orders what is in a set; no run may depend on them."""
    told = [told_by_a_process(hash_seed) for hash_seed in ("1", "2")]
    assert all(f"\n{seed} Scenario(" in f"\n{told[0]}" for seed in range(40))
    assert told[0] == told[1]


def told_by_a_process(hash_seed: str) -> str:
    """All that 40 runs did, with strings hashed in another way."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", TOLD], env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_a_run_is_replayed_by_its_faults_alone() -> None:
    for seed in range(40):
        first = run(seed, tracing=True)
        again = run(seed + 1, scenario=first.scenario, taken=first.taken, tracing=True)
        assert again.trace == first.trace


def test_shrinking_leaves_a_failure_with_the_faults_that_it_needs() -> None:
    variant = VARIANTS["no audit"]
    scenario = Scenario(rates={"tail": 0.05, "request": 0.05})
    runs = (run(seed, variant, scenario=scenario) for seed in range(1000))
    failing = next(outcome for outcome in runs if outcome.anomalies and len(outcome.taken) > 5)
    small = shrink(failing, variant)
    assert small.anomalies
    assert [kind for kind, _ in small.taken] == ["tail"]
    assert "lost" in small.story()
    with pytest.raises(ValueError, match="does not fail so under this variant"):
        shrink(failing)


def test_shrinking_ends_with_the_failure_that_it_began_with() -> None:
    """A commit of unknown outcome is taken for one that happened: with fewer faults records are lost, without a conflict."""
    variant = VARIANTS["unknown is committed"]
    scenario = Scenario(version=2, drivers=2, rates={"driver": 0.2, "request": 0.15, "task": 0.1})
    runs = (run(seed, variant, scenario=scenario) for seed in range(60))
    conflicts = [outcome for outcome in runs if outcome.shown == {Anomaly.CONFLICT} and len(outcome.taken) < 25]
    assert conflicts
    for outcome in conflicts:
        assert shrink(outcome, variant).shows(Anomaly.CONFLICT)


# ----------------------------------------------------------------------------------------------------- small cases, all


def three_batches(version: int, **rates: float) -> Scenario:
    """Two tasks, two partitions; faults until everything has surely come by, also behind two of the longest stops (600)."""
    return Scenario(version=version, records=6, batch_records=2, faults_until=2500, rates=rates)


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.long), 2])
def test_every_two_moments_at_which_a_driver_is_killed_stopped_or_interrupted_or_a_second_starts(version: int) -> None:
    """Three batches, two tasks, two partitions. The runs of one driver alone are among them: it is hit twice, in its recovery
    too; so are those of two drivers, of which either is hit; each before any of its effects, and before any request of its tasks.
    """
    scenario = three_batches(version, driver=1.0, beside=1.0, second=1.0)
    check_all(scenario, bound=2, least=11_000)


@pytest.mark.long
def test_every_two_moments_also_between_the_requests_of_a_driver_that_writes() -> None:
    """Small batches are the driver's own."""
    check_all(replace(three_batches(2, driver=1.0, second=1.0), by_driver=True), bound=2, least=16_000)


@pytest.mark.parametrize("version", [1, 2])
def test_two_drivers_from_the_beginning_and_every_request_lost_late_or_twice(version: int) -> None:
    scenario = replace(three_batches(version, driver=1.0, request=1.0), drivers=2)
    check_all(scenario, bound=1, least=300)


@pytest.mark.long
@pytest.mark.parametrize("version", [1, 2])
def test_two_drivers_from_the_beginning_and_every_two_moments_at_which_either_is_hit(version: int) -> None:
    """Both are hit as well, each anywhere: killed, stopped or interrupted before any of its effects."""
    check_all(replace(three_batches(version, driver=1.0, beside=1.0), drivers=2), bound=2, least=13_000)


@pytest.mark.long
@pytest.mark.parametrize("version", [1, 2])
def test_two_drivers_from_the_beginning_in_every_order_that_two_requests_of_another_pace_give(version: int) -> None:
    """No fault at all, and any two requests, of either driver, that take up to five ticks longer."""
    check_all(replace(three_batches(version, pace=1.0), drivers=2), bound=2, least=5_000)


@pytest.mark.parametrize("version", [1, 2])
def test_the_second_batch_gives_no_output_and_everything_that_may_happen_to_it(version: int) -> None:
    """Nothing to audit, nothing for the leaders: one driver hit anywhere, a second one, every request and task."""
    scenario = three_batches(version, driver=1.0, beside=1.0, second=1.0, request=1.0, task=1.0, denied=1.0)
    check_all(replace(scenario, silent=frozenset({2, 3})), bound=1, least=200)


def check_all(scenario: Scenario, bound: int, least: int) -> None:
    found = explore(scenario, bound)
    assert not found.failed, run(0, scenario=scenario, taken=found.failed[0], tracing=True).story()
    assert found.runs >= least
