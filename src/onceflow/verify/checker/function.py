"""The function that output is held against, as somebody names it who checks a history: ``FILE.py:NAME``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from onceflow.errors import FunctionInvalid
from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.registry import Check
from onceflow.verify.checker.replay import Replay, diverged_output, output_of, per_record, unproved_output

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Function:
    """f, the keys of its input and of its output, and the group that consumed the input, where one is named.

    A key may be a pattern (``sales-*``) for all those of the history.
    """

    replay: Replay
    inputs: Sequence[str]
    outputs: Sequence[str]
    group: str | None = None

    def check(self) -> Check:
        """What finds ``diverged_output`` in a history."""

        @functools.wraps(diverged_output)
        def find(evidence: Evidence) -> pa.Table:
            inputs, outputs = _keys(evidence, self.inputs), self.output_keys(evidence)
            return diverged_output(evidence, self.replay, inputs, outputs, self.group)

        return Check(find)

    def output_keys(self, evidence: Evidence) -> list[str]:
        """The keys of the history whose records are held against the function."""
        return _keys(evidence, self.outputs)

    def unproved(self, evidence: Evidence) -> str:
        """Why it proves nothing that the check finds nothing: a name is of nothing in the history, or nobody looked."""
        absent = [each for each in (*self.inputs, *self.outputs) if not _keys(evidence, [each])]
        if absent:
            return f"the history has no key {', '.join(absent)}"
        if self.group is not None and self.group not in evidence.history.table["group"].unique().to_pylist():
            return f"the history has no group {self.group}"
        return unproved_output(evidence, self.output_keys(evidence))


def _keys(evidence: Evidence, patterns: Sequence[str]) -> list[str]:
    names: list[str] = evidence.history.keys.to_pylist()
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def load(named: str) -> Replay:
    """The function that ``FILE.py:NAME`` names: of one record (key, offset, value), or a replay, which has one parameter.

    The file is run as Python runs a script: it may import what lies beside it. Raises FunctionInvalid.
    """
    file, _, name = named.rpartition(":")
    if not file or not name:
        raise _invalid(named, "it names no file and function: FILE.py:NAME")
    if not Path(file).is_file():
        raise _invalid(named, f"there is no file {file}")
    found = getattr(_module(named, Path(file)), name, None)
    if not callable(found):
        raise _invalid(named, f"{name} is no function" if found is not None else f"the file has no {name}")
    return _guarded(named, found if _parameters(named, found) == 1 else per_record(found))


def _module(named: str, path: Path) -> object:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise _invalid(named, f"{path} is no Python file (.py)")
    module, run = module_from_spec(spec), spec.loader.exec_module
    sys.path.insert(0, str(path.resolve().parent))
    _tried(named, "the file cannot be run", lambda: run(module))
    return module


def _parameters(named: str, function: Callable[..., Any]) -> int:
    signature = inspect.signature(function)
    for given in ((1,), (1, 2, 3)):
        try:
            signature.bind(*given)
        except TypeError:
            continue
        return len(given)
    raise _invalid(
        named, f"it takes neither one record (key, offset, value) nor a table of all of them, but {signature}"
    )


def _guarded(named: str, replay: Replay) -> Replay:
    """The same, whose failures say whose they are."""
    return lambda records: _tried(named, "it failed", lambda: output_of(replay, records))


def _tried(named: str, failed: str, run: Callable[[], _T]) -> _T:
    try:
        return run()
    except Exception as error:
        raise _invalid(named, f"{failed}: {type(error).__name__}: {error}") from error


def _invalid(named: str, reason: str) -> FunctionInvalid:
    return FunctionInvalid(f"{named}: {reason}", action="docs/history-format.md says what the function is to be")
