"""Many seeds on all processors, and what they reached together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from onceflow.verify.simulator import coverage
from onceflow.verify.simulator.run import run

CHUNK = 250


@dataclass(frozen=True, slots=True)
class Campaign:
    """``failed``: seeds with an anomaly; ``missed``: branches that no seed took."""

    seeds: int
    failed: tuple[int, ...]
    missed: frozenset[str]


def campaign(seeds: range, processes: int = 2) -> Campaign:
    """Runs every seed with the production protocol."""
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    failed: list[int] = []
    reached: set[str] = set()
    for bad, taken in _results(chunks, processes):
        failed += bad
        reached |= taken
    return Campaign(len(seeds), tuple(failed), coverage.labels() - reached)


Result = tuple[list[int], set[str]]


def _results(chunks: list[range], processes: int) -> Iterator[Result]:
    if processes == 1:
        yield from map(run_all, chunks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_all, chunks)


def run_all(seeds: Iterable[int]) -> Result:
    """The failing seeds, and what all of them reached."""
    failed: list[int] = []
    reached: set[str] = set()
    for seed in seeds:
        outcome = run(seed)
        reached |= outcome.reached
        if outcome.anomalies:
            failed.append(seed)
    return failed, reached
