"""Run results on real histories: the checker's good worlds and its mutants judge themselves, the rest is made up."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from tests.verify.checker.mutants import MUTANTS, Rows
from tests.verify.checker.world import World

from onceflow.verify.checker import Verdict, check_history
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.history import SCHEMA, validate
from onceflow.verify.result import Encounter, Happening, Lane, Recovery, RunResult, Series

VERSIONS = {"onceflow": "0.1.0", "Kafka": "4.1.0", "Spark": "4.1.0", "Java": "17", "Python": "3.11"}
FAULTS = ("kill-driver", "pause-driver", "roll-brokers", "lose-EndTxn-answer")


@functools.cache
def _rows(seed: int) -> list[dict[str, Any]]:
    return list(World(seed).run(1500).to_pylist())


@functools.cache
def verdict(mutant: str = "", seed: int = 1) -> Verdict:
    """Of a good history, or of one that a mutant of the checker's tests damaged."""
    rows = _rows(seed)
    if mutant:
        rows = next(each for each in MUTANTS if each.name == mutant).damage(Rows(rows, seed))
    columns = {name: pa.array([row[name] for row in rows]) for name in SCHEMA.names}
    return check_history(validate(pa.table(columns).replace_schema_metadata(SCHEMA.metadata)))


def series(name: str, unit: str, at: Any, value: Any) -> Series:
    return Series(name, unit, pa.array(at, pa.float64()), pa.array(value, pa.float64()))


def run(mutant: str = "", *, seed: int = 1, seconds: float = 60.0, **fields: Any) -> RunResult:
    """A minute under faults, drawn from the seed: each kill ends a driver, whose standby commits again soon after."""
    drawn = random.Random(seed)
    kills = [8.0 + 9 * nth + drawn.random() for nth in range(5)]
    recoveries = tuple(
        Recovery(FAULTS[nth % 2], at, None if nth == 4 and mutant else round(drawn.uniform(0.6, 4.5), 3))
        for nth, at in enumerate(kills)
    )
    happenings = [
        Happening(Lane.FAULT, FAULTS[nth % 2], at, at + (0, 3.0)[nth % 2], "SIGKILL") for nth, at in enumerate(kills)
    ]
    happenings += [Happening(Lane.FAULT, FAULTS[2], 20, 29, "one after the other")]
    encounters = tuple(
        Encounter(
            each.name,
            each.began_s,
            nth > 0,
            "batch 7 right before COMMIT" if nth else "nothing",
            transaction=(Transaction.NONE, Transaction.PERHAPS, Transaction.OPEN)[nth % 3],
            batches=nth,
        )
        for nth, each in enumerate(happenings)
    )
    happenings += [Happening(Lane.DRIVER, f"driver {n}", a, b) for n, (a, b) in enumerate(_lives(kills, seconds))]
    happenings += [Happening(Lane.BROKER, f"broker {n}", a, b) for n, (a, b) in enumerate([(0, 21), (0, 60), (24, 60)])]
    down = [(at, at + (each.seconds or 60)) for at, each in zip(kills, recoveries, strict=True)]
    batches = [t for t in np.arange(1, seconds, 0.5).tolist() if not any(a <= t < b for a, b in down)]
    happenings += [Happening(Lane.BATCH, f"batch {n}", t - 0.3, t) for n, t in enumerate(batches)]
    happenings += [Happening(Lane.NOTE, "input ends", seconds - 5, seconds - 5)]
    at = np.arange(0, seconds, 0.25)
    visible = np.searchsorted(batches, at, side="right") * 50.0
    result = RunResult(
        engine="onceflow",
        pipeline="retail",
        seed=seed,
        faults=FAULTS,
        began_at=1_795_000_000.25,
        seconds=seconds,
        verdict=verdict(mutant, seed),
        happenings=tuple(happenings),
        recoveries=recoveries,
        encounters=encounters,
        series=(
            series("visible output", "records", at, visible),
            series("last stable offset behind the end", "offsets", at, np.maximum(0, at * 110 - visible) % 400),
            series("lag", "records", at, np.maximum(0, at * 100 - visible)),
        ),
        counts={"input committed": 12_345, "input aborted": 678, "output": 12_345, "batches": len(batches)},
        versions=VERSIONS,
        lso_held_s=2.5,
        lso_stood_s=17.5,
        command=f"onceflow verify --for 60s --faults all --seed {seed}",
    )
    return replace(result, **fields)


def control(mutant: str = "append_a_record_again", **fields: Any) -> RunResult:
    return run(mutant, engine="Spark's Kafka sink", judged=False, seed=2, **fields)


def _lives(kills: list[float], end: float) -> list[tuple[float, float]]:
    return list(zip([0.0, *kills], [*kills, end], strict=True))
