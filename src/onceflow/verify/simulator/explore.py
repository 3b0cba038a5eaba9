"""Instead of random faults all of them: every run with at most so many decisions that are not the usual ones."""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.verify.simulator.choices import Taken
from onceflow.verify.simulator.run import PRODUCTION, Outcome, run
from onceflow.verify.simulator.scenario import Scenario
from onceflow.verify.simulator.world import Variant


def explore(scenario: Scenario, bound: int, variant: Variant = PRODUCTION) -> Iterator[Outcome]:
    """Every run with at most ``bound`` faults of the kinds that ``scenario.rates`` names (the rates do not matter).

    Each run is made once: after its last fault it goes the usual way, and every decision on that way is where a run with one
    more fault may branch off.
    """
    yield from _below(scenario, bound, variant, {})


def _below(scenario: Scenario, bound: int, variant: Variant, taken: Taken) -> Iterator[Outcome]:
    outcome = run(0, variant, scenario=scenario, taken=taken)
    yield outcome
    if bound == 0:
        return
    first = max((number for number, point in enumerate(outcome.points) if point.key in taken), default=-1) + 1
    for point in outcome.points[first:]:
        for option in range(1, point.options):
            yield from _below(scenario, bound - 1, variant, {**taken, point.key: option})
