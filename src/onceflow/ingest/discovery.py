"""Which file is which: what the patterns find now, matched with the committed positions.

::

    app.log is renamed to app.log.1, a new app.log begins
    app.log.1 is the file that was read before (device, inode, and its beginning): the rest of it comes first, then the new one,
    even if no pattern finds app.log.1 (its old directory is searched)

    app.log is overwritten, emptied, or deleted and begun anew
    what was written to the old file since the last look is gone, and whether the new one repeats old rows (an editor saved it)
    or holds new ones only the user knows: refused, until the user says ``new``

    a rotation happens while the names are read
    app.log was found as the old file and is the new one when it is opened, and app.log.1 was not found: the names are read again

    app.log was found while it was empty, and is renamed before a row of it was committed
    it has no position, but is remembered as long as the process lives (``watched.py``)

    app.log was renamed twice since the last look, and the file between was never found
    no pattern may find it by its new name: refused, as its rows would be passed over (``passed_over.py``)

    app.log.1 was read, and the next rotation puts another file there, which may have rows or none
    names that a rotation has given are handed on: that it has this name says nothing, unlike a new app.log without a rotation

    app.log is copied to app.log.1 and is about to be emptied (copytruncate), or packed to app.log.gz and about to be deleted
    the copy has the content of a file that is there: refused, as it would be a moment later

    the look comes while app.log.1 is still written: it has less than what was read of app.log
    all that it has is in app.log too: refused. A copy that was cut short, whose original is gone, is known by its beginning
    alone; so a name that a rotation gives must tell it as well, since exports of many columns begin with the same header

    app.log.1 is packed to app.log.1.gz, or the files are moved to another disk
    other inodes with the same content: reading them would repeat everything, so they are refused too
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from onceflow.errors import ConfigurationError, SourceChanged
from onceflow.ingest.content import open_content
from onceflow.ingest.file_position import (
    WINDOW_BYTES,
    FilePosition,
    Print,
    digest,
    log_name,
    names_rotation,
    new_position,
    status_of,
)
from onceflow.ingest.packing import compression_of
from onceflow.ingest.passed_over import begun_after, holds_rows, in_its_place, passed_over
from onceflow.ingest.watched import File, Watched

_LOOKS = 3
_MAGIC = re.compile(r"[*?[]")

Known = Mapping[str, FilePosition]
"""The positions of all files ever read, by source."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A file that is there now."""

    path: Path
    status: os.stat_result

    @property
    def file(self) -> tuple[int, int]:
        return self.status.st_dev, self.status.st_ino


def find(
    patterns: Sequence[str], known: Known, watched: Watched | None = None, *, accept_new: bool = False
) -> list[FilePosition]:
    """Every file to look at, with its position and present path: those begun first, then by age.

    ``watched``: those found by the calls before, which are found under another name too.
    With ``accept_new`` a file under the name of another, vanished one is a new one, and that one's position comes back as
    ``replaced``; the original of a copy, which is there, keeps its position. Raises SourceChanged with every file that cannot be
    told.
    """
    watched = watched or Watched()
    for _ in range(_LOOKS):
        look = _look(patterns, known, watched)
        if not any(look.suspects.values()) and not look.passed_over:
            break
    else:
        if not accept_new:
            raise _changed(look) if any(look.suspects.values()) else _passed_over(look.passed_over)
    found, beside = ({entry.file: entry.path for entry in entries} for entries in (look.unknown, look.passed_over))
    watched.note(found, beside, look.files)
    there = {position.source for position in look.begun}
    doubtful = [
        position for suspects in look.suspects.values() for position in suspects if position.source not in there
    ]
    given_up = {position.source: replace(position, replaced=True) for position in doubtful}
    new = sorted([*look.unknown, *look.passed_over], key=_age)
    return look.begun + list(given_up.values()) + _new(new, set(known))


@dataclass(frozen=True, slots=True)
class _Look:
    """What the names lead to: all files, those with a position, others, which vanished ones each of these may be, what no pattern
    finds.
    """

    files: set[File]
    begun: list[FilePosition]
    unknown: list[Seen]
    suspects: dict[Path, list[FilePosition]]
    passed_over: list[Seen]


def _look(patterns: Sequence[str], known: Known, watched: Watched) -> _Look:
    live = [position for position in known.values() if not position.replaced]
    by_inode: dict[int, list[FilePosition]] = {}
    for position in live:
        by_inode.setdefault(position.inode, []).append(position)
    seen = list(_distinct([*matching(patterns), *_renamed(live, by_inode)]))
    remembered = list(watched.renamed({entry.file for entry in seen}))
    seen += _distinct(now for _, now in remembered)
    matched = {entry.path: same for entry in seen if (same := _same_file(entry, by_inode))}
    found = {position.source for position in matched.values()}
    missing = [position for position in live if position.source not in found]
    unknown = [entry for entry in seen if entry.path not in matched]
    moved = [(position, path) for path, position in matched.items() if position.path != str(path)]
    suspects: dict[Path, list[FilePosition]] = {}
    there = [(Path(position.path).name, path, position) for path, position in matched.items()]  # of many, so once
    for entry in unknown:
        beginning = _Beginning(entry.path)
        suspects[entry.path] = list(_suspects(entry, beginning, missing, moved))
        suspects[entry.path] += _originals(entry, beginning, there)
    files = {entry.file for entry in seen}
    beside = [*_beside([*((Path(was.path), now) for was, now in moved), *remembered], files)]
    beside += [path for gone in missing for path in in_its_place(gone, files)]
    beside += [path for path in watched.places_of_missing(files) if holds_rows(path, files)]
    begun = [replace(position, path=str(path)) for path, position in matched.items()]
    beside += begun_after(live, {each.source for each in begun if each.has_name(each.found_as)}, files)
    return _Look(files, begun, unknown, suspects, sorted(_distinct(beside), key=_age))


def _beside(renamed: Iterable[tuple[Path, Path]], files: Collection[File]) -> Iterator[Path]:
    for was, now in renamed:
        with suppress(FileNotFoundError):  # renamed once more: the next look finds it
            yield from passed_over(was, now, files)


def _new(unknown: Iterable[Seen], taken: set[str]) -> list[FilePosition]:
    found = []
    for entry in unknown:
        size = min(entry.status.st_size, WINDOW_BYTES)
        with suppress(FileNotFoundError), entry.path.open("rb") as file:  # renamed: the next look finds it
            seen = Print.of(file.fileno(), size)
            if size and seen is not None:
                found.append(new_position(entry.path, entry.status, seen, taken))
    return found


def matching(patterns: Iterable[str]) -> Iterator[Path]:
    """What the patterns find by name. Raises ConfigurationError, PermissionError."""
    for pattern in patterns:
        names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  absolute patterns too
        _check_brackets(pattern, names)
        if not names:
            _check_listed(pattern)
        yield from (Path(name).absolute() for name in names)


def _check_brackets(pattern: str, names: Sequence[str]) -> None:
    """app[1].log finds app1.log; whoever means the file of that name would never learn that it is not read."""
    if "[" in pattern and pattern not in names and os.path.lexists(pattern):
        mistake = (
            f"{pattern} is a pattern, and does not find the file of that name: write {glob.escape(pattern)} for it"
        )
        raise ConfigurationError.of("the files to ingest", [mistake])


def _check_listed(pattern: str) -> None:
    """glob passes over what it may not list or look into, as if nothing were there; an ingest would wait for ever."""
    plain = Path(*takewhile(lambda part: not _MAGIC.search(part), Path(pattern).parts))
    status = status_of(plain)
    if status is not None and stat.S_ISDIR(status.st_mode):
        with suppress(FileNotFoundError):  # removed just now
            os.scandir(plain).close()


def _renamed(live: Sequence[FilePosition], by_inode: Mapping[int, Sequence[FilePosition]]) -> Iterator[Path]:
    """Files beside the places where known ones were last, for those that are there under another name.

    An inode is given to another file, of whatever program, once its own is deleted: it must be one that was made at that time,
    or, where nobody knows that, have its content or another number behind its name.
    """
    places = {Path(position.path) for position in live}
    for directory in sorted(
        {each.parent for each in places} | {each.resolve().parent for each in places if each.is_symlink()}
    ):
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(directory):
                if entry.inode() in by_inode and _is_at(by_inode[entry.inode()], entry):
                    yield Path(entry.path)


def _is_at(positions: Iterable[FilePosition], entry: os.DirEntry[str]) -> bool:
    with suppress(FileNotFoundError):  # renamed since the directory was read: the next look finds it
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISREG(status.st_mode) and any(_is_it(each, Path(entry.path), status) for each in positions)
    return False


def _is_it(position: FilePosition, path: Path, status: os.stat_result) -> bool:
    if not position.is_at(path, status):
        return False
    is_of_its_log = position.has_name(path) or log_name(path) == log_name(Path(position.path))
    return bool(position.born_ns) or is_of_its_log or position.seen.continues_in(path)


def _distinct(paths: Iterable[Path]) -> Iterator[Seen]:
    """Each regular file once, by whatever names and links it was found."""
    files = set()
    for path in paths:
        status = status_of(path)  # None: renamed since the directory was read, the next look finds it
        if status is not None and stat.S_ISREG(status.st_mode) and (entry := Seen(path, status)).file not in files:
            files.add(entry.file)
            yield entry


def _age(entry: Seen) -> tuple[int, str]:
    """Rotated files have the higher number and the older rows, so the time decides and not the name."""
    return entry.status.st_mtime_ns, str(entry.path)


def _same_file(entry: Seen, by_inode: Mapping[int, Sequence[FilePosition]]) -> FilePosition | None:
    candidates = by_inode.get(entry.status.st_ino, ())
    found = [p for p in candidates if p.is_at(entry.path, entry.status) and p.seen.continues_in(entry.path)]
    return max(found, key=lambda position: position.offset, default=None)


def _suspects(
    entry: Seen,
    beginning: _Beginning,
    missing: Iterable[FilePosition],
    moved: Sequence[tuple[FilePosition, Path]],
) -> Iterator[FilePosition]:
    """Which of those that are missing the file may be."""
    for position in missing:
        is_it = _has_its_name(entry, position, moved) or _was_overwritten(entry, position)
        if is_it or beginning.is_of(position) or _is_shorter_copy(entry, beginning, position):
            yield position


def _is_shorter_copy(entry: Seen, beginning: _Beginning, missing: FilePosition) -> bool:
    """Nobody can compare more than the beginning, which of two exports may be the same header; so the name must tell as well."""
    is_shorter = entry.status.st_size < missing.seen.size
    return is_shorter and names_rotation(Path(missing.path).name, entry.path) and beginning.is_like(missing)


def _originals(
    entry: Seen, beginning: _Beginning, there: Iterable[tuple[str, Path, FilePosition]]
) -> Iterator[FilePosition]:
    """Those that are still there of which the file is a copy, by its name and its content; it may be still written."""
    for name, path, position in there:
        if names_rotation(name, entry.path) and (beginning.is_of(position) or _is_part_of(entry, path)):
            yield position


def _is_part_of(entry: Seen, original: Path) -> bool:
    """Whether the other file begins with all that this one has. Less than a window of it may be a header, or a banner."""
    size = entry.status.st_size
    if size < WINDOW_BYTES:
        return False
    with suppress(FileNotFoundError), entry.path.open("rb") as file:
        part = Print.of(file.fileno(), size)
        return part is not None and part.continues_in(original)
    return False


def _has_its_name(entry: Seen, missing: FilePosition, moved: Sequence[tuple[FilePosition, Path]]) -> bool:
    """Whether the name tells: not where the one that had it last is found elsewhere, nor where a rotation has given it."""
    if not missing.has_name(entry.path) or any(position.has_name(entry.path) for position, _ in moved):
        return False
    return not missing.was_rotated()


def _was_overwritten(entry: Seen, missing: FilePosition) -> bool:
    """Whether it is the file itself. Where births are unknown, an empty one may be another that got its inode."""
    if not missing.is_at(entry.path, entry.status):
        return False
    return bool(missing.born_ns) or (missing.has_name(entry.path) and entry.status.st_size > 0)


class _Beginning:
    """What a file begins with, compared with what was read of others: of many others, so each length is looked at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._heads: dict[int, tuple[str, str]] = {}

    def is_of(self, position: FilePosition) -> bool:
        """Whether the file has the content of the other one, as it was or packed."""
        seen = position.seen
        plain, unpacked = self._heads_of(min(seen.size, WINDOW_BYTES))
        return seen.head == unpacked or (seen.head == plain and seen.continues_in(self._path))

    def is_like(self, position: FilePosition) -> bool:
        """Whether a whole window of it is the same."""
        return position.seen.size >= WINDOW_BYTES and position.seen.head == self._heads_of(WINDOW_BYTES)[0]

    def _heads_of(self, length: int) -> tuple[str, str]:
        """Digests of so many bytes, as they are and unpacked; empty where there is nothing to unpack."""
        if length not in self._heads:
            self._heads[length] = self._read(length)
        return self._heads[length]

    def _read(self, length: int) -> tuple[str, str]:
        plain = ""
        try:
            with self._path.open("rb", buffering=0) as file:
                plain = digest(os.pread(file.fileno(), length, 0))
                is_packed = compression_of(file) is not None
                return plain, digest(open_content(file).read(length)) if is_packed else ""
        except OSError:
            return plain, ""


def _changed(look: _Look) -> SourceChanged:
    doubtful = {path: positions for path, positions in look.suspects.items() if positions}
    lines = [f"{path}: {_reason(path, positions[0])}" for path, positions in doubtful.items()]
    lines += [f"{entry.path}: no pattern finds it, and it was begun since" for entry in look.passed_over]
    return SourceChanged(
        "cannot tell whether these files hold new rows:" + "".join(f"\n  - {line}" for line in lines),
        action="put the old file back, or take the file out of the patterns if its rows are known; --changed new reads all of "
        "them from the beginning as new files (rotate by renaming, and keep packed copies out of the patterns)",
        paths=tuple(map(str, [*doubtful, *(entry.path for entry in look.passed_over)])),
    )


def _passed_over(files: Sequence[Seen]) -> SourceChanged:
    lines = "".join(f"\n  - {entry.path}" for entry in files)
    return SourceChanged(
        f"no pattern finds these files, begun and renamed since the last look; their rows would be passed over:{lines}",
        action="name them with --file as well (or with a pattern that finds renamed files too), or read them with --changed new; "
        "move them away if their rows are known",
        paths=tuple(str(entry.path) for entry in files),
    )


def _reason(path: Path, position: FilePosition) -> str:
    read = f"{position.rows:,} rows, {position.offset:,} bytes"
    beginning = _Beginning(path)
    is_whole = beginning.is_of(position)
    if position.has_name(path) or not (is_whole or beginning.is_like(position)):
        return f"not the file that was read under this name before ({read}), or it was written anew"
    gone = "" if position.seen.continues_in(Path(position.path)) else ", which is gone"
    return f"has the {'content' if is_whole else 'beginning'} of {position.path} ({read}){gone}"
