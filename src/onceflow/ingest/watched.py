"""Files that were found and of which no row is committed yet: found again under another name in their directory.

::

    app.log is there, still empty, and the ingest waits for rows
    within half a second they are written, app.log is renamed to app.log.1, and a new app.log begins
    the pattern app.log finds the new one alone, and no position tells of the other: its rows would be passed over in silence

    a rotation happens while the names are read: app.log is the new one by the time when its birth is asked for
    so the birth counts if the name leads to the file that was found before and after it was asked for

    app.log is a link to today.log, which is empty; it is written, and app.log is pointed at tomorrow.log
    so where the file lies is remembered, not the name by which it was found

    app.log.1 is found in the directory and is app.log.2 when it is looked at
    so a file that is missing is remembered for some looks more

    app.log is found, and is empty; the ingest ends. Rows are written, app.log is renamed to app.log.1, and the ingest is started
    the first row of the name is still to come, so no position tells of the file. What was found is committed as well (``texts``)

    app.log.1 is refused for one of its rows, and the user corrects it; no pattern finds it by that name
    so a file that is refused is remembered as well. Whoever renames report.csv to report.csv.bad, to keep it out, is told again:
    it is out in another directory

    so is it where the editor, or ``sed -i``, moves another file there: which has been found by nobody
    whatever has the place of a remembered file that a rotation renamed, and is found by no pattern, is refused: its rows would be
    passed over in silence

    todo.csv has no row yet, and while nobody looks it becomes notes.txt, in the same directory
    of what an earlier process has found only a name that a rotation gives is taken for it
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from onceflow.ingest.born import born_ns
from onceflow.ingest.file_position import names_rotation, status_of
from onceflow.ingest.terms import FOUND

_MISSING_LOOKS = 20

File = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    """Where a file was last, links followed; when it was made (0: nobody knows), and for how many looks it is missing.

    ``found_as``: by what name a pattern has found it first (None: none has). ``restored``: an earlier process has found it.
    """

    path: Path
    found_as: Path | None
    born_ns: int
    missing: int = 0
    restored: bool = False

    def may_be(self, path: Path, file: File) -> bool:
        """An inode is given to another file once its own is deleted. So it is one that was made at the same time; where nobody
        knows that, one that lies in the same place or has a name as a rotation gives it.
        """
        if self.born_ns and not self.restored:
            return _born_ns(path, file) == self.born_ns
        has_its_name = path == self.path or names_rotation(self.path.name, path)
        return has_its_name and self.born_ns in (0, _born_ns(path, file))

    def is_taken_out(self, file: File) -> bool:
        """Whether the name by which an earlier process has found it still leads to it, and no pattern finds it any more."""
        return self.restored and self.found_as is not None and _regular_file(self.found_as) == file


@dataclass(slots=True)
class Watched:
    """The files by device and inode."""

    _files: dict[File, _Remembered] = field(default_factory=dict)

    def restore(self, texts: Iterable[str]) -> None:
        """What is committed, where this process has found nothing newer. A restarted machine may number its devices in another
        order, so the device is that of the directory.
        """
        for text in texts:
            fields = json.loads(text)
            path, found_as = Path(fields["path"]), fields["found_as"] and Path(fields["found_as"])
            directory = status_of(path.parent)
            file = directory.st_dev if directory else 0, int(fields["inode"])
            self._files.setdefault(file, _Remembered(path, found_as, int(fields["born_ns"]), restored=True))

    def texts(self) -> dict[str, str]:
        """What is to be committed, by key."""
        return {_key(file, was): _text(file, was) for file, was in self._files.items()}

    def forget(self, file: File) -> str:
        """It has a position from now on; gives its key, if it has one."""
        was = self._files.pop(file, None)
        return _key(file, was) if was is not None else ""

    def note(self, found: Mapping[File, Path], beside: Mapping[File, Path], there: Collection[File]) -> None:
        """``found`` are to be remembered, and those ``beside``, which no pattern finds; for some looks more those before, if
        they are not ``there`` at all.
        """
        missing = {
            file: replace(was, missing=was.missing + 1)
            for file, was in self._files.items()
            if file not in there and was.missing < _MISSING_LOOKS and not was.is_taken_out(file)
        }
        named = {file: self._remembered(file, path, path) for file, path in found.items()}
        self._files = missing | named | {file: self._remembered(file, path, None) for file, path in beside.items()}

    def _remembered(self, file: File, path: Path, found_as: Path | None) -> _Remembered:
        was, born = self._files.get(file), _born_ns(path, file)
        if was is None or born not in (0, was.born_ns):
            return _Remembered(path.resolve(), found_as, born)
        return _Remembered(path.resolve(), was.found_as, born or was.born_ns)

    def places_of_missing(self, there: Collection[File]) -> list[Path]:
        """Where those were that are not ``there`` any more; not where a pattern found one, which would find what is there now."""
        missing = [was for file, was in self._files.items() if file not in there]
        return [was.path for was in missing if was.found_as is None or was.found_as.resolve() != was.path]

    def renamed(self, found: Collection[File]) -> Iterator[tuple[Path, Path]]:
        """Where those were and are now that are not among ``found``, in the directory in which they were."""
        missing = {file: was for file, was in self._files.items() if file not in found and not was.is_taken_out(file)}
        inodes = {inode for _, inode in missing}
        for directory in sorted({was.path.parent for was in missing.values()}):
            with suppress(FileNotFoundError, NotADirectoryError):
                for entry in os.scandir(directory):
                    if entry.inode() in inodes and (was := _which(missing, Path(entry.path))) is not None:
                        yield was.path, Path(entry.path)


def _key(file: File, was: _Remembered) -> str:
    return f"{FOUND}{file[0]:x}-{file[1]:x}-{was.born_ns:x}"


def _text(file: File, was: _Remembered) -> str:
    """With a source, as positions have one: so an earlier version refuses it, and names what it does not know."""
    names = {"path": str(was.path), "found_as": was.found_as and str(was.found_as)}
    fields = {"source": was.path.as_uri(), **names, "inode": file[1], "born_ns": was.born_ns}
    return json.dumps(fields, separators=(",", ":"))


def _which(missing: Mapping[File, _Remembered], path: Path) -> _Remembered | None:
    file = _regular_file(path)
    was = missing.get(file)
    return was if was is not None and was.may_be(path, file) else None


def _regular_file(path: Path) -> File:
    """What the name leads to; nothing that is no file, such as a FIFO that has got the inode, nor what was renamed just now."""
    with suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return status.st_dev, status.st_ino
    return 0, 0


def _born_ns(path: Path, file: File) -> int:
    """When the file was made; 0 where nobody knows, or another one has the name by now."""
    if _regular_file(path) != file:
        return 0
    born = born_ns(path)
    return born if _regular_file(path) == file else 0
