"""The function that output is held against, in the two forms in which it may be given: of one record, or of all input at once.

One of a record can be asked as well what it makes of a record of which not everything is known (``of_record``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.checker.unknown import Unknown

Replay = Callable[[pa.Table], pa.Table]
"""From (key, offset, value) of the input to (input, key, value) of the output; ``input`` is the row of the input table."""

OfRecord = Callable[[str, Any, Any], Iterable[tuple[str, Any]]]
"""From key, offset and value of one record to the (key, value) pairs that it leads to."""


@dataclass(frozen=True, slots=True)
class PerRecord:
    """A replay by a function of one record."""

    of_record: OfRecord

    def __call__(self, records: pa.Table) -> pa.Table:
        rows = [
            (number, key, value)
            for number, record in enumerate(records.to_pylist())
            for key, value in self.of_record(record["key"], record["offset"], record["value"])
        ]
        _require_types(rows, records)
        numbers, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
        return pa.table({"input": pa.array(numbers, pa.int64()), "key": pa.array(keys, pa.string()), "value": values})


@dataclass(frozen=True, slots=True)
class _Expanded:
    """Each record becomes ``times`` records of the key that ``targets`` names."""

    targets: Mapping[str, str]
    times: int

    def __call__(self, records: pa.Table) -> pa.Table:
        numbers = np.repeat(np.arange(len(records)), self.times)
        keys = records["key"].combine_chunks()
        names = pa.array([self.targets.get(name) for name in keys.dictionary.to_pylist()], pa.string())
        key = pa.DictionaryArray.from_arrays(keys.indices, names).take(pa.array(numbers))
        values = records["value"].combine_chunks().take(pa.array(numbers))
        if self.times > 1:
            values = pc.add(pc.multiply(values, self.times), pa.array(np.arange(len(numbers)) % self.times))
        return pa.table({"input": numbers, "key": key, "value": values})

    def of_record(self, key: str, _: object, value: Any) -> Iterator[tuple[str, Any]]:
        for nth in range(self.times):
            stays = self.times == 1 or isinstance(value, Unknown)
            yield self.targets[key], value if stays else value * self.times + nth


def per_record(f: OfRecord) -> Replay:
    """A replay by a function of one record (key, offset, value) that gives the (key, value) pairs it leads to."""
    return PerRecord(f)


def expand(targets: Mapping[str, str], times: int = 1) -> Replay:
    """Each record of an input key leads to ``times`` records of the output key that ``targets`` names.

    With ``times`` 1 the values stay (the identity). Else they must be numbers, and v becomes v * times, v * times + 1, …
    """
    return _Expanded(targets, times)


def output_of(replay: Replay, records: pa.Table) -> pa.Table:
    """What the function makes of these records of the input. Raises ValueError if that is no output (see ``Replay``)."""
    given = replay(records)
    if not isinstance(given, pa.Table) or not {"input", "key", "value"} <= set(given.column_names):
        raise ValueError("a replay gives a table with the columns input, key and value")
    if any(given[name].null_count for name in ("input", "key", "value")):
        raise ValueError(
            "a replay gives an input, a key and a value for each record of the output, and none of them is None"
        )
    if len(given) and not pa.types.is_integer(given["input"].type):
        raise ValueError(f"the input of a replay's output is the number of a row, not {given['input'].type}")
    if len(given):
        _require_kind("keys", given["key"].type, records["key"].type)
        _require_kind("values", given["value"].type, records["value"].type)
    source = np.asarray(given["input"], np.int64)
    if len(source) and (source.min() < 0 or source.max() >= len(records) or np.any(source[1:] < source[:-1])):
        raise ValueError("a replay gives its output in the order of the input, and names the row of each")
    key = given["key"].cast(records["key"].type.value_type)
    return pa.table({"input": source, "key": key, "value": given["value"].cast(records["value"].type)})


def misfit(value: object, kind: pa.DataType) -> str:
    """Why a value of this type is none of a history whose values are of that kind; empty if it is one. None is told elsewhere."""
    if _kind(kind) == _TEXT:
        fits, wanted = isinstance(value, str), "a str"
    else:
        fits, wanted = isinstance(value, int | np.integer) and not isinstance(value, bool), "an int"
    return "" if fits or value is None else f"{value!r} of type {type(value).__name__}, and is to give {wanted}"


def _require_types(rows: list[tuple[int, Any, Any]], records: pa.Table) -> None:
    """Arrow would take bytes for text, and True for 1, without a word."""
    kind = records["value"].type
    plain = str if _kind(kind) == _TEXT else int
    if {type(key) for _, key, _ in rows} <= {str} and {type(value) for _, _, value in rows} <= {plain}:
        return
    for number, key, value in rows:
        for what, reason in (("key", misfit(key, pa.string())), ("value", misfit(value, kind))):
            if reason:
                raise ValueError(f"of {described(records, number)} it gives a {what} {reason}, as in the history")


def _require_kind(what: str, found: pa.DataType, wanted: pa.DataType) -> None:
    if _kind(found) != _kind(wanted):
        raise ValueError(
            f"the {what} of a replay's output are {_kind(found)}, and are to be {_kind(wanted)}, as in the history"
        )


def described(records: pa.Table, number: int) -> str:
    """A record of the input, in words."""
    record = records.slice(number, 1).to_pylist()[0]
    return f"{record['key']} at offset {record['offset']} (value {record['value']!r})"


_TEXT = "text"


def _kind(given: pa.DataType) -> str:
    plain = given.value_type if pa.types.is_dictionary(given) else given
    if pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain):
        return _TEXT
    return "whole numbers" if pa.types.is_integer(plain) else str(plain)
