"""What a test replaces is there: a test of the long part is seldom run, and would be found out late."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent


def replaced(tree: ast.Module) -> Iterator[tuple[str, ast.expr, str]]:
    """``(module or class as it was imported, what stands behind it, name)`` of each ``setattr(module, "name", …)``."""
    for call in ast.walk(tree):
        match call:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr"), args=[target, ast.Constant(value=str(name)), *_]
            ):
                yield root_of(target), target, name


def root_of(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """``{name in the file: (module, name in it, or nothing where the module itself is meant)}``, wherever it is imported."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.asname or each.name.partition(".")[0]: (each.name, "") for each in node.names}
    return found


def what(root: str, module: str, name: str) -> Any:
    """What is bound to ``root``: a module, or what a module holds; by ``import a.b`` it is ``a``."""
    there = import_module(module)
    if name:
        return getattr(there, name) if hasattr(there, name) else import_module(f"{module}.{name}")
    return import_module(root) if module.startswith(f"{root}.") else there


def missing_in(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = imported(tree)
    return [
        f"{path.name}:{target.lineno}: {ast.unparse(target)} has no {name}"
        for root, target, name in replaced(tree)
        if root in names and not hasattr(eval(ast.unparse(target), {root: what(root, *names[root])}), name)
    ]


def test_what_a_test_replaces_is_there() -> None:
    assert [each for path in sorted(TESTS.rglob("*.py")) for each in missing_in(path)] == []


def test_what_is_not_there_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text("from json import decoder\nit.setattr(decoder, 'scanner', 1)\nit.setattr(decoder, 'gone', 1)")
    assert missing_in(file) == ["test_it.py:3: decoder has no gone"]
