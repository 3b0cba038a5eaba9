"""CSV: blocks of whole records to columns of text. Values stay text as they are in the file; an empty field is "".

Hazard::

    a file's lines end with CR alone (old Mac), or a value has one in it, outside of quotes
    the whole file is one line, so the header, and its rows would be lost; a value would begin a row of its own
    such a CR is refused wherever it stands: LF and CRLF are the line ends (and CRCRLF, which some programs write)

    a file has one column, and a row of it has no value: PostgreSQL's COPY and many others write it as an empty line
    an empty line is a row there, of an empty value; of several columns none is written so, and it stands between two rows

    such a file ends its lines with CRCRLF, of which Arrow takes the first CR for an end as well
    between its lines it would have as many empty ones: one end is made of it, outside of quotes

    a row begins with a byte order mark, as where files with one each were put together
    Arrow drops one at the beginning of what it is given: of a row that begins a block, and of no other, so that its value would
    depend on where blocks end. Such a block is given one more

    a version that took no empty line for a row has committed a position: so many bytes, so many rows
    it goes on behind these bytes with the next number; the empty lines before are not sent any more, and no number comes again
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
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
    bare_cr,
    begin_of_text,
    end_of_csv_records,
    end_of_first_csv_record,
    end_of_first_line,
    end_of_lines,
    open_content,
)
from onceflow.ingest.file_position import FilePosition
from onceflow.ingest.terms import Terms

_ROW = re.compile(r"CSV parse error: Row #(\d+): ")
_REST_OF_LINE_END = rb"\r+(?=\r(?:\n|\Z))"  # of CRCRLF the first CR
_PLAIN_LINE_ENDS = re.compile(_REST_OF_LINE_END)
_LINE_ENDS_AND_QUOTED = re.compile(rb'^"[^"]*(?:""[^"]*)*"|' + _REST_OF_LINE_END, re.MULTILINE)
_HEADER_BYTES = 1 << 20  # its names stand in every row, and Kafka takes no such rows


class CsvReader:
    """The records of CSV files. The first record of each file is its header, unless ``columns`` names the columns."""

    def __init__(self, delimiter: str = ",", *, quoted: bool = True, columns: Sequence[str] = ()) -> None:
        self._columns = list(columns)
        self._delimiter = delimiter
        self._quoted = quoted

    @property
    def find_end(self) -> FindEnd:
        return partial(end_of_csv_records, delimiter=self._delimiter) if self._quoted else end_of_lines

    @property
    def terms(self) -> Terms:
        """Where records end, which of them is the first row, and what the values of a row are called."""
        terms = {"delimiter": self._delimiter, "quoting": "csv" if self._quoted else "none"}
        if self._columns:
            return {**terms, "header": "none, but --columns", "columns": ",".join(self._columns)}
        return {**terms, "header": "the first record"}

    def header(self, file: IO[bytes], path: Path, *, finished: bool) -> tuple[list[str], int] | Left:
        """The column names and where the rows begin; what there is while the header is not complete. Raises InputError."""
        begin = begin_of_text(file)
        if self._columns:
            return self._columns, begin
        end_of_first = (
            partial(end_of_first_csv_record, delimiter=self._delimiter) if self._quoted else end_of_first_line
        )

        def first(data: bytes) -> int:
            """Looks while there is no line end as well: none may ever come."""
            end = end_of_first(data)
            self._check_header(data[:end] if end else data, path, begin)
            return end

        records = Records(
            open_content(file, begin),
            path,
            first,
            last_is_whole=finished,
            block_bytes=1 << 16,
            what="header",
            longest_bytes=_HEADER_BYTES,
        )
        data = next(iter(records), None)
        if data is None:
            return records.left
        return self._names(data, path), begin + len(data)

    def _check_header(self, data: bytes, path: Path, begin: int) -> None:
        at = bare_cr(data, self._quote_delimiter)
        if at is not None:
            raise _bare_cr(data, at, str(path), "in the header", begin + at)

    @property
    def _quote_delimiter(self) -> str | None:
        return self._delimiter if self._quoted else None

    def _names(self, data: bytes, path: Path) -> list[str]:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: the header is not UTF-8: {error}", action="convert the file to UTF-8") from None
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._quoted else csv.QUOTE_NONE
        try:
            names = next(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter, quoting=quoting), [])
        except csv.Error as error:  # no name of a column is so long
            raise InputError(
                f"{path}: the header cannot be read ({error}); it begins {text[:60]!r}",
                action="look for a quote that is closed too late (--quoting none takes quotes as text)",
                path=str(path),
            ) from None
        mistakes = name_mistakes(names)
        if mistakes or not names:
            raise InputError(
                f"{path}: the header {text.strip()!r}: {'; '.join(mistakes) or 'is empty'}",
                action="give each column a name of its own in the header, or, if that is a row already, name the columns with "
                "--columns",
                path=str(path),
            )
        return names

    def columns(self, data: bytes, names: list[str], before: FilePosition) -> pa.RecordBatch:
        """The records of a block. Raises InputError for one that has too many or too few fields, a bare CR, or is not UTF-8."""
        at = bare_cr(data, self._quote_delimiter)
        if at is not None:
            row = self._row_at(data, at, names, before)
            raise _bare_cr(data, at, before.path, f"in row {row}", before.offset + at, row=row)
        return self._parsed(data, names, before)

    def _row_at(self, data: bytes, at: int, names: list[str], before: FilePosition) -> int:
        """The number of the row in which a byte of the block stands."""
        whole = data[: self.find_end(data[:at])]
        return before.rows + 1 + (self.columns(whole, names, before).num_rows if whole else 0)

    def _parsed(self, data: bytes, names: list[str], before: FilePosition) -> pa.RecordBatch:
        lines = self._with_single_ends(data) if len(names) == 1 else data
        if lines.startswith(codecs.BOM_UTF8):
            lines = codecs.BOM_UTF8 + lines
        read = arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(lines) + 1)
        convert = arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in names}, strings_can_be_null=False
        )
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(lines), read_options=read, parse_options=self._parse(names), convert_options=convert
            )
        except pa.ArrowInvalid as error:
            self._check_utf8(data, names, before)
            raise InputError(
                f"{before.path}{_told(error, before.rows)}",
                action="correct the file, or choose --delimiter or --quoting; nothing of this block was written",
                path=before.path,
            ) from None
        return _one_batch(table)

    def _parse(self, names: list[str]) -> arrow_csv.ParseOptions:
        return arrow_csv.ParseOptions(
            delimiter=self._delimiter,
            quote_char='"' if self._quoted else False,
            newlines_in_values=self._quoted,
            ignore_empty_lines=len(names) > 1,
        )

    def _with_single_ends(self, data: bytes) -> bytes:
        """CRCRLF as CRLF, outside of quotes. The one column begins where the line does, and so do the quotes around it."""
        if b"\r\r" not in data:
            return data
        if not self._quoted:
            return _PLAIN_LINE_ENDS.sub(b"", data)
        return _LINE_ENDS_AND_QUOTED.sub(lambda found: found[0] if found[0].startswith(b'"') else b"", data)

    def _check_utf8(self, data: bytes, names: list[str], before: FilePosition) -> None:
        """Arrow names a column and a row of the block, and not what is wrong with them."""
        try:
            data.decode()
        except UnicodeDecodeError as error:
            row = self._row_at(data, error.start, names, before)
            at, near = before.offset + error.start, data[max(0, error.start - 20) : error.start + 20]
            raise InputError(
                f"{before.path}: row {row} is not UTF-8: byte {at:,} of the text, counted from 0, in {near!r}",
                action="convert the file to UTF-8; nothing of this block was written",
                path=before.path,
                row=row,
                byte=at,
            ) from None


def _bare_cr(data: bytes, at: int, path: str, where: str, byte: int, **fields: int) -> InputError:
    return InputError(
        f"{path}: a carriage return (CR) {where} is no part of a line end: byte {byte:,} of the text, counted from 0, in "
        f"{data[max(0, at - 20) : at + 20]!r}",
        action="if the lines end with CR alone, convert them (`tr '\\r' '\\n'`); one in a value must be in quotes; nothing "
        "of this block was written",
        path=path,
        byte=byte,
        **fields,
    )


def _told(error: pa.ArrowInvalid, before: int) -> str:
    """Arrow counts from the beginning of the block, ``before`` rows stand before that."""
    text = str(error)
    row = _ROW.match(text)
    return (
        f", rows from {before + 1} on: {text}" if row is None else f": row {before + int(row[1])}: {text[row.end() :]}"
    )


def name_mistakes(names: Sequence[str]) -> list[str]:
    """What is wrong with the names of columns."""
    mistakes = [f"column {at} has no name" for at, name in enumerate(names, 1) if not name]
    return mistakes + twice_mistakes(names)


def twice_mistakes(names: Sequence[str]) -> list[str]:
    """Which names more than one column has."""
    return [f"two columns are called {name!r}" for name in sorted({n for n in names if names.count(n) > 1})]


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
