"""How far a file was read, and what it looked like: the JSON text that is committed with its rows.

A name does not say which file it is, since rotation renames; device and inode do not either, since a deleted file's inode is
given to the next one, and since a file can be written anew in place. So its beginning and the bytes before the position are
remembered as well::

    app.log is read up to byte 5000 and emptied (copytruncate, or ``> app.log``), then grows to 9000 bytes
    going on at 5000 would skip its first rows in silence; the bytes before 5000 differ, and it is seen

    report.csv is read to its end and deleted; the next day's report.csv has the very same rows, and is given the same inode
    they are new rows; the time when the file was made differs, and it is seen
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from onceflow.ingest.born import born_ns
from onceflow.ingest.later_version import check_known

WINDOW_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Print:
    """What a file's first ``size`` bytes look like: digests of their first and last ``WINDOW_BYTES``."""

    size: int
    head: str
    tail: str

    @classmethod
    def of(cls, file: int, size: int) -> Print | None:
        """The print of the first ``size`` bytes of an open file (its descriptor); None if it is shorter than that."""
        length = min(size, WINDOW_BYTES)
        head, tail = os.pread(file, length, 0), os.pread(file, length, size - length)
        return cls(size, digest(head), digest(tail)) if len(head) == len(tail) == length else None

    def continues_in(self, path: Path) -> bool:
        """Whether the file of that name, if there is one, begins with what was seen."""
        with suppress(FileNotFoundError), path.open("rb") as file:
            return self.is_of(file.fileno())
        return False

    def is_of(self, file: int) -> bool:
        """The same of an open file, whatever its name is by now."""
        return Print.of(file, self.size) == self


def digest(data: bytes) -> str:
    """Short, and far too long for chance to repeat it."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class FilePosition:
    """``offset`` bytes (unpacked) and ``rows`` rows were read; ``rows`` counts lines in JSON Lines, blank ones too.

    ``seen`` covers the bytes before ``offset``; of a packed or a Parquet file all that there was. ``source`` names the file
    in its events and stays when it is renamed; ``path`` is where it was last. ``ended``: there is no more in a file that came
    as a whole. ``replaced``: the user said that its name was given to another file, so nothing is expected of it any more.
    ``born_ns``: when it was made; 0 if nobody knows.
    """

    source: str
    path: str
    device: int
    inode: int
    seen: Print
    offset: int = 0
    rows: int = 0
    ended: bool = False
    replaced: bool = False
    born_ns: int = 0

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> FilePosition:
        """From JSON. Raises ConfigurationError for what a later version wrote."""
        fields: dict[str, Any] = json.loads(text)
        check_known(cls, fields, fields["source"])
        check_known(Print, fields["seen"], fields["source"])
        return cls(**{**fields, "seen": Print(**fields["seen"])})

    def has_name(self, path: Path) -> bool:
        """Whether that is where it was last, however its directory is spelled."""
        was = Path(self.path)
        return was == path or (was.name == path.name and was.parent.resolve() == path.parent.resolve())

    def _is_beside(self, path: Path) -> bool:
        was = Path(self.path).parent
        return was == path.parent or was.resolve() == path.parent.resolve()

    def was_rotated(self) -> bool:
        """Whether a rotation hands its name on: it is not the one under which it was found, or a numbered one beside its log."""
        now = Path(self.path)
        log = now.with_name(log_name(now))
        return not self.has_name(self.found_as) or (log != now and log.exists())

    @property
    def found_as(self) -> Path:
        """The name under which it was found first."""
        uri, _, _ = self.source.partition("#")
        return Path(os.fsdecode(unquote_to_bytes(uri.removeprefix("file://"))))

    def is_at(self, path: Path, status: os.stat_result) -> bool:
        """Whether that may be this file, by all but its bytes.

        A restarted machine may number its devices in another order, so in its own directory the device does not count::

            app.log is read; the machine goes down, app.log is renamed on its way up, and the disk has another number
            by the device it would be gone, and app.log.1, which no pattern finds, another file
        """
        is_here = self.device == status.st_dev or self._is_beside(path)
        return is_here and self.inode == status.st_ino and (not self.born_ns or born_ns(path) in (self.born_ns, 0))


def status_of(path: Path) -> os.stat_result | None:
    """Of what the name leads to; None where that is nothing, or a link to itself."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def log_name(path: Path) -> str:
    """The name without the number, the date or the word that a rotation has put behind it."""
    return re.sub(r"([.-][0-9-]+|\.old)$", "", path.name)


def goes_on(name: str, path: Path) -> bool:
    """Whether the path is named as a rotation of ``name``, or a packed copy of it, is."""
    return path.name.startswith((f"{name}.", f"{name}-"))


def names_rotation(name: str, path: Path) -> bool:
    """Whether a rotation gives such a name to ``name``: with something behind it, or before its suffix (``app.1.log``)."""
    stem, dot, suffix = name.rpartition(".")
    ends = path.name.startswith((f"{stem}.", f"{stem}_", f"{stem}-")) and path.name.endswith(dot + suffix)
    return goes_on(name, path) or (bool(stem) and ends and len(path.name) > len(name) + 1)


def new_position(path: Path, status: os.stat_result, seen: Print, taken: set[str]) -> FilePosition:
    """Nothing read yet. The source is not the bare name: the next file of that name has other events."""
    base = f"{path.absolute().as_uri()}#{status.st_dev:x}-{status.st_ino:x}-{seen.head}"
    source, again = base, 2
    while source in taken:
        source, again = f"{base}-{again}", again + 1
    return FilePosition(source, str(path), status.st_dev, status.st_ino, seen, born_ns=born_ns(path))
