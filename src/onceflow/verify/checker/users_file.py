"""The function that stands in a user's file: ``FILE.py:NAME``. Whatever is wrong with it is told as FunctionInvalid."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from onceflow.errors import FunctionInvalid
from onceflow.verify.checker.replays import OfRecord, Replay, described, output_of, per_record
from onceflow.verify.directories import is_file

_MODULE = "_onceflow_function"  # in sys.modules, where dataclasses and pickle look for the module of a class
_T = TypeVar("_T")


def load(named: str) -> Replay:
    """The function that ``FILE.py:NAME`` names: of one record (key, offset, value), or a replay, which has one parameter.

    The file is run as Python runs a script: it may import what lies beside it. What it prints goes to the standard error.
    Raises FunctionInvalid, and so does the function that it gives.
    """
    file, _, name = named.rpartition(":")
    if not file or not name:
        raise _invalid(named, "it names no file and function: FILE.py:NAME")
    if not is_file(Path(file)):
        raise _invalid(named, f"there is no file {file}")
    found = getattr(_module(named, Path(file)), name, None)
    if not callable(found):
        raise _invalid(named, f"{name} is no function" if found is not None else f"the file has no {name}")
    return _Guarded(named, found if _is_columnar(named, found) else per_record(found))


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A user's replay, whose failures are told with its name."""

    named: str
    replay: Replay

    def __call__(self, records: pa.Table) -> pa.Table:
        once, again = [_tried(self.named, "it failed", lambda: output_of(self.replay, records)) for _ in range(2)]
        if not once.equals(again):
            raise _invalid(self.named, _changed(records, once, again))
        return once

    @property
    def of_record(self) -> OfRecord | None:
        """The function of one record; None if it takes all of them."""
        found: OfRecord | None = getattr(self.replay, "of_record", None)
        return found and (lambda *record: self._pairs(found, *record))

    def _pairs(self, of_record: OfRecord, *record: Any) -> list[tuple[str, Any]]:
        with redirect_stdout(sys.stderr):
            return list(of_record(*record))


def _module(named: str, path: Path) -> object:
    spec = spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise _invalid(named, f"{path} is no Python file (.py)")
    module, run = module_from_spec(spec), spec.loader.exec_module
    sys.modules[_MODULE] = module
    sys.path.insert(0, str(path.resolve().parent))
    _tried(named, "the file cannot be run", lambda: run(module))
    return module


def _is_columnar(named: str, function: Callable[..., Any]) -> bool:
    signature = _tried(named, "nothing tells what it takes", lambda: inspect.signature(function))
    one, three = _takes(signature, 1), _takes(signature, 3)
    if one == three:
        either = "one record (key, offset, value) or a table of all of them"
        raise _invalid(named, f"its parameters are to say whether it takes {either}, and they are {signature}")
    return one


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _changed(records: pa.Table, once: pa.Table, again: pa.Table) -> str:
    """Which record of the input has another answer the second time."""
    one, other = (list(zip(*table.to_pydict().values(), strict=True)) for table in (once, again))
    same = next(
        (n for n, both in enumerate(zip(one, other, strict=False)) if both[0] != both[1]), min(len(one), len(other))
    )
    number = min(rows[same][0] for rows in (one, other) if same < len(rows))
    answers = [[(key, value) for source, key, value in rows if source == number] for rows in (one, other)]
    return (
        f"of {described(records, number)} it made {answers[0]}, and {answers[1]} when it was called again with the same input: "
        "it is to give one answer, and to keep, draw and ask for nothing"
    )


def _tried(named: str, failed: str, run: Callable[[], _T]) -> _T:
    """Also an exit is a failure, and whatever else is no Exception: the status would be taken for a verdict."""
    try:
        with redirect_stdout(sys.stderr):
            return run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _invalid(named, f"{failed}: {type(error).__name__}: {error}") from error


def _invalid(named: str, reason: str) -> FunctionInvalid:
    return FunctionInvalid(f"{named}: {reason}", action="docs/history-format.md says what the function is to be")
