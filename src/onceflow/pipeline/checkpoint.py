"""Spark's checkpoint directory, looked at from outside: whose it is, how far it got, and how to set it aside.

Over Hadoop's file systems, so that what Spark can write (local paths, hdfs:, s3a:, …) can be looked at here as well.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Whose a checkpoint is: its query, the newest batch planned in it (-1: none yet), and how many sources that names.

    A source counts once for every branch of the plan that reads it; None before the first batch.
    """

    query_id: str
    last_batch: int
    sources: int | None


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
        return CheckpointState(json.loads(self._read(metadata))["id"], last, self._sources(last))

    def set_aside(self, why: str) -> str | None:
        """Renames the directory, so that the next query begins a new one. The new name; None if there was nothing."""
        if not self._files.exists(self._path):
            return None
        number = 1
        while self._files.exists(target := self._make(f"{self.location.rstrip('/')}.before-{why}-{number}")):
            number += 1
        if not self._files.rename(self._path, target):
            raise OSError(f"{self.location} cannot be renamed to {target}")
        return str(target)

    def remove(self) -> None:
        """Removes the directory with all that is in it; one that is not there is no mistake."""
        self._files.delete(self._path, True)

    def remove_left_behind(self, older_s: float) -> None:
        """Removes what lies in the directory and was last changed more than so many seconds ago, by the file system's clock."""
        if not self._files.exists(self._path):
            return
        for entry in self._files.listStatus(self._path):
            if time.time() - entry.getModificationTime() / 1000 > older_s:
                self._files.delete(entry.getPath(), True)

    def remove_if_empty(self) -> None:
        """Removes the directory if nothing is in it."""
        if self._files.exists(self._path) and not self._files.listStatus(self._path):
            self._files.delete(self._path, False)

    def _last_batch(self) -> int:
        offsets = self._make(self._path, "offsets")
        if not self._files.exists(offsets):
            return -1
        names = [str(entry.getPath().getName()) for entry in self._files.listStatus(offsets)]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _sources(self, batch_id: int) -> int | None:
        """An entry of the offset log is a version, a line of metadata, and a line for each source."""
        if batch_id < 0:
            return None
        return len(self._read(self._make(self._path, f"offsets/{batch_id}")).splitlines()) - 2

    def _read(self, path: Any) -> str:
        stream = self._files.open(path)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()
