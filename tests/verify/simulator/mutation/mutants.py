"""Every mutant of a source file: one place of it changed by one operator."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

from tests.verify.simulator.mutation.operators import variants

ROOT = Path(__file__).parents[4]
UNCHANGED = "unchanged"
_SHOWN = 150
PROTOCOL_JUDGES = ("unit tests", "model", "simulator")
ENCODER_JUDGES = ("encoder's tests",)
SPARK_JUDGES = ("with Spark",)


@dataclass(frozen=True, slots=True)
class Target:
    """A source file, and which of its functions are mutated: all, or those that ``only`` names (with what stands in them).

    ``judges``: who may kill its mutants, the quickest first.
    """

    path: str
    only: frozenset[str] = frozenset()
    judges: tuple[str, ...] = PROTOCOL_JUDGES

    @property
    def module(self) -> str:
        """Its name for an import."""
        return self.path.removeprefix("src/").removesuffix(".py").replace("/", ".")

    @property
    def with_spark(self) -> bool:
        """Whether it takes real brokers and real Spark to judge them, which are started once for many mutants."""
        return self.judges == SPARK_JUDGES

    @property
    def file(self) -> str:
        """Its name for people."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class _Site:
    """Where a node hangs in the tree, and the function it stands in."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    place: str
    function: str  # the outermost function that it stands in, by its qualified name; empty when it runs on import
    statement: int = 0  # which statement of the module it stands in
    data: bool = False  # ... and that is an assignment


@dataclass(frozen=True, slots=True)
class Mutant:
    """``place`` (a function, or empty), ``change`` and ``number`` (of several equal changes) name it; lines may move."""

    target: Target
    place: str
    change: str
    number: int
    line: int
    site: _Site = field(repr=False, compare=False)
    other: ast.AST | None = field(repr=False, compare=False)
    tree: ast.Module = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """Its name, the same after an edit elsewhere in the file."""
        number = f" #{self.number}" if self.number else ""
        return f"{self.target.file} {self.place or 'module'}: {self.change}{number}"

    @property
    def in_place(self) -> bool:
        """Whether it can be put into a module that is loaded already. A class cannot: others have it already."""
        return bool(self.site.function) or self.site.data

    def code(self) -> CodeType:
        """The mutated module."""
        return self._compiled(lambda: self.tree.body)

    def code_of_data(self) -> CodeType:
        """All assignments of the module, for some are made of others."""
        return self._compiled(lambda: [each for each in self.tree.body if isinstance(each, _DATA)])

    def code_of_function(self, free: Sequence[str] = ()) -> CodeType:
        """The function that is changed. It has the variables ``free`` of what is around it, also where its change needs none."""
        body = self._body_of_function()
        named: list[ast.stmt] = [ast.Expr(ast.Name(name, ast.Load())) for name in free]
        body.append(ast.If(ast.Constant(value=False), [ast.Pass(), *named], []))
        try:
            found = self._compiled(lambda: [self.tree.body[self.site.statement]])
        finally:
            body.pop()
        for name in self.site.function.split("."):
            found = next(each for each in found.co_consts if isinstance(each, CodeType) and each.co_name == name)
        return found

    def _body_of_function(self) -> list[ast.stmt]:
        body = self.tree.body
        for name in self.site.function.split("."):
            found = next(each for each in body if isinstance(each, _NAMED) and each.name == name)
            body = found.body
        return body

    def _compiled(self, chosen: Callable[[], list[ast.stmt]]) -> CodeType:
        """Changes the tree, compiles some statements of it, and takes the change back."""
        self._put(ast.Pass() if self.other is None else self.other)
        try:
            future = [
                each for each in self.tree.body if isinstance(each, ast.ImportFrom) and each.module == "__future__"
            ]
            part = ast.Module(body=[*future, *(each for each in chosen() if each not in future)], type_ignores=[])
            return compile(ast.fix_missing_locations(part), str(ROOT / self.target.path), "exec")
        finally:
            self._put(self.site.node)

    def _put(self, node: ast.AST) -> None:
        parent: Any = self.site.parent
        if self.site.index is None:
            setattr(parent, self.site.field, node)
        else:
            getattr(parent, self.site.field)[self.site.index] = node


_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DATA = (ast.Assign, ast.AnnAssign, ast.Expr)


def unchanged(target: Target, *, in_place: bool) -> Mutant:
    """The source as it is: whatever kills this one is no judge."""
    tree = ast.parse((ROOT / target.path).read_text())
    site = _Site(tree, "body", 0, tree.body[0], "", "", data=in_place)
    return Mutant(target, "", UNCHANGED, 0, 0, site, tree.body[0], tree)


def mutants(target: Target) -> list[Mutant]:
    """Every mutant, in the order of the source."""
    tree = ast.parse((ROOT / target.path).read_text())
    found: list[Mutant] = []
    numbers: Counter[tuple[str, str]] = Counter()
    for site in _sites_of_module(tree):
        if target.only and not any(site.place == each or site.place.startswith(f"{each}.") for each in target.only):
            continue
        for other in variants(site.node, target.file):
            change = difference(site.node, other)
            line = getattr(site.node, "lineno", getattr(site.parent, "lineno", 0))
            found.append(Mutant(target, site.place, change, numbers[site.place, change], line, site, other, tree))
            numbers[site.place, change] += 1
    return found


def difference(node: ast.AST, other: ast.AST | None) -> str:
    """What a change is, for people."""
    match node, other:
        case ast.Dict(), ast.Dict():
            rows, changed = _rows(node), _rows(other)
            row = next(key for key in rows if changed.get(key) != rows[key])
            return f"{row}: {rows[row]} -> {changed.get(row, 'no such row')}"
        case ast.Call(), ast.Call() if len(node.keywords) > len(other.keywords):
            left_out = next(each for each in node.keywords if each not in other.keywords)
            return f"{_text(node.func)}(…) without {_text(left_out)}"
        case ((ast.Set() | ast.List()), (ast.Set() | ast.List())):
            return f"{_text(node)} without {_text(next(each for each in node.elts if each not in other.elts))}"
        case ast.Try(), ast.Try():
            passed_on = next(old for old, new in zip(node.handlers, other.handlers, strict=True) if old is not new)
            return f"except {_text(passed_on.type)}: … -> raise"
        case ast.Match(), ast.Match():
            return f"without case {_text(next(each for each in node.cases if each not in other.cases).pattern)}"
    return f"{_text(node)} -> {_text(other)}"


def _rows(node: ast.Dict) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in zip(node.keys, node.values, strict=True)}


def _text(node: ast.AST | None) -> str:
    if node is None:
        return "nothing"
    text = " ".join(ast.unparse(_headline(node)).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _headline(node: ast.AST) -> ast.AST:
    """What is told of a statement that has others in it."""
    if isinstance(node, ast.If | ast.For):
        shown = copy.copy(node)
        shown.body, shown.orelse = [ast.Expr(ast.Constant(...))], []
        return shown
    return node


# ------------------------------------------------------------------------------------------- which nodes may be changed

_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "bases", "pattern", "msg", "cause"}
_TELLING = {"log", "action"}


def _sites_of_module(tree: ast.Module) -> Iterator[_Site]:
    for index, statement in enumerate(tree.body):
        holder = ast.Module(body=[statement], type_ignores=[])
        for site in _sites(holder, "", ""):
            real = replace(site, parent=tree, index=index) if site.parent is holder else site
            yield replace(real, statement=index, data=isinstance(statement, _DATA))


def _sites(parent: ast.AST, place: str, function: str) -> Iterator[_Site]:
    for name, value in ast.iter_fields(parent):
        if name in _SKIPPED_FIELDS:
            continue
        nodes = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, node in nodes:
            if isinstance(node, ast.AST) and not _skipped(node, parent):
                inside = _place(node, place)
                runs_in = function or (inside if isinstance(node, ast.FunctionDef) else "")
                if name in ("defaults", "kw_defaults") and runs_in == inside:
                    runs_in = ""
                yield _Site(parent, name, index, node, inside, runs_in)
                yield from _sites(node, inside, runs_in)


def _place(node: ast.AST, place: str) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return f"{place}.{node.name}".lstrip(".")
    return place


def _skipped(node: ast.AST, parent: ast.AST) -> bool:
    """What decides nothing: imports, names of types, assertions, texts for people."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.expr_context() | ast.operator() | ast.cmpop():
            return True
        case ast.Expr(value=ast.Constant()):
            return True  # a docstring
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
        case ast.JoinedStr():
            return any(isinstance(part, ast.Constant) and " " in str(part.value) for part in node.values)
        case ast.keyword(arg="action"):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) if isinstance(parent, ast.Module):
            return name.lstrip("_")[:2].istitle() or name in ("log", "_ACTIONS", "__all__")  # a type, or told to people
        case ast.FormattedValue():
            return True
    return False
