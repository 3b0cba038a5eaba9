"""What a mutant changes: for one node of a syntax tree every other node that may stand in its place. None takes it out."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

Variants = Iterator[ast.AST | None]

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
UNWRAPPED = {"replace", "_renewed", "_broken", "sorted", "set", "str", "int", "tuple", "max", "min"}
"""Calls that may be left out, their first argument taken as it is."""

CONFUSED = {
    "producer_id": ("epoch",),
    "producer_epoch": ("producer_id",),
    "epoch": ("producer_id",),
    "start": ("end",),
    "end": ("start",),
    "instance": ("query_id",),
    "query_id": ("instance",),
    "claimed": ("fresh",),
    "fresh": ("claimed",),
    "next_empty": ("claimed",),
    "terminal": ("claimed",),
    "REFUSED": ("ABORTABLE", "COORDINATOR_MOVED"),
    "ABORTABLE": ("REFUSED", "UNAUTHORISED"),
    "UNAUTHORISED": ("ABORTABLE", "REFUSED"),
    "COORDINATOR_MOVED": ("LEADER_MOVED", "REFUSED"),
    "LEADER_MOVED": ("COORDINATOR_MOVED",),
    "RETRIABLE": ("COORDINATOR_MOVED", "REFUSED"),
    "waiting": ("in_flight",),
    "in_flight": ("waiting", "failed"),
    "failed": ("in_flight",),
    "topic": ("partition",),
    "partition": ("topic",),
    "first_pause": ("longest_pause",),
    "longest_pause": ("first_pause",),
}
"""Fields and groups of codes that one may take for each other."""

ENUMS = {
    "State": "NEW INSPECT FENCE READ CONFIRM CLAIM_STORE CLAIM_COMMIT READY RENEW CHECK_CONFLICT REFRESH WRITE AUDIT STORE "
    "COMMIT ABORT SETTLE LOOK CHECK_CLAIM RETAKE RESOLVE BROKEN STOPPED",
    "Coordinated": "ABSENT EMPTY ONGOING COMPLETING COMMITTED ABORTED",
    "Stop": "FENCED CONFLICT GONE EXHAUSTED REJECTED UNREACHABLE OUTCOME_UNKNOWN",
    "Verdict": "WRITE SKIP REFUSE",
    "OnMismatch": "REFUSE RESUME RESTART",
    "Meaning": "ACKNOWLEDGED LATER AFTER_GAP REFUSED DENIED UNWRITABLE LOST",
}
ANSWERS = {
    "protocol.py": (
        {"Describe", "Initialise", "ReadProgress", "ReadSources", "Write", "Audit", "Store", "End", "Ready", "Halt"},
        ("Describe()", "ReadProgress()", "Halt(Stop.UNREACHABLE, '')"),
    ),
    "questions.py": (
        {"Described", "Initialised", "Ended", "ProgressRead", "Stored", "Audited", "Refused", "WriteFailed"},
        ("Stored()", "Refused('')"),
    ),
    "coordinator.py": ({"Written", "Refused", "WriteFailed", "Unreachable"}, ("Refused('')", "Unreachable('')")),
}
"""By file: the effects or events that its functions return, and what is returned in their place."""


def variants(node: ast.AST, file: str) -> Variants:
    """Every change of ``node`` itself; its children have their own."""
    yield from _OPERATORS.get(type(node), _none)(node, file)


def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def changed(node: ast.AST, **fields: object) -> ast.AST:
    """The node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def without(items: list[ast.expr], index: int) -> list[ast.expr]:
    return items[:index] + items[index + 1 :]


def _none(node: ast.AST, file: str) -> Variants:
    yield from ()


def _tested(node: ast.AST, file: str) -> Variants:
    """An If, IfExp or While whose test is always or never true."""
    assert isinstance(node, ast.If | ast.IfExp | ast.While)
    if isinstance(node.test, ast.Constant):
        return
    for value in (True, False):
        yield changed(node, test=ast.Constant(value=value))


def _comprehension(node: ast.AST, file: str) -> Variants:
    assert isinstance(node, ast.comprehension)
    for index in range(len(node.ifs)):
        yield changed(node, ifs=without(node.ifs, index))


def _boolean(node: ast.AST, file: str) -> Variants:
    assert isinstance(node, ast.BoolOp)
    for index in range(len(node.values)):
        rest = without(node.values, index)
        yield rest[0] if len(rest) == 1 else changed(node, values=rest)
    yield changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def _compared(node: ast.AST, file: str) -> Variants:
    assert isinstance(node, ast.Compare)
    for index, operator in enumerate(node.ops):
        for other in COMPARED[type(operator)]:
            yield changed(node, ops=[*node.ops[:index], other(), *node.ops[index + 1 :]])


def _unary(node: ast.AST, file: str) -> Variants:
    assert isinstance(node, ast.UnaryOp)
    yield node.operand


def _computed(node: ast.AST, file: str) -> Variants:
    assert isinstance(node, ast.BinOp)
    if type(node.op) in COMPUTED:
        yield changed(node, op=COMPUTED[type(node.op)]())


def _constant(node: ast.AST, file: str) -> Variants:
    """Numbers and truth values; and texts that are names or keys (a text for people has a blank in it)."""
    assert isinstance(node, ast.Constant)
    match node.value:
        case bool():
            yield ast.Constant(value=not node.value)
        case int() | float():
            yield ast.Constant(value=node.value + 1)
            yield ast.Constant(value=node.value - 1)
        case str() if " " not in node.value:
            yield ast.Constant(value=node.value + "~")


def _format(node: ast.AST, file: str) -> Variants:
    yield ast.Constant(value="~")


def _elements(node: ast.AST, file: str) -> Variants:
    """A literal without one of its elements."""
    assert isinstance(node, ast.Set | ast.List)
    for index in range(len(node.elts)):
        rest = without(node.elts, index)
        yield changed(node, elts=rest) if rest or isinstance(node, ast.List) else parsed("set()")


def _rows(node: ast.AST, file: str) -> Variants:
    """A dictionary without a row, or with a row that holds what another one holds."""
    assert isinstance(node, ast.Dict)
    for index, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
        keys = [other for at, other in enumerate(node.keys) if at != index]
        yield changed(node, keys=keys, values=without(node.values, index))
        for other in _others(node, key, value)[:2]:
            yield changed(node, values=[*node.values[:index], other, *node.values[index + 1 :]])


def _others(node: ast.Dict, key: ast.expr | None, value: ast.expr) -> list[ast.expr]:
    """What other rows hold; in a transition table, the rows of the same event."""
    found: dict[str, ast.expr] = {}
    for other_key, other in zip(node.keys, node.values, strict=True):
        alike = not isinstance(key, ast.Tuple) or (
            isinstance(other_key, ast.Tuple) and ast.unparse(other_key.elts[1]) == ast.unparse(key.elts[1])
        )
        if alike and not isinstance(other, ast.Constant) and ast.unparse(other) != ast.unparse(value):
            found[ast.unparse(other)] = other
    return list(found.values())


def _attribute(node: ast.AST, file: str) -> Variants:
    """The members of an enum before and after, or a field that is taken for another."""
    assert isinstance(node, ast.Attribute)
    if isinstance(node.value, ast.Name) and node.value.id in ENUMS:
        members = ENUMS[node.value.id].split()
        at = members.index(node.attr)
        for other in sorted({members[at - 1], members[(at + 1) % len(members)]}):
            yield changed(node, attr=other)
    elif isinstance(node.value, ast.Name) and node.value.id == "context" and node.attr in ("name", "seen_claims"):
        yield changed(node, attr="seen_claims" if node.attr == "name" else "name")
    else:
        for other in CONFUSED.get(node.attr, ()):
            yield changed(node, attr=other)


def _name(node: ast.AST, file: str) -> Variants:
    assert isinstance(node, ast.Name)
    other = {"GROUP": "TRANSACTION", "TRANSACTION": "GROUP"}.get(node.id)
    if other and isinstance(node.ctx, ast.Load):
        yield changed(node, id=other)


def _call(node: ast.AST, file: str) -> Variants:
    """Arguments swapped or left out, the call left out, another answer in its place."""
    assert isinstance(node, ast.Call)
    args = node.args
    for at in range(len(args) - 1):
        if ast.unparse(args[at]) != ast.unparse(args[at + 1]):
            yield changed(node, args=[*args[:at], args[at + 1], args[at], *args[at + 2 :]])
    for at in range(len(node.keywords)):
        yield changed(node, keywords=node.keywords[:at] + node.keywords[at + 1 :])
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if (
        name in UNWRAPPED
        and args
        and (len(args) > 1 or node.keywords or name in ("sorted", "set", "str", "int", "tuple"))
    ):
        yield args[0]
    returned, others = ANSWERS.get(file, (set(), ()))
    if name in returned:
        for other in others:
            if not other.startswith(f"{name}("):
                yield parsed(other)


def _taken_out(node: ast.AST, file: str) -> Variants:
    yield None


def _assigned(node: ast.AST, file: str) -> Variants:
    """Only where something was assigned before; else Python says at once that the name is unknown."""
    assert isinstance(node, ast.Assign)
    targets = [each for target in node.targets for each in ast.walk(target)]
    if any(isinstance(each, ast.Attribute | ast.Subscript) for each in targets) or _reads_itself(node):
        yield None


def _reads_itself(node: ast.Assign) -> bool:
    written = {target.id for target in node.targets if isinstance(target, ast.Name)}
    return any(isinstance(each, ast.Name) and each.id in written for each in ast.walk(node.value))


def _returned(node: ast.AST, file: str) -> Variants:
    assert isinstance(node, ast.Return)
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield changed(node, value=None)


def _caught(node: ast.AST, file: str) -> Variants:
    """A Try without one of its handlers, or with one that lets the exception pass on."""
    assert isinstance(node, ast.Try)
    for at, handler in enumerate(node.handlers):
        passing = changed(handler, body=[ast.Raise(exc=None, cause=None)])
        yield changed(node, handlers=[*node.handlers[:at], passing, *node.handlers[at + 1 :]])


def _handled(node: ast.AST, file: str) -> Variants:
    """A handler for fewer kinds of exceptions."""
    assert isinstance(node, ast.ExceptHandler)
    if isinstance(node.type, ast.Tuple):
        for at in range(len(node.type.elts)):
            yield changed(node, type=changed(node.type, elts=without(node.type.elts, at)))


def _cases(node: ast.AST, file: str) -> Variants:
    assert isinstance(node, ast.Match)
    for at in range(len(node.cases)):
        yield changed(node, cases=node.cases[:at] + node.cases[at + 1 :])


_OPERATORS: dict[type[ast.AST], Callable[[ast.AST, str], Variants]] = {
    ast.If: _tested,
    ast.IfExp: _tested,
    ast.While: _tested,
    ast.comprehension: _comprehension,
    ast.BoolOp: _boolean,
    ast.Compare: _compared,
    ast.UnaryOp: _unary,
    ast.BinOp: _computed,
    ast.Constant: _constant,
    ast.JoinedStr: _format,
    ast.Set: _elements,
    ast.List: _elements,
    ast.Dict: _rows,
    ast.Attribute: _attribute,
    ast.Name: _name,
    ast.Call: _call,
    ast.Expr: _taken_out,
    ast.AugAssign: _taken_out,
    ast.Raise: _taken_out,
    ast.For: _taken_out,
    ast.Assign: _assigned,
    ast.Return: _returned,
    ast.Try: _caught,
    ast.ExceptHandler: _handled,
    ast.Match: _cases,
}
