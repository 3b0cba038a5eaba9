"""Mutants of the commit protocol: ``protocol.py`` with one thing changed, and whether the simulator sees it."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from onceflow.transaction import protocol
from onceflow.verify.simulator.run import run
from onceflow.verify.simulator.world import Variant

SOURCE = Path(protocol.__file__)
_COMPARED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
    ast.GtE: ast.Gt(),
    ast.Gt: ast.GtE(),
    ast.Lt: ast.LtE(),
}
_OF_NO_EFFECT = {"failure", "note", "frozen", "slots"}  # what is only told to people, and what only guards or saves


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed source. ``name`` says what and where."""

    name: str
    source: str

    def load(self) -> ModuleType:
        """The mutated module, under a name of its own."""
        module = ModuleType("onceflow.transaction.protocol_mutant")
        module.__file__ = str(SOURCE)
        sys.modules[module.__name__] = module
        exec(compile(self.source, str(SOURCE), "exec"), module.__dict__)  # noqa: S102  our own source, changed
        return module


def mutants() -> list[Mutant]:
    """Every mutant, in the order of the source."""
    tree = ast.parse(SOURCE.read_text())
    found = []
    for index, node in enumerate(ast.walk(tree)):
        for change, (what, _) in enumerate(_changes(node)):
            mutated = copy.deepcopy(tree)
            _apply(mutated, index, change)
            line = getattr(node, "lineno", 0)
            found.append(Mutant(f"line {line}: {what}", ast.unparse(ast.fix_missing_locations(mutated))))
    return [mutant for mutant in found if mutant.source != ast.unparse(tree)]


def _apply(tree: ast.Module, index: int, change: int) -> None:
    nodes = list(ast.walk(tree))
    _, act = list(_changes(nodes[index]))[change]
    act.run()


@dataclass(frozen=True, slots=True)
class _Set:
    """A change: one field of a node gets another value."""

    node: ast.AST
    field: str
    value: object

    def run(self) -> None:
        setattr(self.node, self.field, self.value)


Change = tuple[str, _Set]


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.If() | ast.IfExp():
            text = ast.unparse(node.test)
            yield f"'{text}' is always true", _Set(node, "test", ast.Constant(value=True))
            yield f"'{text}' is never true", _Set(node, "test", ast.Constant(value=False))
        case ast.BoolOp():
            for i in range(len(node.values)):
                kept = [value for j, value in enumerate(node.values) if j != i]
                yield f"without '{ast.unparse(node.values[i])}'", _Set(node, "values", kept)
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARED:
            other = _COMPARED[type(operator)]
            yield f"'{ast.unparse(node)}' with {type(other).__name__}", _Set(node, "ops", [other])
        case ast.Call():
            yield from _call_changes(node)
        case ast.Dict():
            yield from _table_changes(node)


def _call_changes(node: ast.Call) -> Iterator[Change]:
    """Calls lose a keyword, or get the opposite of a truth value; states are swapped for their neighbours."""
    for i, keyword in enumerate(node.keywords):
        if keyword.arg in _OF_NO_EFFECT:
            continue
        text = ast.unparse(keyword)
        if isinstance(node.func, ast.Name) and node.func.id == "replace":
            rest = [other for j, other in enumerate(node.keywords) if j != i]
            yield f"without '{text}'", _Set(node, "keywords", rest)
        if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool):
            other = ast.Constant(value=not keyword.value.value)
            yield f"the opposite of '{text}'", _Set(keyword, "value", other)
        if keyword.arg == "state":
            yield f"another state for '{text}'", _Set(keyword, "value", _neighbour(keyword.value))


def _neighbour(state: ast.expr) -> ast.expr:
    names = [each.name for each in protocol.State]
    name = state.attr if isinstance(state, ast.Attribute) else names[0]
    other = names[(names.index(name) + 1) % len(names)]
    return ast.Attribute(value=ast.Name(id="State", ctx=ast.Load()), attr=other, ctx=ast.Load())


def _table_changes(node: ast.Dict) -> Iterator[Change]:
    """A row of the transition table is lost, or goes where another row of the same event goes."""
    for i, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
        if not isinstance(key, ast.Tuple):
            continue
        text = ast.unparse(key)
        others = [
            v
            for k, v in zip(node.keys, node.values, strict=True)
            if isinstance(k, ast.Tuple)
            and ast.unparse(k.elts[1]) == ast.unparse(key.elts[1])
            and ast.unparse(v) != ast.unparse(value)
        ]
        for other in others[:2]:
            changed = [other if j == i else v for j, v in enumerate(node.values)]
            yield f"{text} goes to {ast.unparse(other)}", _Set(node, "values", changed)


def killed_by(mutant: Mutant, seeds: range) -> int | None:
    """The first seed with an anomaly; None if the simulator does not tell the mutant from the protocol."""
    try:
        machine = mutant.load().Protocol
    except Exception:  # noqa: BLE001  it does not even load
        return seeds.start
    variant = Variant(machine)
    return next((seed for seed in seeds if run(seed, variant).anomalies), None)
