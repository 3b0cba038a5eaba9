"""Spark's checkpoint directory, looked at from outside: whose it is, how far it got, and how to set it aside.

Over Hadoop's file systems, so that what Spark can write (local paths, hdfs:, s3a:, …) can be looked at here as well.

What it survives::

    the machine loses its power; offsets/85 was created and renamed, and its content never synchronised: it is empty, or cut off
    Spark cannot start on it, whatever is done. That is told as a conflict, for which there is a way out: a resume from the
    committed offsets, or a restart, which set the checkpoint aside and must not stumble over that entry either
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from onceflow.pipeline.last_driver import LOCK
from onceflow.pipeline.local_checkpoint import planned_ms, source_offsets
from onceflow.transaction.progress import digest_of

REHEARSALS = "_rehearsals"
"""Where standbys on a cluster have the checkpoints of their rehearsals."""
COMMITS = "commits"
_VERSION = re.compile(r"v\d+")
_DAMAGED = "org.apache.hadoop.fs.ChecksumException"


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Whose a checkpoint is: its query, the newest batch planned in it (-1: none yet), and how many sources that names.

    A source counts once for every branch of the plan that reads it; None before the first batch. Of the newest two batches,
    ``ends``: digests of their end offsets, and ``planned_ms``: when they were planned (since the epoch; 0: not told), by batch.
    ``topics``: those of each Kafka source, in the order of the sources. ``damaged`` names the file that cannot be read, if there
    is one; what it would have told is missing. ``has_state``: that of aggregations or joins is kept beside it, which is looked
    at only where a commit entry is damaged.
    """

    query_id: str
    last_batch: int
    sources: int | None
    ends: Mapping[int, str] = field(default_factory=dict)
    topics: tuple[frozenset[str], ...] = ()
    damaged: str = ""
    has_state: bool = False
    planned_ms: Mapping[int, int] = field(default_factory=dict)

    @property
    def can_be_mended(self) -> bool:
        """Without its newest commit entry Spark runs that batch again, or goes on behind it where the next one is planned.

        That it cannot where there is state: which state the next batch goes on from stands in that entry.
        """
        log, _, batch = self.damaged.partition("/")
        return log == COMMITS and (not self.has_state or self.last_batch == int(batch))


class Checkpoint:
    """One checkpoint directory. Runs on the driver."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001  Hadoop's file systems have no other way in
        self._make = jvm.org.apache.hadoop.fs.Path
        self._io: Any = jvm.org.apache.commons.io.IOUtils
        self._path = self._make(location)
        self._files = self._path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        self.location = location

    def state(self) -> CheckpointState | None:
        """None where no query has begun."""
        metadata = self._make(self._path, "metadata")
        if not self._files.exists(metadata):
            return None
        last = self._last_batch()
        query_id = self._query_id(metadata)
        if query_id is None:
            return CheckpointState("", last, None, damaged="metadata")
        if last < 0:
            return CheckpointState(query_id, last, None)
        entries = {batch: entry for batch in (last - 1, last) if (entry := self._entry(batch)) is not None}
        planned = {batch: offsets for batch, entry in entries.items() if (offsets := _offsets_of(entry)) is not None}
        ends = {batch: digest_of(offsets) for batch, offsets in planned.items()}
        times = {batch: planned_ms(entries[batch]) for batch in planned}
        newest = planned.get(last)
        if newest is None:
            return CheckpointState(query_id, last, None, ends, damaged=f"offsets/{last}", planned_ms=times)
        topics = tuple(frozenset(offsets or ()) for offsets in newest)
        damaged = self._damaged_commit()
        has_state = damaged != "" and bool(self.entries("state"))  # no listing more at each start
        return CheckpointState(query_id, last, len(newest), ends, topics, damaged, has_state, times)

    @property
    def has_batches(self) -> bool:
        """Whether a batch was planned in it."""
        return self._last_batch() >= 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it, but what standbys rehearse and a driver's lock, which nobody would look for."""
        return not {*self._names(self._path)} - {REHEARSALS, LOCK}

    @property
    def has_finished(self) -> bool:
        """Whether a batch of it has ended: it was committed, whatever the cluster still knows."""
        return self._newest(COMMITS) >= 0

    def set_aside(self, why: str) -> str | None:
        """Renames the directory, so that the next query begins a new one. The new name; None if there was nothing in it."""
        if self.is_empty:
            return None
        number = 1
        while self._files.exists(target := self._make(f"{self.location.rstrip('/')}.before-{why}-{number}")):
            number += 1
        if not self._files.rename(self._path, target):
            raise OSError(f"{self.location} cannot be renamed to {target}")
        return str(target)

    def entries(self, directory: str) -> list[str]:
        """The names in a directory of the checkpoint; none where there is no such directory."""
        return self._names(self._make(self._path, directory))

    def _names(self, path: Any) -> list[str]:
        if not self._files.exists(path):
            return []
        return [str(entry.getPath().getName()) for entry in self._files.listStatus(path)]

    def remove(self, name: str) -> None:
        """Removes a file or a directory of the checkpoint, with all that is in it."""
        self._files.delete(self._make(self._path, name), True)

    def _last_batch(self) -> int:
        return self._newest("offsets")

    def _newest(self, log: str) -> int:
        return max((int(name) for name in self.entries(log) if name.isdecimal()), default=-1)

    def _damaged_commit(self) -> str:
        """The newest entry of the commit log if Spark could not read it, which it does first of all; else empty."""
        newest = self._newest(COMMITS)
        if newest < 0:
            return ""
        name = f"{COMMITS}/{newest}"
        try:
            version, _, metadata = self._read(self._make(self._path, name)).partition("\n")
            json.loads(metadata or "{}")
        except ValueError:
            return name
        return "" if _VERSION.fullmatch(version) else name

    def _query_id(self, metadata: Any) -> str | None:
        """None where it cannot be read."""
        try:
            return str(json.loads(self._read(metadata))["id"])
        except (ValueError, KeyError, TypeError):
            return None

    def _entry(self, batch_id: int) -> str | None:
        """Of the offset log. None where the batch is not planned, or its entry cannot be read."""
        path = self._make(self._path, f"offsets/{batch_id}")
        try:
            return self._read(path) if self._files.exists(path) else None
        except ValueError:
            return None

    def _read(self, path: Any) -> str:
        """Raises ValueError where the file is not what was written, by the checksum that Hadoop keeps beside it."""
        stream = self._files.open(path)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == _DAMAGED:
                raise ValueError(str(path)) from error
            raise
        finally:
            stream.close()


def _offsets_of(entry: str) -> list[Any] | None:
    """None where the entry is cut off."""
    try:
        return source_offsets(entry)
    except ValueError:
        return None
