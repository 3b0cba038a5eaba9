"""Whether a table is a history: every mistake is named, with the rows where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import HistoryInvalid
from onceflow.verify.history.coding import codes_of, dense, plain_numbers, words_of
from onceflow.verify.history.schema import (
    KINDS,
    MAX_KEYS,
    MAX_OFFSET,
    MAX_PAIRS,
    OPTIONAL,
    REQUIRED_BY_KIND,
    SCHEMA,
    STATUSES,
    VERSION,
    VERSION_KEY,
    Kind,
)

ROWS_NAMED = 5
_TEXT_OR_NUMBER = ("process", "value")
_NUMBERS = ("op", "txn", "offset", "until")


def validate(table: pa.Table, where: str = "the history", unreadable: Mapping[str, str] | None = None) -> pa.Table:
    """The table with the types and the order of columns of ``SCHEMA``, columns left out filled with nulls.

    ``unreadable`` are columns that are not in the table, with what is wrong with each. Raises HistoryInvalid, which lists every
    mistake found: a column that cannot be read does not hide what is wrong with the others.
    """
    wrong = {**_column_mistakes(table, unreadable or {}), **(unreadable or {})}
    whole = _complete(table, wrong)
    readable = frozenset(SCHEMA.names) - set(wrong)
    values = [*_null_mistakes(whole, readable), *_word_mistakes(whole, readable), *_number_mistakes(whole)]
    values += _pair_mistakes(whole)
    fates = [*_kind_mistakes(whole, readable), *_fate_mistakes(whole, readable)]
    refuse(where, [*_version_mistakes(table), *wrong.values(), *_unknown_columns(table), *values, *fates])
    return whole


def refuse(where: str, mistakes: list[str]) -> None:
    """Raises if there is any mistake."""
    if mistakes:
        raise HistoryInvalid.of(where, mistakes)


def rows_text(rows: npt.NDArray[np.int64]) -> str:
    """``rows 3, 7, 9 and 12 more``; the first row is row 0, everywhere."""
    named = ", ".join(map(str, rows[:ROWS_NAMED].tolist()))
    rest = f" and {len(rows) - ROWS_NAMED} more" if len(rows) > ROWS_NAMED else ""
    return f"row{'s' if len(rows) > 1 else ''} {named}{rest}"


def _version_mistakes(table: pa.Table) -> Iterator[str]:
    version = (table.schema.metadata or {}).get(VERSION_KEY)
    if version is None:
        yield f"the format version is missing; this onceflow reads {VERSION}"
    elif version != str(VERSION).encode():
        yield f"format version {version.decode(errors='replace')}; this onceflow reads {VERSION}"


def _column_mistakes(table: pa.Table, unreadable: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with columns as a whole, by their name."""
    found: dict[str, str] = {}
    for name in SCHEMA.names:
        count = table.column_names.count(name)
        if count > 1:
            found[name] = f"column {name} is there {count} times"
        elif count == 0 and name not in OPTIONAL and name not in unreadable:
            found[name] = f"column {name} is missing"
        elif count == 1 and not _type_fits(name, table.schema.field(name).type):
            found[name] = f"column {name} is of type {table.schema.field(name).type}, not {_expected(name)}"
    return found


def _unknown_columns(table: pa.Table) -> Iterator[str]:
    if unknown := [name for name in table.column_names if name not in SCHEMA.names]:
        yield f"unknown columns: {', '.join(unknown)}"


def _type_fits(name: str, kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_null(plain):
        return True  # an empty column; whether it may be empty is asked later
    text = pa.types.is_string(plain) or pa.types.is_large_string(plain)
    number = pa.types.is_integer(plain) and not pa.types.is_uint64(plain)
    if name in _TEXT_OR_NUMBER:
        return text or number
    return number if name in _NUMBERS else text


def _expected(name: str) -> str:
    if name in _TEXT_OR_NUMBER:
        return "int64 or string"
    return "int64" if name in _NUMBERS else "string"


def _complete(table: pa.Table, wrong: dict[str, str]) -> pa.Table:
    """All columns; those that are not there, or wrong, are empty. One that cannot be read is added to ``wrong``."""
    columns: list[pa.ChunkedArray] = []
    for field in SCHEMA:
        empty = pa.chunked_array([pa.nulls(len(table), field.type)])
        if field.name in wrong or field.name not in table.column_names:
            columns.append(empty)
            continue
        column = table[field.name]
        try:
            columns.append(_plainly_coded(column.cast(_target(field, column.type))))
        except pa.ArrowInvalid as error:
            wrong[field.name] = f"column {field.name} cannot be read as {_expected(field.name)}: {error}"
            columns.append(empty)
    fields = [pa.field(field.name, column.type) for field, column in zip(SCHEMA, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields, metadata=SCHEMA.metadata))


def _plainly_coded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, whose dictionaries have each name once, and no null: a number is a name, and no row hides that it has none."""
    if not pa.types.is_dictionary(column.type) or all(
        not each.dictionary.null_count and len(pc.unique(each.dictionary)) == len(each.dictionary)
        for each in column.chunks
    ):
        return column
    return column.cast(column.type.value_type).cast(column.type)


def _target(field: pa.Field, given: pa.DataType) -> pa.DataType:
    plain = given.value_type if pa.types.is_dictionary(given) else given
    if field.name == "value" and (pa.types.is_string(plain) or pa.types.is_large_string(plain)):
        return pa.string()
    if field.name == "process" and pa.types.is_integer(plain):
        return pa.int64()
    return field.type


def _null_mistakes(table: pa.Table, readable: frozenset[str]) -> Iterator[str]:
    for name in SCHEMA.names:
        if name in readable - set(OPTIONAL) and table[name].null_count:
            yield f"column {name} is empty in {rows_text(_true(table[name].is_null()))}"


def _word_mistakes(table: pa.Table, readable: frozenset[str]) -> Iterator[str]:
    for name, known in (("kind", KINDS), ("status", STATUSES)):
        if name not in readable:
            continue
        words = table[name].unify_dictionaries()
        given = words.chunk(0).dictionary.to_pylist() if words.num_chunks else []
        for word in given:
            rows = _true(pc.equal(words, word)) if word not in known else np.empty(0, np.int64)
            if len(rows):
                yield f"unknown {name} {word!r} in {rows_text(rows)}; known are {', '.join(known)}"
    if table["key"].num_chunks and len(pc.unique(table["key"]).drop_null()) > MAX_KEYS:
        yield f"more than {MAX_KEYS} different keys"


def _pair_mistakes(table: pa.Table) -> Iterator[str]:
    """More than have a number that fits into 64 bits beside an offset: one pair would be taken for another."""
    (key, keys), (group, groups) = codes_of(table["key"]), codes_of(table["group"])
    if len(groups) and len(keys) * (len(groups) + 1) > MAX_PAIRS:
        kinds = words_of(table["kind"], KINDS)
        rows = np.flatnonzero(((kinds == Kind.POSITION) | ((kinds == Kind.POLL) & (group >= 0))) & (key >= 0))
        if int(dense(key[rows] * (len(groups) + 1) + group[rows] + 1).max(initial=-1)) >= MAX_PAIRS:
            yield f"more than {MAX_PAIRS} different pairs of key and group"


def _number_mistakes(table: pa.Table) -> Iterator[str]:
    """Columns that cannot be read are empty here, and nothing is wrong with what is empty."""
    for name in _NUMBERS:
        if (pc.min(table[name]).as_py() or 0) < 0:
            yield f"{name} is negative in {rows_text(_true(pc.less(table[name], 0)))}"
    for name in ("offset", "until"):
        if (pc.max(table[name]).as_py() or 0) > MAX_OFFSET:
            yield f"{name} is above {MAX_OFFSET} in {rows_text(_true(pc.greater(table[name], MAX_OFFSET)))}"
    if len(rows := _true(pc.less(table["until"], table["offset"]))):
        yield f"until is below offset in {rows_text(rows)}"


def _kind_mistakes(table: pa.Table, readable: frozenset[str]) -> Iterator[str]:
    kinds = words_of(table["kind"], KINDS)
    without: dict[str, npt.NDArray[np.int64]] = {}  # the rows that have none
    for kind, required in REQUIRED_BY_KIND.items():
        for name in (each for each in required if each in readable):
            if name not in without:
                without[name] = _true(table[name].is_null()) if table[name].null_count else np.empty(0, np.int64)
            if len(rows := without[name][kinds[without[name]] == kind]):
                yield f"{kind.name.lower()} without {name} in {rows_text(rows)}"


def _fate_mistakes(table: pa.Table, readable: frozenset[str]) -> Iterator[str]:
    """One operation has one process, status and transaction; one transaction has one status."""
    for unit, names in (("op", ("process", "status", "txn")), ("txn", ("status",))):
        if unit not in readable:
            continue
        numbers = dense(np.maximum(plain_numbers(table[unit]), -1))  # one that is negative is a mistake of its own
        first = _first_rows(numbers)
        for name in (each for each in names if each in readable):
            codes = codes_of(table[name])[0]
            if len(bad := _different(codes, first, numbers)):
                yield f"{name} differs from that of the first row of the same {unit} in {rows_text(bad)}"


def _first_rows(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each number, and behind them for -1, the first row that has it."""
    first = np.zeros(int(numbers.max(initial=-1)) + 2, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    return first


def _different(
    codes: npt.NDArray[np.int64], first: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The rows with a number that have not the code of the first row of that number."""
    of_first = codes[first[:-1]]
    return np.flatnonzero((codes != np.append(of_first, -1)[numbers]) & (numbers >= 0))


def _true(mask: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.asarray(mask.fill_null(False)))
