"""``python -m tests.verify.simulator.branches``: which branches of production no run of the simulator takes.

Each must be listed in ``unreached.toml`` with the reason; and what is listed must not be reached.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from tests.verify.simulator.branches.frames import Run, runs
from tests.verify.simulator.branches.probes import install, probed
from tests.verify.simulator.branches.targets import TARGETS

UNREACHED = Path(__file__).with_name("unreached.toml")
AT_ONCE = 125

Processes = Annotated[int, typer.Option(min=1, help="How many at the same time.")]
First = Annotated[int | None, typer.Option("--first", min=1, help="Only so many runs.")]
Listed = Annotated[Path, typer.Option("--listed", help="The branches that cannot be reached, with reasons.")]

_reached: set[str] = set()


def main(processes: Processes = 2, first: First = None, listed: Listed = UNREACHED) -> None:
    """Runs the simulator; exit status 1 where a branch is not reached, or one is that is listed, or a run shows an anomaly."""
    global _reached
    every = [branch for path, place in TARGETS.items() for branch in _branches(path, place)]
    excused = excuses(listed, every)
    _reached = install(list(TARGETS))
    import onceflow.verify.simulator  # noqa: F401  once, before the forks

    failed: list[str] = []
    reached: set[str] = set()
    for bad, taken in _results(processes, first):
        failed += bad
        reached |= taken
    wrong = [
        *(f"an anomaly, which is not for here: {each}" for each in failed),
        *(f"never reached: {each}" for each in every if each not in reached and each not in excused),
        *(f"is listed in {listed.name}, and reached: {each}" for each in every if each in reached and each in excused),
    ]
    print("\n".join(wrong))
    print(f"{len(reached.intersection(every))} of {len(every)} branches are reached, {len(excused)} are listed")
    sys.exit(bool(wrong))


def _branches(path: str, place: str) -> Iterator[str]:
    named = f"{Path(path).name} {place}:"
    return (each for each in probed(path).branches.values() if not place or each.startswith(named))


def excuses(listed: Path, every: Collection[str]) -> frozenset[str]:
    """The branches that are listed, by name or with all of the place that they stand in. Each entry must be of some."""
    found: set[str] = set()
    for entry in tomllib.loads(listed.read_text()).get("unreached", []):
        assert entry["reason"]
        for name in entry["branches"]:
            meant = {each for each in every if each == name or each.startswith((f"{name}:", f"{name}."))}
            if not meant:
                sys.exit(f"no such branch, correct {listed.name}: {name}")
            found |= meant
    return frozenset(found)


Result = tuple[list[str], set[str]]


def _results(processes: int, first: int | None) -> Iterator[Result]:
    chosen = list(islice(runs(), first))
    chunks = [chosen[i : i + AT_ONCE] for i in range(0, len(chosen), AT_ONCE)]
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        yield from pool.map(_taken_by, chunks)


def _taken_by(some: Sequence[Run]) -> Result:
    from onceflow.verify.simulator import run

    _reached.clear()
    failed = []
    for seed, scenario in some:
        outcome = run(seed, scenario=scenario)
        if outcome.anomalies:
            failed.append(f"seed {seed}, {outcome.scenario}: {outcome.anomalies[0]}")
    return failed, set(_reached)


if __name__ == "__main__":
    typer.run(main)
