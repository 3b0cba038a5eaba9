"""A file's bytes, unpacked, in blocks that end where a record ends.

Hazards::

    a writer has written half of its last line, or half of a quoted field that spans lines
    only what ends with a line end outside of quotes is taken; the rest waits for the next look

    a compressed file is still being copied
    its end is missing, and reading it fails before its last, perhaps half, line could be taken for a whole one

    a compressed file is damaged, and the checksum that tells stands at its end (or that of a member, or a frame)
    by then a gigabyte of wrong rows could be committed: it is read to its end once before its first row is taken

    a compressed file grows member by member (bgzip, a log that is packed in pieces), and a member ends in the middle of a line
    nothing says that its end is missing; so here too a line end alone makes a line whole
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import pyarrow as pa

from onceflow.errors import InputError
from onceflow.ingest.gzip_content import GzipContent
from onceflow.ingest.packing import HEAD_BYTES, check_text, compression_of
from onceflow.transaction.arrow import Integers

BLOCK_BYTES = 1 << 20  # what a block becomes, some MB of Arrow columns, is memory that the next block gets again
LONGEST_RECORD_BYTES = 64 << 20  # far above what Kafka takes: a quote that is never closed must not fill the memory
_QUOTE, _LINE_ENDS = 0x22, b"\r\n"
_BARE_CR = re.compile(rb"\r+(?![\r\n]|\Z)")  # some programs write \r\r\n


class Content(Protocol):
    """Bytes to read."""

    def read(self, size: int, /) -> bytes: ...


FindEnd = Callable[[bytes], int]
"""How many of the bytes, which begin where a record begins, are whole records."""


def open_content(file: IO[bytes], start: int = 0) -> Content:
    """The unpacked bytes of an open, unbuffered file from ``start`` on."""
    compression = compression_of(file)
    if compression is None:
        file.seek(start)
        return file
    file.seek(0)
    stream: Content = (
        GzipContent(file) if compression == "gzip" else pa.CompressedInputStream(for_arrow(file), compression)
    )
    while start > 0:
        skipped = len(stream.read(min(start, BLOCK_BYTES)))
        if not skipped:
            raise InputError(f"{file.name} holds less than what was read of it before")
        start -= skipped
    return stream


def checked_content(file: IO[bytes], start: int) -> Content:
    """The same of a packed file that is whole up to its present end, which is looked at first; no further than that end.

    Raises InputError for one that is damaged or cut off.
    """
    content, size = open_content(file), 0
    while data := _read(content, Path(file.name), BLOCK_BYTES):
        size += len(data)
    return _First(open_content(file, start), size - start)


class _First:
    """The first bytes of a content, however much follows."""

    def __init__(self, content: Content, size: int) -> None:
        self._content = content
        self._left = size

    def read(self, size: int, /) -> bytes:
        part = self._content.read(min(size, self._left))
        self._left -= len(part)
        return part


def begin_of_text(file: IO[bytes]) -> int:
    """Where the text begins in a file's unpacked bytes: behind the byte order mark that some programs write.

    Raises InputError for what is no text.
    """
    path = Path(file.name)
    head = _read(open_content(file), path, HEAD_BYTES)
    check_text(head, path)
    return len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0


def for_arrow(file: IO[bytes]) -> pa.PythonFile:
    """An open file as Arrow wants it. Arrow closes what it is given, so it gets a descriptor of its own; the place is shared."""
    return pa.PythonFile(os.fdopen(os.dup(file.fileno()), "rb", buffering=0), "r")


@dataclass(frozen=True, slots=True)
class Left:
    """What there is of a record that has no end. ``is_open``: within a quoted field, which only a quote ends."""

    data: bytes = b""
    is_open: bool = False


class Records:
    """Blocks of whole records up to the end; with ``last_is_whole`` also a last one without a line end.

    ``left`` after the last block: the record without a line end that was left. One within a quoted field is never whole::

        a stray quote begins a field, and no other quote follows: the field goes on to the end of the file
        taken as whole, a million rows become one field of one row

    Raises InputError for a record without end, and for a compressed file that is cut off.
    """

    def __init__(
        self,
        content: Content,
        path: Path,
        find_end: FindEnd,
        *,
        last_is_whole: bool,
        block_bytes: int,
        what: str = "record",
        longest_bytes: int = LONGEST_RECORD_BYTES,
    ) -> None:
        self._content = content
        self._path = path
        self._find_end = find_end
        self._last_is_whole = last_is_whole
        self._block_bytes = block_bytes
        self._what = what
        self._longest_bytes = longest_bytes
        self.left = Left()

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while data := _read(self._content, self._path, self._block_bytes):
            data = rest + data
            end = self._find_end(data)
            if end:
                yield data[:end]
            rest = data[end:]
            self._check_length(rest)
        is_open = bool(rest) and self._find_end(rest + b"\n") <= len(rest)
        if rest and self._last_is_whole and not is_open:
            yield rest
        else:
            self.left = Left(rest, is_open)

    def _check_length(self, rest: bytes) -> None:
        if len(rest) > self._longest_bytes:
            raise InputError(
                f"{self._path} has a {self._what} of more than {self._longest_bytes:,} bytes; it begins {rest[:60]!r}",
                action="look for a quote that is opened and never closed (--quoting none takes quotes as text), and for line "
                "ends other than LF and CRLF",
                path=str(self._path),
            )


def _read(content: Content, path: Path, size: int) -> bytes:
    try:
        return content.read(size)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error}",
            action="if it is still being written: move files in when they are whole; if it is damaged: put a good copy there",
            path=str(path),
        ) from error


def end_of_lines(data: bytes) -> int:
    """JSON Lines, and CSV without quotes: a line end is the end of a record."""
    return data.rfind(b"\n") + 1


def end_of_first_line(data: bytes) -> int:
    """Of a header without quotes."""
    return data.find(b"\n") + 1


def end_of_csv_records(data: bytes, delimiter: str) -> int:
    """The last line end that is in no quoted field; quotes before it then come in pairs."""
    if b'"' not in data:
        return end_of_lines(data)
    quotes = _field_quotes(data, delimiter)
    at = data.rfind(b"\n")
    while at >= 0 and (before := int(np.searchsorted(quotes, at))) % 2:
        at = data.rfind(b"\n", 0, int(quotes[before - 1]))  # the quote that is open there
    return at + 1


def end_of_first_csv_record(data: bytes, delimiter: str) -> int:
    """The first line end that is in no quoted field."""
    quotes = _field_quotes(data, delimiter)
    at = data.find(b"\n")
    while at >= 0 and (before := int(np.searchsorted(quotes, at))) % 2:
        at = data.find(b"\n", int(quotes[before])) if before < len(quotes) else -1  # the quote that closes it
    return at + 1


def bare_cr(data: bytes, delimiter: str | None) -> int | None:
    """Where the first CR that is no part of a line end stands outside of quotes; ``delimiter`` None: there are no quotes."""
    if data.count(b"\r") == data.count(b"\r\n"):
        return None
    found = np.array([match.start() for match in _BARE_CR.finditer(data)], np.int64)
    if delimiter is not None and b'"' in data:
        found = found[np.searchsorted(_field_quotes(data, delimiter), found) % 2 == 0]
    return int(found[0]) if found.size else None


def _field_quotes(data: bytes, delimiter: str) -> Integers:
    """Where fields are quoted and where that ends. A doubled quote in a field may count as end and new beginning."""
    raw = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(raw == _QUOTE)
    opening = quotes[::2]
    before = np.where(opening > 0, raw[opening - 1], _LINE_ENDS[0])
    begins = np.isin(before, list(delimiter.encode() + _LINE_ENDS))
    doubled = np.zeros(len(opening), bool)
    doubled[1:] = quotes[1::2][: len(opening) - 1] == opening[1:] - 1
    if bool((begins | doubled).all()):
        return quotes
    return _one_by_one(data, quotes.tolist(), delimiter.encode() + _LINE_ENDS)


def _one_by_one(data: bytes, quotes: list[int], borders: bytes) -> Integers:
    """For data with quotes inside of unquoted fields (``5" pipe``), which are text: the reader's own rule, quote by quote."""
    found: list[int] = []
    inside, skip = False, -1
    for at in quotes:
        if at == skip:
            continue
        if not inside and at > 0 and data[at - 1] not in borders:
            continue
        if inside and data[at + 1 : at + 2] == b'"':
            skip = at + 1
            continue
        inside = not inside
        found.append(at)
    return np.array(found, np.int64)
