"""Histories in files: Parquet and Arrow for programs, JSON Lines for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

from onceflow.verify.history.rows import columns_of, printable
from onceflow.verify.history.schema import SCHEMA, VERSION_KEY
from onceflow.verify.history.validation import refuse, validate

HEADER = "onceflow_history"  # the one field of the first line of a JSON Lines file
_NAMES = [field.name for field in SCHEMA if pa.types.is_dictionary(field.type)]


def read_history(path: Path | str) -> pa.Table:
    """The history in a ``.parquet``, ``.arrow`` or ``.jsonl`` file, validated.

    Raises HistoryInvalid with every mistake found, also when the file cannot be read.
    """
    path = Path(path)
    try:
        _refuse_what_is_no_file(path)
        if path.suffix == ".jsonl":
            return _read_lines(path)
        if path.suffix == ".parquet":
            return validate(_sound(pq.read_table(path, read_dictionary=_NAMES)), str(path))
        if path.suffix == ".arrow":
            return validate(_sound(feather.read_table(path)), str(path))
    except pa.ArrowException as error:
        refuse(str(path), [f"it is no {path.suffix[1:]} file: {error}"])
    except (OSError, UnicodeDecodeError) as error:
        refuse(str(path), [f"it cannot be read: {getattr(error, 'strerror', None) or error}"])
    refuse(str(path), [_unknown(path)])
    raise AssertionError  # refuse raised


def _refuse_what_is_no_file(path: Path) -> None:
    """Who opens a FIFO waits for its writer, perhaps for ever. Raises OSError for a name that is too long."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        refuse(
            str(path), ["it is no file but a FIFO, a device or a socket: write the history to a file, and give that"]
        )


def write_history(table: pa.Table, path: Path | str) -> None:
    """Writes a history; the ending of the name is the format, as in ``read_history``."""
    path = Path(path)
    table = validate(table, str(path))
    if path.suffix == ".parquet":
        # Numbers that rise row by row, as operations and offsets do, take a fraction of what they take in a dictionary.
        numbers = [field.name for field in table.schema if pa.types.is_integer(field.type) and field.name != "process"]
        names = [name for name in table.column_names if name not in numbers]
        pq.write_table(table, path, use_dictionary=names, column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"))
    elif path.suffix == ".arrow":
        feather.write_feather(table.unify_dictionaries(), str(path))
    elif path.suffix == ".jsonl":
        path.write_text("".join(line + "\n" for line in _lines(table)), encoding="utf-8")
    else:
        refuse(str(path), [_unknown(path)])


def _sound(table: pa.Table) -> pa.Table:
    """The table, looked into: Arrow reads bytes that are no text, and words without a number, as they come."""
    table.validate(full=True)
    return table


def _unknown(path: Path) -> str:
    return f"the name ends in {path.suffix!r}; a history ends in .parquet, .arrow or .jsonl"


def _lines(table: pa.Table) -> Iterator[str]:
    yield json.dumps({HEADER: int(table.schema.metadata[VERSION_KEY])})
    for row in table.to_pylist():
        yield json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False)


def _read_lines(path: Path) -> pa.Table:
    """Rows are counted from 0, as everywhere; with its header, row 0 is line 2 of the file.

    A line ends in a line feed alone: ``str.splitlines`` ends it at U+2028 and others too, which JSON writes as they are.
    """
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    documents = [_parsed(line) for line in lines] if lines != [""] else []
    header, headers = _header(documents)
    refuse(
        str(path),
        [
            f"row {number - headers} (line {number + 1}) {document}"
            for number, document in enumerate(documents)
            if isinstance(document, str)
        ],
    )
    return _validated([row for row in documents[headers:] if isinstance(row, dict)], header, str(path))


class _Repeated(Exception):
    """A name stands twice in an object: JSON's reader would keep the last one without a word."""


def _parsed(line: str) -> dict[str, Any] | str:
    """An object; or what is wrong with the line."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            return "is not an object"
        if _may_repeat(line, document):
            _ONCE.decode(line)
    except ValueError as error:
        return f"is not JSON: {error}"
    except RecursionError:
        return "is not a row: it is nested too deeply"
    except _Repeated as error:
        return f"has more than one {error}: leave one"
    return document


def _may_repeat(line: str, document: dict[str, Any]) -> bool:
    """Behind each name comes a colon, so that one can stand twice only where there are more: far faster than to look."""
    return line.count(":") != len(document) != sum(map(line.count, _BEHIND_A_NAME))


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        times = Counter(name for name, _ in pairs)
        raise _Repeated(", ".join(printable(name) for name, count in times.items() if count > 1))


_BEHIND_A_NAME = ('":', " :", "\t:", "\r:")
_ONCE = json.JSONDecoder(object_pairs_hook=_each_once)  # one for all lines: to make it takes as long as to read a line


def _header(documents: list[dict[str, Any] | str]) -> tuple[dict[str, Any], int]:
    """The header, and how many lines it takes: none, if it is missing."""
    first = documents[0] if documents else {}
    return (first, 1) if isinstance(first, dict) and HEADER in first else ({}, 0)


def _validated(rows: list[dict[str, Any]], header: dict[str, Any], where: str) -> pa.Table:
    columns, unreadable = columns_of(rows, dict.fromkeys(name for row in rows for name in row))
    if not rows:
        columns = {field.name: pa.array([], field.type) for field in SCHEMA}
    version = {VERSION_KEY: printable(str(header[HEADER]))} if HEADER in header else None
    table = pa.table(columns) if columns else pa.table({"op": pa.nulls(len(rows))})
    return validate(table.replace_schema_metadata(version), where, unreadable)
