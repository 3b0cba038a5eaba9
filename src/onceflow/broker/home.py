"""The broker's directory: its files, what is remembered between runs, and the lock that says whether it runs.

The lock is the truth about running. It is an advisory lock (flock) on an open file that the broker's process inherits,
so the kernel drops it at the very moment that process is gone, however it died: no stale pid is ever believed, and a
pid read under a held lock is the broker's. The file ``broker.json`` carries what another process needs to find and to
stop the broker.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from onceflow.broker.log_text import end_of_log
from onceflow.errors import BrokerStartError

_POLL_S = 0.01
# A look at the lock takes it for an instant; a start waits that long before it believes that a broker runs.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class BrokerState:
    """What ``broker.json`` remembers; ``pid`` and ``started_at`` (seconds since 1970) are those of the last start."""

    port: int
    controller_port: int
    transaction_version: int
    pid: int | None = None
    started_at: float | None = None


class BrokerHome:
    """Paths, state and lock of one broker's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.data = self.directory / "data"
        self.properties = self.directory / "server.properties"
        self.logging = self.directory / "log4j2.properties"
        self.log = self.directory / "broker.log"
        self.output = self.directory / "broker.out"
        self.scratch = self.directory / "broker.tmp"
        self._state = self.directory / "broker.json"
        self._lock = self.directory / "lock"

    @property
    def is_formatted(self) -> bool:
        """Whether the storage was formatted; the tool writes this file last."""
        return (self.data / "meta.properties").exists()

    def read_state(self) -> BrokerState | None:
        """The remembered state; None in a directory where no broker ever ran."""
        try:
            return BrokerState(**json.loads(self._state.read_text()))
        except FileNotFoundError:
            return None
        except (TypeError, ValueError) as error:
            raise BrokerStartError(
                f"{self._state} is not a state file of this version: {error}",
                action="delete it; the broker then chooses new ports and keeps its data",
                path=str(self._state),
            ) from error

    def write_state(self, state: BrokerState) -> None:
        """Replace the remembered state in one step."""
        fresh = self._state.with_suffix(".json.new")
        fresh.write_text(json.dumps(asdict(state), indent=1) + "\n")
        fresh.replace(self._state)

    def is_running(self) -> bool:
        """Whether a broker runs in this directory, or is being started by some process."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until no broker runs here; False if one still does after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock and give its file descriptor, for the broker's process to inherit.

        Raises BrokerStartError if a broker runs here already, or another process is starting one.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        deadline = time.monotonic() + _LOOK_S
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise self._already_running()
            time.sleep(_POLL_S)

    def _already_running(self) -> BrokerStartError:
        state = self.read_state()
        who = f" (pid {state.pid}, port {state.port})" if state else ""
        return BrokerStartError(
            f"a broker runs already in {self.directory}{who}",
            action="use that one (EmbeddedBroker.attach), stop it, or take another directory",
            directory=str(self.directory),
            pid=state.pid if state else None,
        )

    def end_of_log(self, lines: int = 15) -> str:
        """What the broker said last, on its output and in its log, and what it complained of before."""
        return "\n".join(_end(self.output, lines) + _end(self.log, lines))


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end(path: Path, lines: int) -> list[str]:
    return end_of_log(path.read_text(errors="replace"), lines) if path.exists() else []
