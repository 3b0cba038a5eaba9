"""The function that output is held against, and what a history lacks for that."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import FunctionInvalid
from onceflow.verify.checker.compared import Compared
from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.registry import Check
from onceflow.verify.checker.replay import diverged_output, unjudged_output, unproved_output, without_position
from onceflow.verify.checker.replays import Replay
from onceflow.verify.checker.unproved import listed


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """f, the keys of its input and of its output, and the group that consumed the input, where one is named.

    A key may be a pattern (``sales-*``) for all those of the history.
    """

    replay: Replay
    inputs: Sequence[str]
    outputs: Sequence[str]
    group: str | None = None

    def check(self) -> Check:
        """What finds ``diverged_output`` in a history, or in a part of one."""

        @functools.wraps(diverged_output)
        def find(evidence: Evidence) -> pa.Table:
            return diverged_output(evidence, evidence.once(self._compared), self.group)

        return Check(find)

    def require(self, evidence: Evidence) -> None:
        """Raises FunctionInvalid with every name that is of nothing in the history, and for output elsewhere than in ``outputs``.

        With an input that is misspelt all of the output would be invented, and with such an output all of it missing.
        """
        mistakes = [
            f"the history has no key {each}" for each in (*self.inputs, *self.outputs) if not _named(evidence, [each])
        ]
        if self.group is not None and self.group not in evidence.history.table["group"].unique().to_pylist():
            mistakes.append(f"the history has no group {self.group}")
        if not mistakes and (strange := [key for key in self._keys(evidence) if not _matches(key, self.outputs)]):
            mistakes.append(f"the function gives output of {listed(strange)}, which the outputs do not name")
        if mistakes:
            raise FunctionInvalid("; ".join(mistakes), action="correct the names of inputs, outputs and group")

    def unproved(self, evidence: Evidence) -> str:
        """Why it proves nothing that the check finds nothing: nobody looked where output is, or should be."""
        return unproved_output(evidence, {*self.output_keys(evidence), *self._keys(evidence)})

    def not_judged(self, evidence: Evidence) -> Iterator[str]:
        """Of which input nothing says how far it was processed, which output may be of input in doubt, and which be missing."""
        yield from unjudged_output(evidence, evidence.once(self._compared), self.group)
        if keys := without_position(evidence, _named(evidence, self.inputs), self.group):
            yield (
                f"output behind the last one of {listed(keys)} that is visible: no position of "
                f"{self.group or 'a group that is named'} was seen there in the end, so none of it can be missing"
            )

    def output_keys(self, evidence: Evidence) -> list[str]:
        """The keys of the history whose records are held against the function."""
        return _named(evidence, self.outputs)

    def _compared(self, evidence: Evidence) -> Compared:
        return Compared(evidence, self.replay, _named(evidence, self.inputs), _named(evidence, self.outputs))

    def _keys(self, evidence: Evidence) -> list[str]:
        keys: list[str] = pc.unique(evidence.once(self._compared).expected.names).to_pylist()
        return keys


def _named(evidence: Evidence, patterns: Sequence[str]) -> list[str]:
    return [name for name in evidence.history.keys.to_pylist() if _matches(name, patterns)]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
