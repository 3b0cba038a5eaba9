"""CSV: blocks of whole records to columns of text. Values stay text as they are in the file; an empty field is ""."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Literal

import pyarrow as pa
from pyarrow import csv as arrow_csv

from onceflow.errors import InputError
from onceflow.ingest.content import (
    FindEnd,
    Left,
    Records,
    begin_of_text,
    end_of_csv_records,
    end_of_lines,
    open_content,
)


class CsvReader:
    """The records of CSV files. The first record of each file is its header, unless ``columns`` names the columns."""

    def __init__(self, delimiter: str = ",", *, quoted: bool = True, columns: Sequence[str] = ()) -> None:
        self._columns = list(columns)
        self._delimiter = delimiter
        self._quoted = quoted
        self._parse = arrow_csv.ParseOptions(
            delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted
        )

    @property
    def find_end(self) -> FindEnd:
        return partial(end_of_csv_records, delimiter=self._delimiter) if self._quoted else end_of_lines

    def header(self, file: IO[bytes], path: Path, *, finished: bool) -> tuple[list[str], int] | Left:
        """The column names and where the rows begin; what there is while the header is not complete. Raises InputError."""
        if self._columns:
            return self._columns, begin_of_text(file)
        whole = partial(_first_record, find_end=self.find_end)
        records = Records(open_content(file), path, whole, last_is_whole=finished, block_bytes=1 << 16)
        data = next(iter(records), None)
        if data is None:
            return records.left
        return self._names(data, path), len(data)

    def _names(self, data: bytes, path: Path) -> list[str]:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: the header is not UTF-8: {error}", action="convert the file to UTF-8") from None
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._quoted else csv.QUOTE_NONE
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter, quoting=quoting), [])
        mistakes = name_mistakes(names)
        if mistakes or not names:
            raise InputError(f"{path}: the header {text.strip()!r}: {'; '.join(mistakes) or 'is empty'}")
        return names

    def columns(self, data: bytes, names: list[str], path: Path, first_row: int) -> pa.RecordBatch:
        """The records of a block. Raises InputError for one that has too many or too few fields, or is not UTF-8."""
        read = arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1)
        convert = arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in names}, strings_can_be_null=False
        )
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(data), read_options=read, parse_options=self._parse, convert_options=convert
            )
        except pa.ArrowInvalid as error:
            _check_utf8(data, path, first_row)
            raise InputError(
                f"{path}, rows from {first_row} on: {error}",
                action="correct the file, or choose --delimiter or --quoting; nothing of this block was written",
                path=str(path),
            ) from None
        return _one_batch(table)


def _check_utf8(data: bytes, path: Path, first_row: int) -> None:
    """Arrow names a column and a row of the block, and not what is wrong with them."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        near = data[max(0, error.start - 20) : error.start + 20]
        raise InputError(
            f"{path}, rows from {first_row} on: the text is not UTF-8, near {near!r}",
            action="convert the file to UTF-8; nothing of this block was written",
            path=str(path),
        ) from None


def name_mistakes(names: Sequence[str]) -> list[str]:
    """What is wrong with the names of columns."""
    mistakes = [f"column {at} has no name" for at, name in enumerate(names, 1) if not name]
    return mistakes + [f"two columns are called {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _first_record(data: bytes, find_end: FindEnd) -> int:
    """The end of the first record alone: the first line end before which no quoted field is open."""
    return next((end for end in _line_ends(data) if find_end(data[:end]) == end), 0)


def _line_ends(data: bytes) -> Iterator[int]:
    at = data.find(b"\n")
    while at >= 0:
        yield at + 1
        at = data.find(b"\n", at + 1)
