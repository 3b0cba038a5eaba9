"""Rare branches by name: a run reports which it took, and CI fails when no seed takes one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from onceflow.transaction import protocol
from onceflow.transaction.lane import Meaning

_NEVER = {("AUDIT", "Refused")}  # DescribeProducers refuses no identity
AGAIN, ELSEWHERE = "is asked again", "is asked again elsewhere"
TALKS = frozenset(
    f"talk: {request} {outcome}"
    for request, outcomes in {
        "DescribeTransactions": (AGAIN, ELSEWHERE),
        "InitProducerId": (AGAIN, ELSEWHERE),
        "EndTxn": (AGAIN, ELSEWHERE),
        "OffsetFetch": (AGAIN, ELSEWHERE),
        "AddOffsetsToTxn": (AGAIN, ELSEWHERE),
        "TxnOffsetCommit": (AGAIN, ELSEWHERE),
        "AddPartitionsToTxn": (AGAIN, ELSEWHERE),
        "DescribeProducers": (ELSEWHERE,),  # a leader that leads is never too busy for it
    }.items()
    for outcome in outcomes
)
"""What may become of each question; what is met and not named here is an error, so nothing new is forgotten."""
_reached: set[str] = set()


def reach(label: str) -> None:
    """Marks a branch as taken. ``label`` must be a literal: ``labels`` reads them from the source."""
    _reached.add(label)


def reach_row(state: str, event: str) -> None:
    """Marks a row of the transition table as used."""
    _reached.add(row(state, event))


def reach_talk(request: str, outcome: str) -> None:
    """Marks what became of a question. Raises AssertionError for what ``TALKS`` does not name."""
    label = f"talk: {request} {outcome}"
    assert label in TALKS, f"name it in coverage.TALKS: {label}"
    _reached.add(label)


def reach_meaning(meaning: Meaning) -> None:
    """Marks what the answer to a produced batch meant."""
    _reached.add(_meant(meaning))


def _meant(meaning: Meaning) -> str:
    return f"producer: a batch is {meaning.name}"


def collect() -> frozenset[str]:
    """What was taken since the last call."""
    taken = frozenset(_reached)
    _reached.clear()
    return taken


def labels() -> frozenset[str]:
    """Every branch that has a name.

    Of production: each row of the protocol's table, each question asked again, each meaning of an answer to a batch. Of the
    model and of the surroundings: each ``reach("…")`` of this package.
    """
    rows = {(state.name, event.__name__) for state, event in protocol.TRANSITIONS} - _NEVER
    found = {row(*each) for each in rows} | TALKS | {_meant(meaning) for meaning in Meaning}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(_named_in(ast.walk(ast.parse(path.read_text()))))
    return frozenset(found)


def row(state: str, event: str) -> str:
    """The label of a row of the transition table."""
    return f"protocol: {state} hears {event}"


def _named_in(nodes: Iterable[ast.AST]) -> set[str]:
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    reached = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "reach"]
    return {_literal(argument) for argument in reached}


def _literal(argument: ast.expr) -> str:
    """Raises ValueError for a label that is worked out: which ones it may be, nobody could require."""
    if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
        raise ValueError(
            f"reach({ast.unparse(argument)}), line {argument.lineno}: give it a literal, in a call for each branch"
        )
    return argument.value
