"""Instead of random faults all of them: every run with at most so many decisions that are not the usual ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from onceflow.verify.simulator.choices import Taken
from onceflow.verify.simulator.run import Outcome, run
from onceflow.verify.simulator.scenario import Scenario

_BRANCHES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Explored:
    """How many runs there were, and of those with an anomaly the faults that replay them."""

    runs: int
    failed: tuple[Taken, ...]


def explore(scenario: Scenario, bound: int, processes: int = 2) -> Explored:
    """Every run with at most ``bound`` faults (one and more) of the kinds that ``scenario.rates`` names; the rates do not matter.

    Each run is made once: after its last fault it goes the usual way, and every decision on that way is where a run with one
    more fault may branch off.
    """
    usual = run(0, scenario=scenario, taken={})
    below = partial(_explored, scenario, bound - 1)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = [_found([usual]), *pool.map(below, _branches(usual, {}), chunksize=_BRANCHES_AT_ONCE)]
    return Explored(sum(each.runs for each in found), tuple(taken for each in found for taken in each.failed))


def _explored(scenario: Scenario, bound: int, taken: Taken) -> Explored:
    return _found(_below(scenario, bound, taken))


def _found(outcomes: Iterable[Outcome]) -> Explored:
    runs, failed = 0, []
    for outcome in outcomes:
        runs += 1
        if outcome.anomalies:
            failed.append(outcome.taken)
    return Explored(runs, tuple(failed))


def _below(scenario: Scenario, bound: int, taken: Taken) -> Iterator[Outcome]:
    outcome = run(0, scenario=scenario, taken=taken)
    yield outcome
    if bound:
        for more in _branches(outcome, taken):
            yield from _below(scenario, bound - 1, more)


def _branches(outcome: Outcome, taken: Taken) -> Iterator[Taken]:
    """The run's faults, and one more after the last of them."""
    first = max((number for number, point in enumerate(outcome.points) if point.key in taken), default=-1) + 1
    for point in outcome.points[first:]:
        for option in range(1, point.options):
            yield {**taken, point.key: option}
