"""Every anomaly stands in the registry: there it has a story, a mutant, and its line in the documents and reports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import onceflow.verify
from onceflow.verify.checker import CHECKS, diverged_output

ROOT = Path(onceflow.verify.__file__).parent
DOCUMENT = Path(__file__).parents[3] / "docs" / "history-format.md"
MAKERS = {"Check", "findings", "one_finding"}
"""What makes an anomaly: a check of that name, or findings of it."""


def test_what_finds_anomalies_is_in_the_registry() -> None:
    """Each public function of the checker from evidence to findings; ``diverged_output`` needs the pipeline's function too."""
    assert {find.name for find in finders()} == set(CHECKS) | {diverged_output.__name__}


def finders() -> Iterator[ast.FunctionDef]:
    for path in sorted((ROOT / "checker").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _finds(node):
                yield node


def _finds(node: ast.FunctionDef) -> bool:
    first = node.args.args[0].annotation if node.args.args else None
    return first is not None and ast.unparse(first) == "Evidence" and ast.unparse(node.returns or first) == "pa.Table"


def test_nobody_else_makes_anomalies() -> None:
    """An anomaly of another room would be judged without story, mutant and definition."""
    makers = {
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _makes(node)
    }
    assert {path for path in makers if not path.startswith("checker/")} == set()


def _makes(call: ast.Call) -> bool:
    """Whether it calls, or hands on (``map(Check, …)``), one of the makers."""
    handed_on = {argument.id for argument in call.args if isinstance(argument, ast.Name)} & {"Check"}
    return bool(handed_on) or ast.unparse(call.func).rpartition(".")[2] in MAKERS


def test_findings_are_named_after_their_check() -> None:
    for name, check in CHECKS.items():
        assert name == check.anomaly == check.find.__name__
        assert check.meaning


def test_every_anomaly_is_documented() -> None:
    text = DOCUMENT.read_text()
    assert [name for name in (*CHECKS, diverged_output.__name__) if f"| `{name}` |" not in text] == []
