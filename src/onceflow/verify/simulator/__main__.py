"""``python -m onceflow.verify.simulator``: many seeds, or one with its trace."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Annotated

import typer

from onceflow.verify.simulator.campaign import campaign
from onceflow.verify.simulator.run import run, shrink

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds to run.")]
First = Annotated[int, typer.Option(min=0, help="The first of them.")]
ByChance = Annotated[bool, typer.Option("--by-chance", help="Begin somewhere else each time; where is printed.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Run this one alone, and print its trace.")]
Processes = Annotated[int, typer.Option(min=1, help="How many at the same time.")]

_CHANCES = 2**31


def main(
    seeds: Seeds = 10_000, first: First = 0, seed: Seed = None, processes: Processes = 2, *, by_chance: ByChance = False
) -> None:
    """Runs the commit protocol against the model of Kafka; exit status 1 when a run shows an anomaly."""
    if seed is not None:
        outcome = run(seed, tracing=True)
        print(outcome.story())
        sys.exit(bool(outcome.anomalies))
    first = secrets.randbelow(_CHANCES) if by_chance else first
    began = time.monotonic()
    found = campaign(range(first, first + seeds), processes)
    print(f"{found.seeds} seeds from {first} in {time.monotonic() - began:.0f} s, {len(found.failed)} with an anomaly")
    for missed in sorted(found.missed):
        print(f"never reached: {missed}")
    if found.failed:
        print(f"failed: {', '.join(map(str, found.failed[:50]))}; the first one, with the faults that it needs:")
        print(shrink(run(found.failed[0])).story())
    sys.exit(bool(found.failed))


if __name__ == "__main__":
    typer.run(main)
