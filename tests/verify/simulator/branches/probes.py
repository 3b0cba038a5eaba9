"""Every branch of a source file by name, and the file with a probe in each of them.

A branch is: a function or a lambda that is called, each single condition that is true or false (so of ``a and b`` four), a
loop's body, an exception's handler, a case of a match and none of them. A line reached says less: most of what the protocol
decides stands in one.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

ROOT = Path(__file__).parents[4]
PROBE = "__probe__"

T = TypeVar("T")
Probe = Callable[[int, T], T]


@dataclass(frozen=True, slots=True)
class Probed:
    """A module with probes. The value of probe n being true is branch 2n, its being false 2n + 1; some have no false."""

    tree: ast.Module
    branches: dict[int, str]


def probed(path: str) -> Probed:
    """The source file at ``path``, from the project's root."""
    placer = _Placer(Path(path).name)
    tree = placer.visit(ast.parse((ROOT / path).read_text()))
    return Probed(ast.fix_missing_locations(tree), placer.branches)


class _Placer(ast.NodeTransformer):
    """Puts the probes in, and gives each branch its name: file, function, condition, outcome, and a number where all is equal."""

    def __init__(self, file: str) -> None:
        self.branches: dict[int, str] = {}
        self._file = file
        self._place: list[str] = []
        self._probes = 0
        self._same: Counter[str] = Counter()

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._place.append(node.name)
        self.generic_visit(node)
        self._place.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._place.append(node.name)
        if not _is_stub(node):
            node.body = [self.visit(each) for each in node.body]
            self._begin(node.body, "is called")
        self._place.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        called = self._probe(ast.Constant(value=True), f"{_text(node)} is called")
        both = ast.Tuple(elts=[called, self.visit(node.body)], ctx=ast.Load())
        node.body = ast.Subscript(value=both, slice=ast.Constant(value=1), ctx=ast.Load())
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._tested(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._tested(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self._tested(node)

    def _tested(self, node: ast.If | ast.While | ast.IfExp) -> ast.AST:
        node.test = self._condition(node.test)
        self._visit_but("test", node)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.ifs = [self._condition(each) for each in node.ifs]
        self._visit_but("ifs", node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """As a value: its last part decides nothing here."""
        node.values = [*map(self._condition, node.values[:-1]), self.visit(node.values[-1])]
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        name = f"for {_text(node.target)} in {_text(node.iter)}"
        self.generic_visit(node)
        self._begin(node.body, f"{name} runs")
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self._begin(node.body, f"except {_text(node.type)} is entered")
        self.generic_visit(node)
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        name = f"match {_text(node.subject)}"
        for case in node.cases:
            if case.guard is not None:
                case.guard = self._condition(case.guard)
            case.body = [self.visit(each) for each in case.body]
            self._begin(case.body, f"{name}, case {_text(case.pattern)} is taken")
        if not any(isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None for case in node.cases):
            none = ast.match_case(pattern=ast.MatchAs(), body=[ast.Pass()])
            self._begin(none.body, f"{name}, no case is taken")
            node.cases.append(none)
        return node

    def _visit_but(self, done: str, node: ast.AST) -> None:
        """All parts of a node but one, which has its probes."""
        kept = getattr(node, done)
        setattr(node, done, [] if isinstance(kept, list) else ast.Constant(value=None))
        self.generic_visit(node)
        setattr(node, done, kept)

    def _condition(self, node: ast.expr) -> ast.expr:
        """Each single condition of a test; what is always true is none."""
        match node:
            case ast.Constant():
                return node
            case ast.BoolOp():
                node.values = [self._condition(each) for each in node.values]
                return node
            case ast.UnaryOp(op=ast.Not()):
                node.operand = self._condition(node.operand)
                return node
        text = _text(node)
        return self._probe(self.visit(node), f"{text} is true", f"{text} is false")

    def _begin(self, body: list[ast.stmt], name: str) -> None:
        """A probe in front of statements; behind what they begin with if that says what they are for."""
        first = 1 if ast.get_docstring(ast.Module(body=body, type_ignores=[])) else 0
        body.insert(first, ast.Expr(value=self._probe(ast.Constant(value=True), name)))

    def _probe(self, value: ast.expr, if_true: str, if_false: str = "") -> ast.expr:
        number = self._probes
        self._probes += 1
        self._name(2 * number, if_true)
        if if_false:
            self._name(2 * number + 1, if_false)
        return ast.Call(func=ast.Name(id=PROBE, ctx=ast.Load()), args=[ast.Constant(value=number), value], keywords=[])

    def _name(self, branch: int, what: str) -> None:
        name = f"{self._file} {'.'.join(self._place) or 'module'}: {what}"
        self._same[name] += 1
        self.branches[branch] = name if self._same[name] == 1 else f"{name} #{self._same[name]}"


def _is_stub(node: ast.FunctionDef) -> bool:
    """What only a type checker reads."""
    last = node.body[-1]
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant) and last.value.value is Ellipsis


def _text(node: ast.AST | None) -> str:
    return "anything" if node is None else " ".join(ast.unparse(node).split())


# --------------------------------------------------------------------------------------------------- in a process's memory


@dataclass(frozen=True, slots=True)
class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the modules with probes to whoever imports them."""

    paths: dict[str, str]
    reached: set[str]

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.paths:
            return None
        return importlib.util.spec_from_file_location(fullname, str(ROOT / self.paths[fullname]), loader=self)

    def exec_module(self, module: ModuleType) -> None:
        path = self.paths[module.__name__]
        found = probed(path)
        setattr(module, PROBE, _probe_of(found.branches, self.reached))
        exec(compile(found.tree, str(ROOT / path), "exec"), module.__dict__)


def _probe_of(branches: dict[int, str], reached: set[str]) -> Probe[object]:
    names = [branches.get(number, "") for number in range(max(branches, default=0) + 2)]

    def probe(number: int, value: T) -> T:
        reached.add(names[2 * number] if value else names[2 * number + 1])
        return value

    return probe


def install(paths: Sequence[str]) -> set[str]:
    """From now on these files are imported with probes; nobody may have imported them yet. Gives where branches are noted."""
    modules = {path.removeprefix("src/").removesuffix(".py").replace("/", "."): path for path in paths}
    early = sorted(set(modules) & set(sys.modules))
    assert not early, f"imported before their probes: {early}"
    reached: set[str] = set()
    sys.meta_path.insert(0, _Finder(modules, reached))
    return reached
