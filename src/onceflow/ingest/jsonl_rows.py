"""JSON Lines: each line is a value as it stands, byte for byte; only a key makes it necessary to look inside."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from onceflow import json_numbers
from onceflow.errors import InputError
from onceflow.transaction.arrow import Integers


def lines_of(data: bytes) -> tuple[pa.Array, Integers, int]:
    """The lines that are not blank, without their line ends; the index of each among all lines; the number of all."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0x0A) + 1
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate([[0], ends]).astype(np.int32)
    lines = pa.Array.from_buffers(pa.string(), len(ends), [None, pa.py_buffer(starts), pa.py_buffer(data)])
    lines = pc.ascii_rtrim(lines, " \t\r\n")
    filled = pc.greater(pc.binary_length(lines), 0)
    return lines.filter(filled), np.flatnonzero(filled.to_numpy(zero_copy_only=False)), len(ends)


def key_of(lines: pa.Array, name: str, path: str, numbers: Integers) -> pa.Array:
    r"""The member ``name`` of each line's object as text, null where it is missing or null. Numbers stay as they are in the file.

    Half a surrogate pair (``"\ud800"``), which UTF-8 lacks, becomes the three bytes that it would be: the key stays its own.
    Raises InputError with the line's number, of ``numbers``.
    """
    if not _are_objects_and_utf8(lines):
        return _keys_one_by_one(lines, name, path, numbers)
    options = arrow_json.ParseOptions(
        explicit_schema=pa.schema([(name, pa.string())]), unexpected_field_behavior="ignore"
    )
    data = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_buffer()
    read = arrow_json.ReadOptions(use_threads=False, block_size=data.size + 1)
    try:
        found = arrow_json.read_json(pa.BufferReader(data), read_options=read, parse_options=options)[name]
    except pa.ArrowInvalid:  # a key that is a number, or a line that is no object: the slow way tells
        return _keys_one_by_one(lines, name, path, numbers)
    if len(found) != len(lines):  # several objects in a line
        return _keys_one_by_one(lines, name, path, numbers)
    return found.combine_chunks()


def _are_objects_and_utf8(lines: pa.Array) -> bool:
    """Whether each line begins and ends as an object does. Then no object goes over two lines: JSON has no ``}{`` inside of one.

    Otherwise the number of objects would not tell that each line is one::

        {"k":"a"}{"k":"b"}
        {"x":
        1}
    """
    begun = pc.starts_with(pc.ascii_ltrim(lines, " \t\r"), "{")
    whole = pc.all(pc.and_(begun, pc.ends_with(lines, "}")), min_count=0).as_py()
    return bool(whole) and _is_utf8(lines)


def _is_utf8(lines: pa.Array) -> bool:
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _keys_one_by_one(lines: pa.Array, name: str, path: str, numbers: Integers) -> pa.Array:
    keys: list[bytes | None] = []
    for number, line in zip(numbers.tolist(), lines.cast(pa.binary()).to_pylist(), strict=True):
        try:
            key = _key(line, name)
        except ValueError as error:
            raise InputError(
                f"{path}: line {number} {error}: it begins {line[:80]!r}",
                action="correct the file, or ingest it without --key; nothing of this block was written",
                path=path,
                line=number,
            ) from None
        keys.append(None if key is None else key.encode("utf-8", "surrogatepass"))
    return pa.Array.from_buffers(pa.string(), len(keys), pa.array(keys, pa.binary()).buffers())


def _key(line: bytes, name: str) -> str | None:
    """Raises ValueError with what the line is not."""
    try:
        row = json_numbers.read(line.decode())
        if isinstance(row, dict):
            value = row.get(name)
            return None if value is None else value if isinstance(value, str) else json_numbers.written(value)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 ({error})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error.msg}, at character {error.pos + 1})") from None
    except RecursionError:
        raise ValueError("is nested too deeply to look inside") from None
    raise ValueError(f"is no JSON object, so it has no {name!r}")
