"""One embedded broker: start, stop, kill, find again."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from onceflow.broker import guard, settings
from onceflow.broker.home import BrokerHome, BrokerState, without_stack
from onceflow.broker.java_tool import java_command, run_java_tool
from onceflow.broker.readiness import wait_until_ready
from onceflow.errors import BrokerStartError, SetupError

_log = logging.getLogger("onceflow.broker")

TRANSACTION_VERSIONS = (1, 2)
_KILL_TIMEOUT_S = 30


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
    same broker at the same address. ``transaction_version`` (1 or 2, KIP-890) is fixed at the first start. ``config``
    are Kafka's broker settings, over those of ``onceflow.broker.settings.DEFAULTS``. ``heap_mb`` is the JVM's largest
    heap in MiB. A broker ends with the process that started it, even if that is killed; ``detached`` makes it outlive
    us.

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
        start_timeout_s: float = 60,
    ) -> None:
        if transaction_version not in TRANSACTION_VERSIONS:
            raise BrokerStartError(f"transaction_version is {transaction_version}, and may be 1 or 2")
        self._home = BrokerHome(Path(directory))
        self._port = port
        self._transaction_version = transaction_version
        self._heap_mb = heap_mb
        self._config = dict(config or {})
        self._detached = detached
        self._start_timeout_s = start_timeout_s
        self._guard: subprocess.Popen[str] | None = None

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
        return cls(directory, transaction_version=status.transaction_version or 2, detached=True)

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
                self._format(state)
            pid = self._spawn(lock)
            self._home.write_state(replace(state, pid=pid, started_at=time.time()))
        try:
            lack = wait_until_ready(state.port, properties, self._home.is_running, self._start_timeout_s)
            if lack:
                raise self._start_error(lack)
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
        properties = settings.server_properties(self._home.data, state.port, state.controller_port, self._config)
        self._home.properties.write_text(settings.as_properties(properties))
        self._home.logging.write_text(settings.logging_properties(self._home.log))
        return properties

    def _format(self, state: BrokerState) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        feature = f"transaction.version={state.transaction_version}"
        # Attached to its option: one id in 64 begins with a hyphen, and would be taken for an option itself.
        arguments = ["format", f"--cluster-id={cluster_id}", "-c", str(self._home.properties), "--feature", feature]
        said = run_java_tool(
            "kafka.tools.StorageTool",
            arguments,
            timeout_s=self._start_timeout_s,
            jvm_options=[self._logging_option()],
        )
        if said.returncode:
            told = "\n".join(without_stack(said.stdout + said.stderr))
            raise BrokerStartError(
                f"the broker's storage could not be formatted:\n{told}",
                action="correct the config",
                directory=str(self.directory),
            )

    def _spawn(self, lock: int) -> int:
        options = [f"-Xmx{self._heap_mb}m", "-XX:+ExitOnOutOfMemoryError", self._logging_option()]
        command = java_command("kafka.Kafka", [str(self._home.properties)], jvm_options=options)
        mode = "detached" if self._detached else "attached"
        with self._home.output.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(lock), mode, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                cwd=self.directory,
                pass_fds=(lock,),
                # Ctrl-C in a terminal goes to all processes of the session; the broker is stopped by us, in our order.
                start_new_session=True,
            )
        assert process.stdout is not None
        told = process.stdout.readline()
        process.stdout.close()
        self._guard = process
        if not told.strip():
            self._reap()
            raise self._start_error("its process could not be started")
        if self._detached:
            self._reap()
        return int(told)

    def _logging_option(self) -> str:
        return f"-Dlog4j2.configurationFile={self._home.logging}"

    def _start_error(self, lack: str) -> BrokerStartError:
        state = "died" if not self.is_running else f"was not ready after {self._start_timeout_s:.0f} s"
        return BrokerStartError(
            f"the broker in {self.directory} {state}: {lack}. The end of its log:\n{self._home.log_tail()}",
            action=f"see {self._home.log} and {self._home.output}",
            directory=str(self.directory),
        )

    # Ending

    def stop(self, timeout_s: float = 20) -> None:
        """Stop the broker, if it runs, in an orderly way; kill it if it is still there after ``timeout_s`` seconds."""
        if not self._signal(signal.SIGTERM, timeout_s):
            _log.warning("the broker in %s did not stop within %.0f s and is killed", self.directory, timeout_s)
            self.kill()

    def kill(self) -> None:
        """Kill the broker (SIGKILL), so that it cannot finish anything, and wait until it is gone."""
        if not self._signal(signal.SIGKILL, _KILL_TIMEOUT_S):
            raise SetupError(
                f"the broker in {self.directory} (pid {self.pid}) is still there {_KILL_TIMEOUT_S} s after SIGKILL"
            )

    def restart(self) -> Self:
        """Stop and start again at the same address."""
        self.stop()
        return self.start()

    def _signal(self, number: signal.Signals, timeout_s: float) -> bool:
        """Send a signal and wait until the broker is gone; False if it is not."""
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        gone = self._home.wait_gone(timeout_s)
        if gone:
            self._reap()
        return gone

    def _reap(self) -> None:
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(timeout=_KILL_TIMEOUT_S)
        self._guard = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _address(state: BrokerState) -> str:
    return f"{settings.HOST}:{state.port}"
