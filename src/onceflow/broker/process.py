"""The process of one Kafka node: its files written, its storage formatted, started under a guard, ended, waited for."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import signal
import uuid
from collections.abc import Mapping
from typing import Literal

from onceflow.broker import settings
from onceflow.broker.guarded import Guarded
from onceflow.broker.home import BrokerHome
from onceflow.broker.installation import LOCKED, Installation
from onceflow.broker.java_tool import java_command, run_java_tool
from onceflow.broker.log_text import without_stack
from onceflow.errors import BrokerStartError, SetupError

_log = logging.getLogger("onceflow.broker")

_KILL_TIMEOUT_S = 30
_UNREADABLE = "UnsupportedVersionException: Can't read version"  # what a node says of the cluster's metadata


def new_cluster_id() -> str:
    """A fresh id, as Kafka's own tool makes them."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class BrokerProcess:
    """Starts and ends the node whose directory is ``home``. One thread at a time; does not pickle.

    Another ``installation`` is that of its next start.
    """

    def __init__(
        self,
        home: BrokerHome,
        *,
        heap_mb: int,
        detached: bool = False,
        start_timeout_s: float = 180,
        installation: Installation = LOCKED,
    ) -> None:
        self.installation = installation
        self._home = home
        self._heap_mb = heap_mb
        self._detached = detached
        self._start_timeout_s = start_timeout_s
        self._guarded: Guarded | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the node; None if it does not run."""
        state = self._home.read_state() if self._home.is_running() else None
        return state.pid if state else None

    # Starting

    def write_settings(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Write what the node reads at its start; gives the properties back."""
        self._home.properties.write_text(settings.as_properties(properties))
        self._home.logging.write_text(settings.logging_properties(self._home.log))
        return properties

    def format(self, cluster_id: str, transaction_version: int) -> None:
        """Format the storage, once in its life. Raises BrokerStartError with what the tool said."""
        feature = f"transaction.version={transaction_version}"
        # Attached to its option: one id in 64 begins with a hyphen, and would be taken for an option itself.
        arguments = ["format", f"--cluster-id={cluster_id}", "-c", str(self._home.properties), "--feature", feature]
        said = run_java_tool(
            "kafka.tools.StorageTool",
            arguments,
            timeout_s=self._start_timeout_s,
            jvm_options=[self._logging_option()],
            installation=self.installation,
        )
        if said.returncode:
            told = "\n".join(without_stack(said.stdout + said.stderr))
            raise BrokerStartError(
                f"the broker's storage could not be formatted:\n{told}",
                action="correct the config",
                directory=str(self._home.directory),
            )

    def spawn(self, lock: int) -> int:
        """Start the node, which inherits the held ``lock``; gives its pid. Raises BrokerStartError."""
        options = [
            f"-Xmx{self._heap_mb}m",
            "-XX:+ExitOnOutOfMemoryError",
            self._logging_option(),
            self._scratch_option(),
        ]
        command = java_command(
            "kafka.Kafka", [str(self._home.properties)], jvm_options=options, installation=self.installation
        )
        mode: Literal["attached", "detached"] = "detached" if self._detached else "attached"
        self._reap()  # of a node that ended by itself
        environment = self.installation.whole_environment()
        self._guarded = Guarded(command, mode, self._home.output, lock=lock, environment=environment)
        pid = self._guarded.pid
        if pid is None or self._detached:
            self._reap()
        if pid is None:
            raise self.start_error("its process could not be started")
        return pid

    def _logging_option(self) -> str:
        return f"-Dlog4j2.configurationFile={self._home.logging}"

    def _scratch_option(self) -> str:
        """Where its JVM unpacks the codecs: a node that is killed removes nothing, and its next start does."""
        scratch = self._home.scratch
        try:
            scratch.mkdir(exist_ok=True)
            for left in scratch.iterdir():
                left.unlink()
        except OSError as error:
            raise BrokerStartError(
                f"{scratch} cannot be emptied for the broker's use: {error.strerror}",
                action="move away what lies there",
                directory=str(self._home.directory),
            ) from None
        return f"-Djava.io.tmpdir={scratch}"

    def start_error(self, lack: str) -> BrokerStartError:
        """What to raise for a node that does not come up, with the end of its log."""
        state = "died" if not self._home.is_running() else f"was not ready after {self._start_timeout_s:.0f} s"
        log = self._home.end_of_log()
        action = f"see {self._home.log} and {self._home.output}"
        if _UNREADABLE in log:
            action = f"its files are of a newer Kafka: run that one with them, or take another directory; {action}"
        return BrokerStartError(
            f"the broker in {self._home.directory} {state}: {lack}. The end of its log:\n{log}",
            action=action,
            directory=str(self._home.directory),
        )

    # Ending

    def stop(self, timeout_s: float) -> None:
        """Stop the node, if it runs, in an orderly way; kill it if it is still there after ``timeout_s`` seconds."""
        if not self._end(signal.SIGTERM, timeout_s):
            _log.warning("the broker in %s did not stop within %.0f s and is killed", self._home.directory, timeout_s)
            self.kill()

    def kill(self) -> None:
        """Kill the node (SIGKILL), so that it cannot finish anything, and wait until it is gone."""
        if not self._end(signal.SIGKILL, _KILL_TIMEOUT_S):
            raise SetupError(
                f"the broker in {self._home.directory} (pid {self.pid}) is still there {_KILL_TIMEOUT_S} s after SIGKILL"
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the node, if it runs."""
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self, number: signal.Signals, timeout_s: float) -> bool:
        """Send a signal and wait until the node is gone; False if it is not."""
        self.send(number)
        gone = self._home.wait_gone(timeout_s)
        if gone:
            self._reap()
        return gone

    def _reap(self) -> None:
        if self._guarded is not None:
            self._guarded.end()
            self._guarded = None
