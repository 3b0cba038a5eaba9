"""Each anomaly is brought about by something: a judge that does not see one any more is noticed."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.verify.simulator.test_variants import CONTROLS

from onceflow.verify.simulator import Scenario, anomalies, run
from onceflow.verify.simulator.anomalies import Anomaly
from onceflow.verify.simulator.group import Group

MODULE = Path(anomalies.__file__)
OF_NO_VARIANT = {Anomaly.UNSTABLE, Anomaly.WENT_BACK, Anomaly.MISREAD}
"""No protocol leaves those. The model's group coordinator asks, so what it holds is in a transaction, which ends or times out;
and leaders that lose what is stable, or hold no reader back, are in ``test_stable.py``.
"""


def test_every_anomaly_has_something_that_brings_it_about() -> None:
    assert {anomaly for _, _, anomaly, _ in CONTROLS} | OF_NO_VARIANT == set(Anomaly)


def test_offsets_stay_unstable_where_the_group_coordinator_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets come a second time, behind the commit: no transaction has them that anybody would end."""
    scenario = Scenario(version=1, rates={"request": 0.2})
    assert not shown(scenario)
    monkeypatch.setattr(Group, "is_open", lambda group, identity: True)
    assert shown(scenario) == {Anomaly.UNSTABLE}


def shown(scenario: Scenario) -> set[Anomaly]:
    """What some seeds show."""
    return {each.anomaly for seed in range(20) for each in run(seed, scenario=scenario).anomalies}


def test_each_anomaly_is_found_in_one_place() -> None:
    """Were it found in two, what brings it about in the one would hide that nothing does in the other."""
    assert Counter(named()) == Counter({anomaly.name: 1 for anomaly in Anomaly})


def named() -> Iterator[str]:
    """The anomalies that the simulator's source names, wherever it does."""
    for node in nodes():
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == Anomaly.__name__:
            yield node.attr


def test_nobody_else_makes_anomalies() -> None:
    """One in words of its own would have no name to be asked for."""
    assert not [node for node in nodes() if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Shown")]


def nodes() -> Iterator[ast.AST]:
    for path in sorted(MODULE.parent.glob("*.py")):
        if path != MODULE:
            yield from ast.walk(ast.parse(path.read_text()))
