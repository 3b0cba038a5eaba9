"""Positive controls: each fault breaks a variant that lacks the defence against it, and never the production protocol."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from onceflow.transaction.protocol import Protocol
from onceflow.verify.simulator import Scenario, run
from onceflow.verify.simulator.anomalies import Anomaly
from onceflow.verify.simulator.run import PRODUCTION
from onceflow.verify.simulator.scenario import KINDS
from onceflow.verify.simulator.variants import VARIANTS
from onceflow.verify.simulator.world import Variant

pytestmark = pytest.mark.slow  # a minute of a processor; at the end of the queue the others wait for it

SEEDS = 1500
TORN = {"checkpoint": 0.1, "plan": 0.3, "driver": 0.1}
"""Where nobody can restart with the checkpoint that there is, and the user resumes."""
RESUMED = {**TORN, "checkpoint": 0.2}
"""The same, more often."""

TOLD_OF_AN_OLDER_CLAIM = {"replaced": 0.15, "named": 0.8, "second": 0.3, "driver": 0.05, "request": 0.1, "marker": 0.1}
"""Drivers that wake to a group coordinator that was replaced."""

DRIVERS_THAT_TAKE_OVER = {"second": 0.3, "driver": 0.1, "request": 0.1, "marker": 0.1}

CONTROLS = [
    ("no audit", 1, Anomaly.LOST, {"tail": 0.1}),
    ("no audit", 2, Anomaly.LOST, {"tail": 0.1}),
    ("no fresh epoch", 1, Anomaly.REPEATED, {"request": 0.1, "task": 0.1}),
    ("abort after commit", 1, Anomaly.ABORTED_COMMIT, {"cut": 0.1}),
    ("abort after commit", 2, Anomaly.REPEATED, {"cut": 0.1, "request": 0.1}),
    ("aborts under the epoch of the attempt", 1, Anomaly.REPEATED, {"request": 0.1, "task": 0.1}),
    ("no claim", 1, Anomaly.SHARED, DRIVERS_THAT_TAKE_OVER),
    ("no claim", 2, Anomaly.REPEATED, TOLD_OF_AN_OLDER_CLAIM),
    ("no claim", 1, Anomaly.NEWEST_STOPPED, {"second": 0.2, "driver": 0.1, "marker": 0.2, "request": 0.05}),
    ("fences back", 2, Anomaly.STUCK, {"second": 0.2, "marker": 0.2}),
    ("progress before fence", 2, Anomaly.REPEATED, {"request": 0.1}),
    ("no confirmation", 1, Anomaly.NEWEST_STOPPED, {"second": 0.2, "driver": 0.1, "marker": 0.2, "request": 0.05}),
    ("believes what is read", 1, Anomaly.REPEATED, {"replaced": 0.1, "named": 0.7, "driver": 0.1}),
    ("believes what is read", 2, Anomaly.REPEATED, {"replaced": 0.1, "named": 0.7, "driver": 0.1}),
    ("takes another commit for its own", 1, Anomaly.SHARED, TOLD_OF_AN_OLDER_CLAIM),
    ("unknown is committed", 1, Anomaly.LOST, {"outdated": 0.2, "named": 0.7}),
    ("unknown is committed", 2, Anomaly.LOST, {"outdated": 0.2, "named": 0.7}),
    ("stops for an older claim", 1, Anomaly.NEWEST_STOPPED, {"replaced": 0.1, "named": 0.7, "driver": 0.1}),
    ("stops for an older claim", 2, Anomaly.NEWEST_STOPPED, {"replaced": 0.1, "named": 0.7, "request": 0.1}),
    ("believes where it begins", 2, Anomaly.REPEATED, {**RESUMED, "replaced": 0.2, "named": 0.7, "request": 0.1}),
    ("trusts batch ids", 2, Anomaly.LOST, {"checkpoint": 0.1, "plan": 0.3, "driver": 0.1}),
    ("refused is aborted", 2, Anomaly.REPEATED, {"request": 0.15, "expire": 0.2}),
    ("unknown is committed", 1, Anomaly.LOST, {"request": 0.1}),
    ("unknown is committed", 2, Anomaly.LOST, {"driver": 0.1}),
    ("unknown is committed", 2, Anomaly.LOST, {"hijack": 0.2}),
    ("looks for nobody again", 1, Anomaly.STUCK, {"move": 0.1}),
    ("looks for nobody again", 2, Anomaly.STUCK, {"move": 0.1}),
    ("progress before fence", 2, Anomaly.REPEATED, {"second": 0.2}),
    ("no fresh epoch", 1, Anomaly.ABORTED_COMMIT, {"denied": 0.2}),
    ("no fresh epoch", 1, Anomaly.ABORTED_COMMIT, {"marker": 0.2}),
    ("trusts a new identity", 1, Anomaly.REPEATED, {"driver": 0.05, "second": 0.1, "expire": 0.1}),
    ("trusts what follows the last epoch", 1, Anomaly.REPEATED, {"driver": 0.05, "second": 0.1, "expire": 0.1}),
    ("takes another producer id for another driver", 1, Anomaly.NEWEST_STOPPED, {}),
    ("takes another producer id for another driver", 2, Anomaly.NEWEST_STOPPED, {}),
    ("reports old conflicts", 2, Anomaly.CONFLICT, {"driver": 0.2, "second": 0.2}),
    ("gives up and goes on", 2, Anomaly.CONFLICT, {"task": 0.2, "second": 0.2}),
    ("asks again for the last epoch", 1, Anomaly.STUCK, {"request": 0.1}),
    ("asks again for the last epoch", 2, Anomaly.STUCK, {"cut": 0.1}),
    ("goes on behind the last epoch", 2, Anomaly.HANGING, {"driver": 0.1}),
    ("takes a forgotten producer id for another driver", 2, Anomaly.NEWEST_STOPPED, {"move": 0.1, "marker": 0.3}),
    ("retried tasks write", 1, Anomaly.OUT_OF_ORDER, {"task": 0.1}),
    ("retried tasks write", 2, Anomaly.OUT_OF_ORDER, {"task": 0.1}),
    ("repeats the epoch of an empty batch", 1, Anomaly.REPEATED, {"request": 0.1, "task": 0.1}),
    ("forgets an empty batch", 1, Anomaly.CONFLICT, {"task": 0.1}),
    ("forgets an empty batch", 2, Anomaly.CONFLICT, {"task": 0.1}),
    ("forgets an empty batch", 1, Anomaly.CONFLICT, {"denied": 0.2}),
    ("renews at any price", 1, Anomaly.REPEATED, {"driver": 0.1, "second": 0.2, "rest": 0.3}),
    ("renews at any price", 2, Anomaly.NEWEST_STOPPED, {"driver": 0.1, "second": 0.2, "rest": 0.3}),
    ("renews the batch before", 1, Anomaly.OTHER_PROGRESS, {"rest": 0.3}),
    ("renews the batch before", 2, Anomaly.OTHER_PROGRESS, {"rest": 0.3}),
    ("doubts who has resumed", 2, Anomaly.CONFLICT, {"checkpoint": 0.1, "plan": 0.3, "driver": 0.1}),
    ("goes on without a claim", 2, Anomaly.REPEATED, {"driver": 0.1, "second": 0.2, "expire": 0.2, "people": 0.2}),
    ("does not trust offsets", 2, Anomaly.REPEATED, {"driver": 0.2, "people": 0.2}),
    ("takes a name without progress for new", 1, Anomaly.REPEATED, {}),
    ("takes a name without progress for new", 2, Anomaly.REPEATED, {}),
    ("forgets the source offsets", 1, Anomaly.SOURCE_OFFSET, {"task": 0.1}),
    ("forgets the source offsets", 2, Anomaly.SOURCE_OFFSET, {"task": 0.1}),
    ("forgets the source offsets", 2, Anomaly.SOURCE_OFFSET, {"beside": 0.2}),
    ("forgets the progress", 1, Anomaly.NO_PROGRESS, {"task": 0.1}),
    ("forgets the progress", 2, Anomaly.NO_PROGRESS, {"task": 0.1}),
    ("enrols once", 1, Anomaly.HANGING, {"request": 0.1}),
    ("enrols once", 1, Anomaly.HELD, {"request": 0.1}),
    ("looks for nobody again", 1, Anomaly.NO_END, {"move": 0.1}),
    ("asks the user again", 2, Anomaly.TOO_MANY_DRIVERS, {"checkpoint": 0.2, "driver": 0.1}),
    ("starts again after it was fenced", 1, Anomaly.WENT_ON, {"hijack": 0.2}),
    ("starts again after it was fenced", 2, Anomaly.WENT_ON, {"second": 0.2}),
    ("expects an answer", 1, Anomaly.MACHINE_FAILED, {"cut": 0.1}),
    ("looks at the first partition", 1, Anomaly.TORN_SOURCES, {"partly": 0.1}),
    ("looks at the first partition", 2, Anomaly.TORN_SOURCES, {"partly": 0.1}),
    ("trusts the offsets", 2, Anomaly.RESUMED_DIFFERENT, TORN),
    ("trusts the offsets", 2, Anomaly.RESUMED_UNCOMMITTED, {**TORN, "people": 0.2}),
]
SECOND_BATCH = frozenset({3, 4, 5})
SILENT = {"repeats the epoch of an empty batch": SECOND_BATCH, "forgets an empty batch": SECOND_BATCH}
"""Of the variants that err about batches without records: the input that gives no output."""
NEAR_THE_LAST_EPOCH = {
    "asks again for the last epoch": range(32755, 32766),
    "trusts what follows the last epoch": range(32760, 32767),
    "takes another producer id for another driver": range(32755, 32766),
    "goes on behind the last epoch": range(32760, 32767),
    "takes a forgotten producer id for another driver": range(32760, 32767),
}
"""Of the variants that err about the last epoch (32766): the first one, by the seed."""

RAN_AT_LEAST_ONCE = {"takes a name without progress for new": 4}
"""Of the variant that errs about what was written so: how many records; its guarantee and its checkpoint are changed at once."""

UNVERIFIED = frozenset({"aborts under the epoch of the attempt", "enrols once"})
"""Of the variants that rely on leaders to ask the coordinator: nobody does."""

READINGS_DIFFER = frozenset({"trusts the offsets"})
"""Of the variant that resumes from offsets which do not tell where: no one offset can tell."""

SEARCHED_FROM = {
    ("trusts what follows the last epoch", 1): 530,
    ("reports old conflicts", 2): 770,
    ("asks again for the last epoch", 2): 330,
    ("believes what is read", 1): 160,
    ("takes another commit for its own", 1): 1030,
    ("believes where it begins", 2): 390,
    ("does not trust offsets", 2): 170,
}
"""Of the variants that break seldom: the seeds before break none of them, and cost a minute of a processor."""
REST_SEARCHED_FROM = 3200


def frame(name: str, version: int, rates: dict[str, float], seed: int) -> Scenario:
    """In what a variant is held against production; the drivers are one or two, by the seed."""
    epochs = NEAR_THE_LAST_EPOCH.get(name, range(1))
    return Scenario(
        version=version,
        drivers=1 + seed % 2,
        first_epoch=epochs[seed % len(epochs)],
        rates=rates,
        silent=SILENT.get(name, frozenset()),
        at_least_once=RAN_AT_LEAST_ONCE.get(name, 0),
        resumes=name not in RAN_AT_LEAST_ONCE,
        verifies=name not in UNVERIFIED,
        readings_differ=name in READINGS_DIFFER,
    )


def test_what_a_query_saw_before_a_resume_explains_no_conflict_behind_it() -> None:
    """A batch of the first checkpoint was planned twice; the conflicts of those that were made since have no such cause."""
    rates = {"checkpoint": 0.1, "plan": 0.3, "driver": 0.1}
    scenario = frame("doubts who has resumed", 2, rates, seed=59)
    told = run(59, VARIANTS["doubts who has resumed"], scenario=scenario).anomalies
    assert {each.anomaly for each in told} == {Anomaly.CONFLICT}
    assert not run(59, scenario=scenario).anomalies


@pytest.mark.parametrize("version", [1, 2])
def test_nothing_but_the_progress_tells_of_a_renewal_of_the_batch_before(version: int) -> None:
    """Output and source offsets are right, and no driver starts after it: the next one would be refused."""
    scenario = Scenario(version=version, rates={"rest": 0.3})
    found = [run(seed, VARIANTS["renews the batch before"], scenario=scenario).anomalies for seed in range(100)]
    told = [each for each in found if each]
    assert told
    assert all(len(each) == 1 and each[0].anomaly is Anomaly.OTHER_PROGRESS for each in told)


NEEDED = [  # a fault that breaks a variant together with others, which do not break it without
    ("checkpoint", "trusts batch ids", 2, Anomaly.LOST, {"plan": 0.3, "driver": 0.1}),
    ("expire", "trusts a new identity", 1, Anomaly.REPEATED, {"driver": 0.05, "second": 0.1}),
    ("rest", "renews at any price", 2, Anomaly.NEWEST_STOPPED, {"driver": 0.1, "second": 0.2}),
    ("people", "goes on without a claim", 2, Anomaly.REPEATED, {"driver": 0.1, "second": 0.2, "expire": 0.2}),
    ("replaced", "believes what is read", 2, Anomaly.REPEATED, {"named": 0.7, "driver": 0.1}),
    ("outdated", "unknown is committed", 2, Anomaly.LOST, {"named": 0.7}),
    ("named", "believes what is read", 2, Anomaly.REPEATED, {"replaced": 0.1, "driver": 0.2}),
]
WITHOUT = 300
NO_FAULTS = {"plan", "pace"}
"""A plan that differs, and a request that takes longer than another."""


def test_every_kind_of_fault_has_a_control() -> None:
    alone = {kind for *_, rates in CONTROLS if len(rates) == 1 for kind in rates}
    assert alone | {kind for kind, *_ in NEEDED} == set(KINDS) - NO_FAULTS


@pytest.mark.parametrize(("kind", "name", "version", "anomaly", "others"), NEEDED)
def test_it_is_this_fault_that_breaks_it(
    kind: str, name: str, version: int, anomaly: Anomaly, others: dict[str, float]
) -> None:
    def breaks(seed: int, rates: dict[str, float]) -> bool:
        return run(seed, VARIANTS[name], scenario=Scenario(version=version, rates=rates)).shows(anomaly)

    first = REST_SEARCHED_FROM if kind == "rest" else 0
    seeds = range(first, first + SEEDS)
    broken = next((seed for seed in seeds if breaks(seed, {**others, kind: 0.1})), None)
    assert broken is not None
    without = range(min(first, broken), max(broken + 1, first + WITHOUT))
    assert not any(breaks(seed, others) for seed in without), "the others break it by themselves"


def test_every_variant_has_a_control() -> None:
    assert {name for name, *_ in CONTROLS} == set(VARIANTS)


@pytest.mark.parametrize(("name", "version", "anomaly", "rates"), CONTROLS)
def test_faults_break_what_is_not_defended(name: str, version: int, anomaly: Anomaly, rates: dict[str, float]) -> None:
    first = SEARCHED_FROM.get((name, version), 0)
    for seed in range(first, first + SEEDS):
        scenario = frame(name, version, rates, seed)
        assert not run(seed, scenario=scenario).anomalies
        is_broken = run(seed, VARIANTS[name], scenario=scenario).shows(anomaly)
        if (
            is_broken
            and (not rates or holds_without_faults(seed, name, scenario))
            and hold(seed, below(name), scenario)
        ):
            return
    pytest.fail(
        f"{SEEDS} seeds do not break the variant '{name}', or the same ones do so without faults, or others that lack less"
    )


def holds_without_faults(seed: int, name: str, scenario: Scenario) -> bool:
    """A second driver from the beginning, which odd seeds have, breaks some by itself."""
    return not run(seed, VARIANTS[name], scenario=replace(scenario, rates={})).anomalies


STRONGER = {"trusts what follows the last epoch"}
"""Variants that lack less than those whose code they have, and not more."""


def below(name: str) -> list[Variant]:
    """Of a variant that lacks several defences those that lack some of them: what breaks these tells nothing of the others."""
    machine = VARIANTS[name].machine
    assert isinstance(machine, type)
    bases = set() if name in STRONGER else set(machine.__mro__[1:]) - set(Protocol.__mro__)
    return [each for each in VARIANTS.values() if each.machine in bases]


def test_a_variant_that_lacks_more_than_another_is_held_against_it() -> None:
    assert below("fences back") == [VARIANTS[name] for name in ("no claim", *LACKED_BY_NO_CLAIM)]
    assert below("no claim") == [VARIANTS[name] for name in LACKED_BY_NO_CLAIM]
    assert not below("no audit")


LACKED_BY_NO_CLAIM = ("believes what is read", "takes another commit for its own")


def hold(seed: int, variants: list[Variant], scenario: Scenario) -> bool:
    return not any(run(seed, each, scenario=scenario).anomalies for each in variants)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "no fresh epoch"])
def test_without_faults_nothing_breaks(name: str) -> None:
    for variant in (VARIANTS[name], PRODUCTION):
        check_quiet(variant)


def test_without_faults_one_epoch_is_enough() -> None:
    check_quiet(VARIANTS["no fresh epoch"], versions=(1,))


def check_quiet(variant: Variant, versions: tuple[int, ...] = (1, 2)) -> None:
    for version in versions:
        for batch_records, silent in product((1, 3, 5), (frozenset[int](), SECOND_BATCH, frozenset(range(10)))):
            scenario = Scenario(version=version, records=10, batch_records=batch_records, silent=silent)
            assert run(0, variant, scenario=scenario).anomalies == ()


@pytest.mark.long
def test_an_old_driver_does_not_go_on_after_the_transactional_id_expired() -> None:
    """The story that the seeds tell::

    driver 1 commits batch 0 and is stopped
    driver 2 takes over, commits batches 1 to 3, and ends; the transactional id expires
    driver 1 wakes with batch 1; REFRESH asks InitProducerId with its old identity and gets another producer id, epoch 0
    taken for its own next epoch, it would write batches 1 to 3 a second time, and its progress would go back
    """
    scenario = Scenario(version=1, records=12, rates={"driver": 0.05, "second": 0.1, "expire": 0.1})
    for seed in range(SEEDS):
        outcome = run(seed, scenario=scenario)
        assert not outcome.anomalies, run(seed, scenario=scenario, tracing=True).story()
