"""Files as a source: what is new in each file that the patterns find, row by row of Arrow batches.

A file is opened once a look and known by its descriptor from then on, so a rotation in the middle changes nothing. After each
block that was read its beginning is compared once more: a file that was emptied under the reader is seen before the block counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

import pyarrow as pa

from onceflow.errors import ConfigurationError, InputError, SourceChanged, SourceUnavailable, SourceUnfinished
from onceflow.ingest.content import (
    BLOCK_BYTES,
    FindEnd,
    Left,
    Records,
    begin_of_text,
    checked_content,
    end_of_lines,
    open_content,
)
from onceflow.ingest.csv_rows import CsvReader, twice_mistakes
from onceflow.ingest.discovery import find, matching
from onceflow.ingest.event_rows import event_rows, numbers_as_text
from onceflow.ingest.events import RowsToCome
from onceflow.ingest.file_position import FilePosition, Print, names_rotation
from onceflow.ingest.json_rows import column_as_text, rows_as_json
from onceflow.ingest.jsonl_rows import key_of, lines_of
from onceflow.ingest.packing import compression_of
from onceflow.ingest.parquet_rows import parquet_batches
from onceflow.ingest.source import SourceBatch
from onceflow.ingest.terms import FOUND, Terms
from onceflow.ingest.watched import Watched

_LOOKS = 3

_Parse = Callable[[bytes, FilePosition], tuple[pa.RecordBatch, int]]
"""Whole records and the position before them: rows to write, and how many records that was."""

_Step = tuple[pa.RecordBatch | None, FilePosition]


class Format(StrEnum):
    """How rows lie in a file."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class FileOptions:
    """``finished``: a last row without a line end is whole. ``accept_new``: what cannot be told apart is new.

    ``columns``: the names of a CSV file's columns, when its first record is not a header.
    """

    patterns: Sequence[str]
    format: Format
    key: str | None = None
    delimiter: str = ","
    quoted: bool = True
    finished: bool = False
    accept_new: bool = False
    columns: Sequence[str] = ()
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class _Rest:
    """What was left of a packed file that looked so: it is told again, and not unpacked again, until the file is another."""

    seen: Print
    told: str


class FileSource:
    """See ``Source``. Event ids are row numbers from 1 (line numbers in JSON Lines), the event source names the file."""

    def __init__(self, options: FileOptions) -> None:
        self._options = options
        self._csv = CsvReader(options.delimiter, quoted=options.quoted, columns=options.columns)
        self._known: dict[str, FilePosition] = {}
        self._watched = Watched()
        self._noted: dict[str, str] = {}  # what is committed of these
        self._news: dict[str, str | None] = {}  # what is to be committed of them
        self._held: dict[str, str] = {}  # where moved files were before, until a look is through
        self._has_slipped = False  # a rotation came between the finding and the opening
        self._unfinished: dict[str, str] = {}
        self._rests: dict[str, _Rest] = {}
        readers: dict[Format, Callable[[IO[bytes], FilePosition], Iterator[_Step]]] = {
            Format.CSV: self._csv_rows,
            Format.JSONL: self._json_lines,
            Format.PARQUET: self._parquet_rows,
        }
        self._read = readers[options.format]

    @property
    def terms(self) -> Terms:
        terms = {"source": "files", "format": str(self._options.format), "key": self._options.key}
        return {**terms, **self._csv.terms} if self._options.format is Format.CSV else terms

    def restore(self, positions: Mapping[str, str]) -> None:
        self._noted = {key: text for key, text in positions.items() if key.startswith(FOUND)}
        with _told():
            self._watched.restore(self._noted.values())
        self._known = {key: FilePosition.of(text) for key, text in positions.items() if key not in self._noted}
        self._held = {}
        self._rests = {}
        self._find()

    def size_bytes(self) -> int | None:
        return sum(self._bytes_left(position) for position in self._find() if not position.replaced)

    def rows_to_come(self) -> RowsToCome | None:
        """Only who has read a file knows how many rows it has."""
        return None

    def _bytes_left(self, position: FilePosition) -> int:
        """A packed file is read from its beginning again, as far as it is needed. Nothing of one that shrank just now."""
        with suppress(FileNotFoundError), Path(position.path).open("rb", buffering=0) as file:
            if self._is_done(file, position):
                return 0
            return max(0, os.fstat(file.fileno()).st_size - (position.offset if self._is_plain(file) else 0))
        return 0  # renamed since it was found

    def batches(self) -> Iterator[SourceBatch]:
        """What was found goes with the first rows, or alone: whatever is renamed after them is known."""
        try:
            for batch in self._batches():
                yield replace(batch, positions={**self._take_news(), **batch.positions})
        except InputError:
            yield from self._news_alone()
            raise
        yield from self._news_alone()

    def _news_alone(self) -> Iterator[SourceBatch]:
        if self._news:
            yield SourceBatch(None, self._take_news())

    def _take_news(self) -> dict[str, str | None]:
        news, self._news = self._news, {}
        for key, text in news.items():
            if text is None:
                self._noted.pop(key, None)
            else:
                self._noted[key] = text
        return news

    def _batches(self) -> Iterator[SourceBatch]:
        """A new path is committed last: what no pattern finds is known by the old one (``passed_over.py``)::

        app.log was renamed twice; its rest is read, from app.log.2, and then app.log.1, which the user has asked for
        killed between the two: the next start must not take it that app.log.2 was always there
        """
        for _ in range(_LOOKS):
            self._has_slipped, self._unfinished = False, {}
            for position in self._look_for():
                self._hold(position)
                if position.replaced:
                    yield self._moved(None, position, 0)
                else:
                    with self._way_out(position):
                        yield from self._file(position)
            if not self._has_slipped:
                break
        for source in [*self._held]:
            del self._held[source]
            yield self._moved(None, self._known[source], 0)

    @contextmanager
    def _way_out(self, position: FilePosition) -> Iterator[None]:
        """A file that is refused is read under its next name as well; to give it another one is what comes to mind first."""
        try:
            yield
        except InputError as error:
            if Path(position.path) in matching(self._options.patterns):
                raise
            raise type(error)(
                error.message,
                action=f"{error.action}; it was renamed, and is read all the same: to keep it out move it to another directory",
                **error.fields,
            ) from error

    def _look_for(self) -> list[FilePosition]:
        """The files; and what is new of those that have no position, which is told with the next batch."""
        found, now = self._find(), self._watched.texts()
        self._news = dict.fromkeys(self._noted.keys() - now.keys())
        self._news |= {key: text for key, text in now.items() if self._noted.get(key) != text}
        return found

    def _forget(self, position: FilePosition) -> None:
        key = self._watched.forget((position.device, position.inode))
        self._news.pop(key, None)
        if key in self._noted:
            self._news[key] = None

    def _hold(self, position: FilePosition) -> None:
        """A file that was read and is somewhere else now: remembered there at once, and committed there later."""
        was = self._known.get(position.source)
        if was is not None and was.path != position.path and not position.replaced:
            self._held.setdefault(position.source, was.path)
            self._known[position.source] = position

    def check_end(self) -> None:
        self._check_found()
        if self._unfinished:
            named = "".join(f"\n  - {path}: {left}" for path, left in self._unfinished.items())
            raise SourceUnfinished(
                f"all rows are written but the last one of these files, which has no line end:{named}",
                action="run again when the writer has ended the line, or with --finished if the row is complete as it is",
                paths=tuple(self._unfinished),
            )

    def check_any(self) -> None:
        """Before a start that does not wait for files: raises ConfigurationError where there is none at all.

        Not where one may have been rotated away and none begun anew: its rest is to be read, and only positions tell of it.
        """
        empty = self._empty_patterns()
        if len(empty) == len(self._options.patterns) and not any(map(_has_rotated, empty)):
            self._check_found()

    def _check_found(self) -> None:
        if empty := [pattern for pattern in self._empty_patterns() if not self._is_renamed(pattern)]:
            raise ConfigurationError.of("the files to ingest", [f"{pattern} matches no file" for pattern in empty])

    def _is_renamed(self, pattern: str) -> bool:
        """Whether a file that the pattern has found is there under another name, and was read."""
        whole = str(Path(pattern).absolute())
        found = (each for each in self._known.values() if not each.replaced and fnmatchcase(str(each.found_as), whole))
        return any(Path(position.path).is_file() for position in found)

    def _empty_patterns(self) -> list[str]:
        with _told():
            return [pattern for pattern in self._options.patterns if not _finds_a_file(pattern)]

    def stop(self) -> None:
        """A look waits for nothing."""

    def close(self) -> None:
        """Nothing stays open between looks."""

    def _find(self) -> list[FilePosition]:
        with _told():
            return find(self._options.patterns, self._known, self._watched, accept_new=self._options.accept_new)

    def _moved(self, rows: pa.RecordBatch | None, position: FilePosition, size_bytes: int) -> SourceBatch:
        self._known[position.source] = position
        if rows is not None and not position.replaced:  # one without rows may wait for the first row of the name
            self._forget(position)
        committed = replace(position, path=self._held.get(position.source, position.path))
        return SourceBatch(rows, {position.source: committed.text()}, size_bytes)

    def _file(self, position: FilePosition) -> Iterator[SourceBatch]:
        # Renamed since it was found, its name may be free or another file's: it is found again, also by a run of one look.
        try:
            file = Path(position.path).open("rb", buffering=0)  # noqa: SIM115  closed below
        except FileNotFoundError:
            self._has_slipped = True
            return
        with file:
            if _is_other(file, position):
                self._has_slipped = True
                return
            if self._is_done(file, position) or self._has_same_rest(file, position):
                return
            _checked(file, position)
            place = 0 if compression_of(file) else position.offset
            for rows, moved in self._read(file, position):
                before, place = place, max(place, file.tell())
                yield self._moved(rows, moved, place - before)

    # --------------------------------------------------------------------------------------------------------- formats

    def _csv_rows(self, file: IO[bytes], position: FilePosition) -> Iterator[_Step]:
        path = Path(position.path)
        header = self._csv.header(file, path, finished=self._options.finished)
        if isinstance(header, Left):
            self._leave(header, position, "the header")
            return
        names, size = header
        self._check_key(names, path)

        def parse(data: bytes, before: FilePosition) -> tuple[pa.RecordBatch, int]:
            table = self._csv.columns(data, names, before)
            return self._rows(table, before), table.num_rows

        start = replace(position, offset=position.offset or size)
        yield from self._text(file, start, self._csv.find_end, parse)

    def _json_lines(self, file: IO[bytes], position: FilePosition) -> Iterator[_Step]:
        def parse(data: bytes, before: FilePosition) -> tuple[pa.RecordBatch, int]:
            lines, indexes, count = lines_of(data)
            key, first = self._options.key, before.rows + 1
            keys = None if key is None else key_of(lines, key, before.path, indexes + first)
            ids = pa.array(indexes + first).cast(pa.string())
            return event_rows(lines, keys, before.source, ids, rising=True), count

        start = replace(position, offset=position.offset or begin_of_text(file))
        yield from self._text(file, start, end_of_lines, parse)

    def _parquet_rows(self, file: IO[bytes], position: FilePosition) -> Iterator[_Step]:
        for table in parquet_batches(file, position):
            self._check_columns(table.schema.names, Path(position.path))
            rows = self._rows(table, position)
            count, seen = position.rows + table.num_rows, _whole(file)
            position = replace(_checked(file, position), rows=count, offset=count, seen=seen, ended=False)
            yield rows, position
        if not position.ended:
            yield None, replace(position, ended=True)

    def _text(self, file: IO[bytes], position: FilePosition, find_end: FindEnd, parse: _Parse) -> Iterator[_Step]:
        packed = compression_of(file) is not None
        if packed:  # what there is now is read to its end below, also where it grew by no record
            position = replace(_checked(file, position), seen=_whole(file))
        content = (checked_content if packed else open_content)(file, position.offset)
        finished = self._options.finished
        records = Records(
            content, Path(position.path), find_end, last_is_whole=finished, block_bytes=self._options.block_bytes
        )
        for data in records:
            rows, count = parse(data, position)
            offset = position.offset + len(data)
            # First what is remembered, then the check: a file that was emptied before either is seen by the check.
            seen = position.seen if packed else _print(file, offset)
            # A packed file that grew has not ended yet, whatever it had done before: ended here, with its new size, its rest
            # would be taken for read.
            position = replace(
                _checked(file, position), offset=offset, rows=position.rows + count, seen=seen, ended=False
            )
            yield rows if rows.num_rows else None, position
        if records.left.data:
            self._leave(records.left, position, f"row {position.rows + 1}")
            if packed:
                self._rests[position.source] = _Rest(position.seen, self._unfinished[position.path])
        elif packed:
            yield None, replace(position, ended=True)

    def _leave(self, left: Left, position: FilePosition, record: str) -> None:
        if left.is_open and self._options.finished:
            raise _never_closed(left.data, position.path, record)
        why = f", as {record} opens a quote that is not closed" if left.is_open else ""
        self._unfinished[position.path] = f"{len(left.data):,} bytes{why}"

    def _has_same_rest(self, file: IO[bytes], position: FilePosition) -> bool:
        rest = self._rests.get(position.source)
        if rest is None or rest.seen != _whole(file):
            return False
        self._unfinished[position.path] = rest.told
        return True

    def _rows(self, table: pa.RecordBatch, before: FilePosition) -> pa.RecordBatch:
        try:
            return self._written(table, before)
        except InputError as error:
            row = before.rows + 1 + _first_refused(table, lambda part: self._written(part, before))
            raise InputError(
                f"{before.path}: row {row}: {error.message}", action=error.action, path=before.path, row=row
            ) from None

    def _written(self, table: pa.RecordBatch, before: FilePosition) -> pa.RecordBatch:
        key = self._options.key
        keys = None if key is None else column_as_text(table.column(key))
        ids = numbers_as_text(before.rows + 1, table.num_rows)
        return event_rows(rows_as_json(table), keys, before.source, ids, rising=True)

    def _is_done(self, file: IO[bytes], position: FilePosition) -> bool:
        """Whether nothing was added since. The offset is a place in the file only where its text lies there as it is."""
        size = os.fstat(file.fileno()).st_size
        if position.ended:
            return size == position.seen.size
        return self._is_plain(file) and size == position.offset

    def _is_plain(self, file: IO[bytes]) -> bool:
        return self._options.format is not Format.PARQUET and compression_of(file) is None

    def _check_columns(self, names: Sequence[str], path: Path) -> None:
        """Of two columns of one name most readers of JSON keep the last."""
        if mistakes := twice_mistakes(names):
            raise InputError(f"{path}: {'; '.join(mistakes)}", action="rename one of them; nothing of it was written")
        self._check_key(names, path)

    def _check_key(self, names: Sequence[str], path: Path) -> None:
        if self._options.key is not None and self._options.key not in names:
            raise InputError(
                f"{path} has no column {self._options.key!r}; it has {', '.join(names)}", action="choose another --key"
            )


def _first_refused(table: pa.RecordBatch, write: Callable[[pa.RecordBatch], object]) -> int:
    """The index of the first row that cannot be written, of rows that cannot be written together."""
    first, last = 0, table.num_rows - 1
    while first < last:
        middle = (first + last) // 2
        try:
            write(table.slice(first, middle + 1 - first))
        except InputError:
            last = middle
        else:
            first = middle + 1
    return first


def _finds_a_file(pattern: str) -> bool:
    """Not a directory, nor a pipe: of these nothing can be read again from a position."""
    return any(path.is_file() for path in matching([pattern]))


def _has_rotated(pattern: str) -> bool:
    """Whether a file is beside it that a rotation may have named so."""
    path = Path(pattern)
    with suppress(FileNotFoundError, NotADirectoryError):
        return any(names_rotation(path.name, beside) for beside in path.parent.iterdir())
    return False


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise SourceUnavailable(f"{error.filename} may not be read", action="grant the right to read it") from error


def _never_closed(data: bytes, path: str, record: str) -> InputError:
    return InputError(
        f"{path}: {record} opens a quote that is never closed, so all that follows ({len(data):,} bytes) would be one field; "
        f"it begins {data[:60]!r}",
        action="correct the file, or take quotes as text with --quoting none; if it is still written, run without --finished",
        path=path,
    )


def _is_other(file: IO[bytes], position: FilePosition) -> bool:
    """Whether the name was given to another file since it was found; the next look sorts it out."""
    status = os.fstat(file.fileno())
    return not position.is_at(Path(position.path), status)


def _checked(file: IO[bytes], position: FilePosition) -> FilePosition:
    if not position.seen.is_of(file.fileno()):
        raise SourceChanged(
            f"{position.path} was emptied or written anew while it was read; {position.rows:,} rows of it are committed",
            action="rotate by renaming; start again, and choose --changed new if its content is new",
            paths=(position.path,),
        )
    return position


def _whole(file: IO[bytes]) -> Print:
    return _print(file, os.fstat(file.fileno()).st_size)


def _print(file: IO[bytes], size: int) -> Print:
    seen = Print.of(file.fileno(), size)
    if seen is None:
        raise SourceChanged(f"{file.name} became shorter while it was read", action="start again")
    return seen
