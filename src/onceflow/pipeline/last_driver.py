"""Whether the driver before is dead: while it lives it holds a lock in the checkpoint, which the kernel lets go with the process.

Fencing needs no Spark (``early_fence``), and a driver takes some twenty seconds for its own::

    the driver is killed in the middle of a batch, and a service manager starts another one at once
    until that fences, or transaction_timeout is over, readers stop at what the dead one left open

But who starts may not get as far as running, and must not end a driver that is at work::

    the driver before lives     it holds the lock, so the start fences when it runs
    it has died, by whatever    the lock is free: what it left is ended at once, and nothing is lost if the start fails then
    it ended in order           it has left nothing open, and no mark in the lock
    another one fenced it       what is open is that one's: no mark either

The mark is of one file of one host, a name and a cluster: a copy of a checkpoint is nobody's, and one that hosts share is of one.
One start takes it: a second one finds it gone, and does not end the first. A checkpoint that is no local directory tells nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from onceflow.config import PlanFile
from onceflow.errors import Fenced
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.local_checkpoint import local_path

LOCK = "_driver"
"""Its name in the checkpoint."""
_LONGEST = 65_536


def lock_of(file: PlanFile, settings: ClusterSettings) -> DriverLock:
    """That of the plan's pipeline on this cluster."""
    return DriverLock(local_path(file.checkpoint), f"{file.plan.name} {settings.bootstrap_servers}")


class DriverLock:
    """Of one pipeline: ``directory`` is its checkpoint's, if that is local; ``pipeline`` tells it from all others.

    A context: at its end the lock is let go, and where that is in order the mark is removed. What cannot be locked or written is
    left alone: then a start fences when it runs.
    """

    def __init__(self, directory: Path | None, pipeline: str) -> None:
        self._path = directory and directory / LOCK
        self._pipeline = pipeline
        self._deciding = threading.Lock()
        self._is_taken = False
        self._held: int | None = None  # the file
        self._is_over = False

    def take_from_dead(self) -> bool:
        """Whether a driver of this pipeline died here, no other one is at work, and no start has been told so before."""
        if self._path is None:
            return False
        try:
            file = os.open(self._path, os.O_RDWR)
        except OSError:
            return False
        with contextlib.suppress(OSError), os.fdopen(file, "r+b", buffering=0):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.pread(file, _LONGEST, 0) == self._mark(file):
                os.ftruncate(file, 0)
                return True
        return False

    def take(self) -> None:
        """As soon as the driver before lets it go, which is waited for elsewhere. The directory has to be there."""
        if self._path is None or self._is_taken:
            return
        self._is_taken = True
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            threading.Thread(target=self._wait, args=(file,), name="onceflow-lock", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        in_order = kind is None or issubclass(kind, Fenced)
        with self._deciding:
            self._is_over = True
            if self._held is not None:
                with contextlib.suppress(OSError):
                    if in_order:
                        os.ftruncate(self._held, 0)
                os.close(self._held)

    def _wait(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            os.close(file)
            return
        with self._deciding:
            if self._is_over:
                os.close(file)
                return
            self._held = file
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
                os.pwrite(file, self._mark(file), 0)

    def _mark(self, file: int) -> bytes:
        return f"{socket.gethostname()} {os.fstat(file).st_ino} {self._pipeline}\n".encode()
