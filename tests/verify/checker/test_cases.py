from __future__ import annotations

from collections import Counter

import pytest
from tests.verify.checker.cases import CASES, Case

from onceflow.verify.checker import CHECKS, check_history


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_story_has_exactly_these_anomalies(case: Case) -> None:
    verdict = check_history(case.table())
    found = {anomaly: count for anomaly, count in verdict.counts.items() if count}
    assert found == Counter(case.anomalies)


def test_every_anomaly_has_a_story() -> None:
    assert {anomaly for case in CASES for anomaly in case.anomalies} == set(CHECKS)
