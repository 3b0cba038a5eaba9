"""A checkpoint in a local directory, read without Spark: whose it is, and what each batch planned in it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceflow.errors import ConfigurationError
from onceflow.transaction.progress import digest_of

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch of the offset log. ``end``: the digest of its source end offsets, as the progress record keeps it.

    ``end`` is empty where the entry is of another format; ``finished``: Spark's commit log has the batch too; ``at`` is when it
    was planned, in seconds since 1970, and ``planned_ms`` the same in ms, as Spark noted it (0: it did not).
    """

    end: str
    finished: bool
    at: float
    planned_ms: int = 0


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """The query that a checkpoint is of, and the batches that are planned in it."""

    location: Path
    query_id: str
    planned: Mapping[int, Planned]

    @classmethod
    def read(cls, location: Path) -> LocalCheckpoint | None:
        """None where no query has begun. Raises ConfigurationError where it cannot be read."""
        try:
            metadata = _entry(location / "metadata")
            return None if metadata is None else cls(location, str(json.loads(metadata[0])["id"]), _planned(location))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"the checkpoint {location} cannot be read: {error}",
                action="ask as the user that runs the pipeline; or leave the checkpoint out: onceflow status NAME "
                "--bootstrap-servers SERVERS",
            ) from error


def local_path(checkpoint: str) -> Path | None:
    """The directory of a checkpoint (a path or a URI); None where it is on no disk of this machine. Hadoop knows no escapes."""
    path = re.sub(r"^file:(//)?(?=/[^/])", "", checkpoint)
    return Path(path) if path.startswith("/") else None


def source_offsets(entry: str) -> list[Any]:
    """Of an entry of the offset log: a version, a line of metadata, and a line for each source ("-": it has none yet).

    Raises ValueError where it is cut off, unless that is between two sources.
    """
    _, metadata, *sources = entry.split("\n")
    if not sources:
        raise ValueError("it names no source")
    json.loads(metadata or "{}")
    return [None if line == "-" else json.loads(line) for line in sources]


def planned_ms(entry: str) -> int:
    """When the batch of an entry of the offset log was planned, in ms since the epoch; 0 where it does not tell."""
    try:
        return int(json.loads(entry.split("\n")[1])["batchTimestampMs"])
    except (IndexError, KeyError, TypeError, ValueError):
        return 0


def end_of_entry(entry: str) -> str:
    """The digest of an entry of the offset log; empty where it is of another format."""
    if not entry.startswith(f"{_VERSION}\n"):
        return ""
    try:
        return digest_of(source_offsets(entry))
    except ValueError:
        return ""


def _planned(location: Path) -> dict[int, Planned]:
    """The commit log is looked at last: what is finished by then was planned before."""
    entries = {number: _entry(location / "offsets" / str(number)) for number in numbers(location / "offsets")}
    finished = numbers(location / "commits")
    return {
        number: Planned(end_of_entry(found[0]), number in finished, found[1], planned_ms(found[0]))
        for number, found in entries.items()
        if found is not None
    }


def _entry(path: Path) -> tuple[str, float] | None:
    """None where it is gone: a running query removes old ones."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None


def numbers(log: Path) -> list[int]:
    """The numbered files of one of Spark's logs, in order; none where there is no such log: it may go while we look."""
    try:
        return sorted(int(each.name) for each in log.iterdir() if each.name.isdecimal())
    except (FileNotFoundError, NotADirectoryError):
        return []
