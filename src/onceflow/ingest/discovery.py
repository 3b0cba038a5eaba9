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

    app.log.1 is packed to app.log.1.gz, or the files are moved to another disk
    other inodes with the same content: reading them would repeat everything, so they are refused too
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from onceflow.errors import SourceChanged
from onceflow.ingest.content import open_content
from onceflow.ingest.file_position import WINDOW_BYTES, FilePosition, Print, digest, new_position
from onceflow.ingest.passed_over import passed_over
from onceflow.ingest.watched import File, Watched, log_name

_LOOKS = 3

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
    ``replaced``. Raises SourceChanged with every file that cannot be told.
    """
    watched = watched or Watched()
    for _ in range(_LOOKS):
        look = _look(patterns, known, watched)
        if not any(look.suspects.values()) and not look.passed_over:
            break
    else:
        if not accept_new:
            raise _changed(look.suspects) if any(look.suspects.values()) else _passed_over(look.passed_over)
    watched.note({entry.file: entry.path for entry in [*look.unknown, *look.passed_over]}, look.files)
    given_up = {p.source: replace(p, replaced=True) for doubtful in look.suspects.values() for p in doubtful}
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
    seen = list(_distinct([*_matching(patterns), *_renamed(known)]))
    seen += _distinct(watched.renamed({entry.file for entry in seen}))
    matched = {entry.path: position for entry in seen if (position := _same_file(entry, known))}
    begun = [replace(position, path=str(path)) for path, position in matched.items()]
    missing = [p for p in known.values() if not p.replaced and p.source not in {found.source for found in begun}]
    unknown = [entry for entry in seen if entry.path not in matched]
    suspects = {entry.path: list(_suspects(entry, missing, watched)) for entry in unknown}
    files = {entry.file for entry in seen}
    renamed = [(Path(position.path), path) for path, position in matched.items() if position.path != str(path)]
    return _Look(files, begun, unknown, suspects, sorted(_distinct(_beside(renamed, files)), key=_age))


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


def _matching(patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from (Path(name).absolute() for name in sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207  absolute patterns too


def _renamed(known: Known) -> Iterator[Path]:
    """Files beside the places where known ones were last, for those that are there under another name.

    An inode is given to another file, of whatever program, once its own is deleted: it must be one that was made at that time.
    """
    by_inode: dict[int, list[FilePosition]] = {}
    for position in known.values():
        by_inode.setdefault(position.inode, []).append(position)
    for directory in sorted({Path(position.path).parent for position in known.values()}):
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(directory):
                if entry.inode() in by_inode and _is_at(by_inode[entry.inode()], entry):
                    yield Path(entry.path)


def _is_at(positions: Iterable[FilePosition], entry: os.DirEntry[str]) -> bool:
    with suppress(FileNotFoundError):  # renamed since the directory was read: the next look finds it
        status = entry.stat(follow_symlinks=False)
        return stat.S_ISREG(status.st_mode) and any(each.is_at(Path(entry.path), status) for each in positions)
    return False


def _distinct(paths: Iterable[Path]) -> Iterator[Seen]:
    """Each regular file once, by whatever names and links it was found."""
    files = set()
    for path in paths:
        try:
            entry = Seen(path, path.stat())
        except FileNotFoundError:
            continue  # renamed since the directory was read: the next look finds it
        if path.is_file() and entry.file not in files:
            files.add(entry.file)
            yield entry


def _age(entry: Seen) -> tuple[int, str]:
    """Rotated files have the higher number and the older rows, so the time decides and not the name."""
    return entry.status.st_mtime_ns, str(entry.path)


def _same_file(entry: Seen, known: Known) -> FilePosition | None:
    found = [p for p in known.values() if p.is_at(entry.path, entry.status) and p.seen.continues_in(entry.path)]
    return max(found, key=lambda position: position.offset, default=None)


def _suspects(entry: Seen, missing: Iterable[FilePosition], watched: Watched) -> Iterator[FilePosition]:
    """What the file may be. One that was there before, beside those that are missing now, may have got the name of one::

    app.log is read and renamed to app.log.1; a new app.log begins and stays empty
    the next rotation replaces app.log.1 by it: that it has this name now says nothing
    an ingest that begins only now remembers nothing of it: that an empty file has a number says nothing either
    """
    was_there = watched.remembers(entry.file, entry.path)
    is_quiet_day = not entry.status.st_size and log_name(entry.path) != entry.path.name
    for position in missing:
        is_at = position.is_at(entry.path, entry.status)
        has_its_name = position.has_name(entry.path) and not is_quiet_day and (is_at or not was_there)
        was_overwritten = is_at and position.born_ns  # without a birth, it may be another one that got its inode
        if has_its_name or was_overwritten or _has_content(entry, position):
            yield position


def _has_content(entry: Seen, missing: FilePosition) -> bool:
    if missing.seen.continues_in(entry.path):
        return True
    length = min(missing.seen.size, WINDOW_BYTES)  # unpacked, it may still be the file that was read as plain text
    try:
        with entry.path.open("rb", buffering=0) as file:
            return digest(open_content(file).read(length)) == missing.seen.head
    except OSError:
        return False


def _changed(suspects: Mapping[Path, list[FilePosition]]) -> SourceChanged:
    doubtful = {path: positions for path, positions in suspects.items() if positions}
    lines = [f"{path}: {_reason(path, positions[0])}" for path, positions in doubtful.items()]
    return SourceChanged(
        "cannot tell whether these files hold new rows:" + "".join(f"\n  - {line}" for line in lines),
        action="put the old file back, or take the file out of the patterns if its rows are known; --changed new reads all of "
        "them from the beginning as new files (rotate by renaming, and keep packed copies out of the patterns)",
        paths=tuple(map(str, doubtful)),
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
    if position.has_name(path):
        return f"not the file that was read under this name before ({read}), or it was written anew"
    return f"has the content of {position.path} ({read}), which is gone"
