"""One embedded broker: start, stop, kill, find again."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from onceflow.broker import settings
from onceflow.broker.home import BrokerHome, BrokerState
from onceflow.broker.installation import LOCKED, Installation
from onceflow.broker.process import BrokerProcess, new_cluster_id
from onceflow.broker.readiness import wait_until_ready
from onceflow.errors import BrokerStartError, SetupError

_log = logging.getLogger("onceflow.broker")

TRANSACTION_VERSIONS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What is known of the broker in a directory; ``started_at`` is in seconds since 1970."""

    directory: Path
    running: bool
    bootstrap_servers: str | None = None
    pid: int | None = None
    started_at: float | None = None
    transaction_version: int | None = None


class EmbeddedBroker:
    """A real Kafka node (KRaft, broker and controller in one process) that listens on 127.0.0.1 alone.

    ``directory`` holds its data, settings, log and the ports once chosen: a later start in the same directory is the
    same broker at the same address. ``transaction_version`` (1 or 2, KIP-890; 0: none, as in a cluster from before 4.0)
    is fixed at the first start. ``config`` are Kafka's broker settings, over those of
    ``onceflow.broker.settings.DEFAULTS``. ``heap_mb`` is the JVM's largest heap in MiB. A broker ends with the process that
    started it, even if that is killed; ``detached`` makes it outlive us. ``installation`` is the Kafka to be run, that of the
    locked jars by default; it is not remembered in the directory.

    Works as a context manager. One thread at a time; does not pickle; runs on the driver.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        port: int | None = None,
        transaction_version: int = 2,
        heap_mb: int = 512,
        config: Mapping[str, str] | None = None,
        detached: bool = False,
        start_timeout_s: float = 180,
        installation: Installation = LOCKED,
    ) -> None:
        if transaction_version not in TRANSACTION_VERSIONS:
            raise BrokerStartError(f"transaction_version is {transaction_version}, and may be 0, 1 or 2")
        self._home = BrokerHome(Path(directory))
        self._port = port
        self._transaction_version = transaction_version
        self._config = dict(config or {})
        self._start_timeout_s = start_timeout_s
        self._process = BrokerProcess(
            self._home,
            heap_mb=heap_mb,
            detached=detached,
            start_timeout_s=start_timeout_s,
            installation=installation,
        )

    @classmethod
    def attach(cls, directory: str | Path) -> Self:
        """The broker that another process runs in ``directory``, to use or to stop. Raises SetupError if none runs."""
        status = cls(directory).status()
        if not status.running:
            raise SetupError(
                f"no broker runs in {status.directory}",
                action="start one first: onceflow broker start",
                directory=str(status.directory),
            )
        version = 2 if status.transaction_version is None else status.transaction_version
        return cls(directory, transaction_version=version, detached=True)

    # What is known

    @property
    def directory(self) -> Path:
        return self._home.directory

    @property
    def is_running(self) -> bool:
        return self._home.is_running()

    @property
    def bootstrap_servers(self) -> str:
        """``127.0.0.1:<port>``. Raises SetupError before the first start, when no port is chosen."""
        state = self._home.read_state()
        if state is None:
            raise SetupError(f"no broker was started in {self.directory} yet", action="start it first")
        return _address(state)

    @property
    def pid(self) -> int | None:
        """The process id of the broker; None if it does not run."""
        return self.status().pid

    def status(self) -> BrokerStatus:
        """What is known of the broker in this directory, whichever process started it."""
        running = self._home.is_running()
        state = self._home.read_state()
        if state is None:
            return BrokerStatus(self.directory, running)
        pid, started_at = (state.pid, state.started_at) if running else (None, None)
        return BrokerStatus(self.directory, running, _address(state), pid, started_at, state.transaction_version)

    # Starting

    def start(self) -> Self:
        """Start the broker and wait until it, its group coordinator and its transaction coordinator can be used.

        The storage is formatted at the first start. Raises BrokerStartError (with the end of the broker's log) if it
        dies, is not ready in time, its port is taken or a broker runs here already; JavaError; SetupError if a jar
        cannot be had.
        """
        began = time.monotonic()
        with self._home.locked() as lock:
            state = self._chosen_state()
            properties = self._write_settings(state)
            self._home.write_state(state)
            if not self._home.is_formatted:
                self._process.format(new_cluster_id(), state.transaction_version)
            pid = self._process.spawn(lock)
            self._home.write_state(replace(state, pid=pid, started_at=time.time()))
        try:
            lack = wait_until_ready([state.port], properties, self._home.is_running, self._start_timeout_s)
            if lack:
                raise self._process.start_error(lack)
        except BaseException:
            self.kill()
            raise
        _log.info("broker %s started in %.1f s, pid %d", _address(state), time.monotonic() - began, pid)
        return self

    def _chosen_state(self) -> BrokerState:
        """The ports and the transaction version of this start: what is remembered, else what is asked for or free."""
        known = self._home.read_state()
        if known and self._home.is_formatted and known.transaction_version != self._transaction_version:
            raise BrokerStartError(
                f"the broker in {self.directory} has transaction.version={known.transaction_version}, "
                f"not {self._transaction_version}",
                action="start it with its own version, or take another directory",
            )
        ports = (known.port, known.controller_port) if known else settings.free_ports(2)
        port, controller_port = self._port or ports[0], ports[1]
        taken = [each for each in (port, controller_port) if not settings.is_free(each)]
        if taken:
            raise BrokerStartError(
                f"port {taken[0]} of {settings.HOST} is taken by another process",
                action=f"end that process, or take another port or directory than {self.directory}",
                port=taken[0],
            )
        return BrokerState(port, controller_port, self._transaction_version)

    def _write_settings(self, state: BrokerState) -> Mapping[str, str]:
        place = settings.Place(state.port, state.controller_port)
        return self._process.write_settings(settings.server_properties(self._home.data, place, self._config))

    # Ending

    def stop(self, timeout_s: float = 20) -> None:
        """Stop the broker, if it runs, in an orderly way; kill it if it is still there after ``timeout_s`` seconds."""
        self._process.stop(timeout_s)

    def kill(self) -> None:
        """Kill the broker (SIGKILL), so that it cannot finish anything, and wait until it is gone."""
        self._process.kill()

    def restart(self) -> Self:
        """Stop and start again at the same address."""
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _address(state: BrokerState) -> str:
    return f"{settings.HOST}:{state.port}"
