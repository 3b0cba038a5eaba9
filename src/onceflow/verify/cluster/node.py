"""One node of a cluster: a Kafka process that can be killed, stopped, frozen and started again at the same address."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from onceflow.broker.home import BrokerHome, BrokerState
from onceflow.broker.installation import Installation
from onceflow.broker.process import BrokerProcess
from onceflow.broker.settings import HOST, Place, server_properties
from onceflow.verify.cluster import processes

_POLL_S = 0.02
_START_S = 300.0


class Node:
    """A broker and controller of one cluster.

    Its process ends with the process that started it, even if that is killed. One thread at a time starts and ends it; others may
    look. Does not pickle.
    """

    def __init__(
        self, directory: Path, place: Place, config: Mapping[str, str], *, heap_mb: int, installation: Installation
    ) -> None:
        self._home = BrokerHome(directory)
        self._place = place
        self._config = dict(config)
        self._process = BrokerProcess(self._home, heap_mb=heap_mb, start_timeout_s=_START_S, installation=installation)
        self.is_paused = False

    def __repr__(self) -> str:
        return f"Node({self.id}, {self.address})"

    @property
    def id(self) -> int:
        return self._place.node_id

    @property
    def port(self) -> int:
        """Where it listens for clients that come directly."""
        return self._place.port

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def wire_target(self) -> int | None:
        """Where it listens for clients that come through a proxy; None if there is none."""
        return self._place.behind[0] if self._place.behind else None

    @property
    def wire_port(self) -> int | None:
        """The proxy's port."""
        return self._place.behind[1] if self._place.behind else None

    @property
    def peer_wires(self) -> Mapping[int, int]:
        """Where it listens for the other nodes, as broker and as controller, by the ports of their proxies."""
        if self._place.peers is None:
            return {}
        target, proxy = self._place.peers
        return {proxy: target, self._place.voters[self.id]: self._place.controller_port}

    @property
    def directory(self) -> Path:
        return self._home.directory

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process is there, frozen or not."""
        return self._home.is_running()

    @property
    def settings(self) -> dict[str, str]:
        return server_properties(self._home.data, self._place, self._config)

    # Starting

    def install(self, installation: Installation) -> None:
        """Another Kafka, or another environment, from its next start on."""
        self._process.installation = installation

    def launch(self, cluster_id: str, transaction_version: int) -> None:
        """Start the process, its storage formatted if it is the first time, and do not wait for it."""
        state = BrokerState(self.port, self._place.controller_port, transaction_version)
        with self._home.locked() as lock:
            self._process.write_settings(self.settings)
            self._home.write_state(state)
            if not self._home.is_formatted:
                self._process.format(cluster_id, transaction_version)
            self.is_paused = False
            pid = self._process.spawn(lock)
            self._home.write_state(replace(state, pid=pid, started_at=time.time()))

    def start(self, patience_s: float = _START_S) -> None:
        """Start it again after ``kill`` or ``stop``, and wait until it listens.

        That needs a majority of the nodes. What it leads and follows then is ``KafkaCluster.wait_until_healthy``'s to
        wait for. Raises BrokerStartError.
        """
        known = self._home.read_state()
        self.launch("", known.transaction_version if known else 2)
        deadline = time.monotonic() + patience_s
        while not _listens(self.port):
            if not self.is_running or time.monotonic() > deadline:
                raise self.start_error("it does not listen")
            time.sleep(_POLL_S)

    def start_error(self, lack: str) -> Exception:
        """What to raise if it does not come up."""
        return self._process.start_error(lack)

    # Ending

    def stop(self, timeout_s: float = 30) -> bool:
        """Stop it in order (SIGTERM): it hands its leaderships over first. False: that took too long, it was killed."""
        self.resume()
        self._process.send(signal.SIGTERM)
        in_order = self._home.wait_gone(timeout_s)
        self._process.stop(0)  # takes note of its end, or kills it
        return in_order

    def kill(self) -> None:
        """Kill it (SIGKILL), frozen or not, and wait until it is gone."""
        self._process.kill()
        self.is_paused = False

    def restart(self, end: Callable[[Node], object] | None = None) -> None:
        """End it (in order, unless ``end`` says otherwise) and start it again."""
        (end or Node.stop)(self)
        self.start()

    # Freezing

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nobody answers. When it returns the node stands still."""
        self.is_paused = True
        if self.pid is not None:
            processes.freeze(self.pid)

    def resume(self) -> None:
        """Let it go on (SIGCONT) as if no time had passed; nothing, if it is not frozen."""
        if self.is_paused:
            self._process.send(signal.SIGCONT)
            self.is_paused = False


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
