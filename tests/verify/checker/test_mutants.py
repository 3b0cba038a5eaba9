from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pytest
from tests.verify.checker.mutants import MUTANTS, Mutant, Rows
from tests.verify.checker.world import World

from onceflow.verify.checker import CHECKS, Check, check_history, shrink
from onceflow.verify.checker.report import first_findings
from onceflow.verify.history import SCHEMA, validate

STEPS = 1500
JUDGED = [check for check in CHECKS.values() if check.judged]


@functools.cache
def good_rows(seed: int) -> list[dict[str, Any]]:
    return list(World(seed).run(STEPS).to_pylist())


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {name: pa.array([row[name] for row in rows]) for name in SCHEMA.names}
    return validate(pa.table(columns).replace_schema_metadata(SCHEMA.metadata))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_damage_is_found_and_nothing_else(mutant: Mutant, seed: int) -> None:
    damaged = table_of(mutant.damage(Rows(good_rows(seed), seed)))
    assert len(damaged) > 2000
    assert set(check_history(damaged).violations) == set(mutant.anomalies)


def test_every_check_has_a_mutant_that_it_kills() -> None:
    assert {anomaly for mutant in MUTANTS for anomaly in mutant.anomalies} == {check.anomaly for check in JUDGED}


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if len(m.anomalies) == 1], ids=lambda mutant: mutant.name)
def test_the_smallest_history_that_shows_it_is_small(mutant: Mutant) -> None:
    verdict = check_history(table_of(mutant.damage(Rows(good_rows(1), 1))))
    (finding,) = first_findings(verdict)
    smallest = shrink(verdict.history, finding)
    assert len(smallest) <= 5
    assert mutant.anomalies[0] in check_history(smallest).violations
    for row in range(len(smallest)):  # nothing can be left out
        rest = smallest.take(pa.array([each for each in range(len(smallest)) if each != row], pa.int64()))
        assert not _shows(rest, finding, CHECKS[mutant.anomalies[0]])


def _shows(table: pa.Table, finding: dict[str, Any], check: Check) -> bool:
    names = ("key", "offset", "value", "detail")
    found = check_history(table, [check]).findings.to_pylist()
    return tuple(finding[name] for name in names) in {tuple(each[name] for name in names) for each in found}
