from __future__ import annotations

import ast
import functools
import inspect
from typing import Any

import pyarrow as pa
import pytest
from tests.verify.checker.mutants import MUTANTS, Mutant, Rows
from tests.verify.checker.output_mutants import OUTPUT_MUTANTS
from tests.verify.checker.world import COPY, World

from onceflow.verify.checker import CHECKS, Check, Verdict, check_history, diverged_output, replay, shrink
from onceflow.verify.checker.report import first_findings
from onceflow.verify.history import SCHEMA, validate

STEPS = 1500
ALL = [*MUTANTS, *OUTPUT_MUTANTS]
JUDGED = {check.anomaly for check in CHECKS.values() if check.judged} | {diverged_output.__name__}


@functools.cache
def good_rows(seed: int) -> list[dict[str, Any]]:
    return list(World(seed).run(STEPS).to_pylist())


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {name: pa.array([row[name] for row in rows]) for name in SCHEMA.names}
    return validate(pa.table(columns).replace_schema_metadata(SCHEMA.metadata))


def judged(mutant: Mutant, seed: int) -> Verdict:
    """What is found in a good history that is damaged so."""
    damaged = table_of(mutant.damage(Rows(good_rows(seed), seed)))
    assert len(damaged) > 2000
    return check_history(damaged, function=COPY if mutant.told else None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_each_damage_is_found_and_nothing_else(mutant: Mutant, seed: int) -> None:
    verdict = judged(mutant, seed)
    assert set(verdict.violations) == set(mutant.anomalies)
    assert told(verdict) == ({mutant.told} - {""})


def told(verdict: Verdict) -> set[str]:
    """What is told of the output."""
    found = verdict.findings.to_pylist()
    return {finding["detail"] for finding in found if finding["anomaly"] == diverged_output.__name__}


@pytest.mark.parametrize("seed", range(4))
def test_without_damage_nothing_is_found(seed: int) -> None:
    assert check_history(table_of(good_rows(seed)), function=COPY).violations == {}


def test_every_check_has_a_mutant_that_it_kills() -> None:
    assert {anomaly for mutant in ALL for anomaly in mutant.anomalies} == JUDGED


def test_all_that_is_told_of_output_has_a_mutant() -> None:
    """``diverged_output`` is several checks in one: each makes findings with a text of its own."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(replay))) if isinstance(node, ast.Call)]
    findings = [call for call in calls if ast.unparse(call.func) == "findings"]
    details = [keyword.value for call in findings for keyword in call.keywords if keyword.arg == "detail"]
    assert len(details) == len(findings)
    assert {ast.literal_eval(detail) for detail in details} == {mutant.told for mutant in OUTPUT_MUTANTS}


@pytest.mark.parametrize("mutant", [m for m in ALL if len(m.anomalies) == 1], ids=lambda mutant: mutant.name)
def test_the_smallest_history_that_shows_it_is_small(mutant: Mutant) -> None:
    verdict = judged(mutant, seed=1)
    (finding,) = first_findings(verdict)
    check = verdict.check(mutant.anomalies[0])
    smallest = shrink(verdict.history, finding, check)
    assert len(smallest) <= mutant.rows
    assert mutant.anomalies[0] in check_history(smallest, [check]).violations
    for row in range(len(smallest)):  # nothing can be left out
        rest = smallest.take(pa.array([each for each in range(len(smallest)) if each != row], pa.int64()))
        assert not _shows(rest, finding, check)


def _shows(table: pa.Table, finding: dict[str, Any], check: Check) -> bool:
    names = ("key", "offset", "value", "detail")
    found = check_history(table, [check]).findings.to_pylist()
    return tuple(finding[name] for name in names) in {tuple(each[name] for name in names) for each in found}
