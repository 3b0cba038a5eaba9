"""The broker's settings: KRaft nodes, broker and controller in one process, on this machine's loopback alone."""

from __future__ import annotations

import collections
import random
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onceflow.errors import BrokerStartError, ConfigurationError

HOST = "127.0.0.1"
NODE_ID = 1

# Outside the range from which systems take ports for outgoing connections (from 32768 on Linux, 49152 on macOS): while
# the broker is down, a client that knocks at its port could otherwise be given that very port, connect to itself and
# keep it.
_PORTS = range(20_000, 30_000)
_PORT_TRIES = 100
_ANY_PORT = range(1, 1 << 16)
_giving = threading.Lock()
_given: collections.deque[int] = collections.deque(maxlen=256)
"""Ports that this process was given last: perhaps nobody listens there yet, and they must not be given to another one."""

DEFAULTS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # Records often carry event times of the past, and retention goes by them: the default of 7 days would delete such
    # records within minutes. Committed offsets are progress, and must not expire while a pipeline rests.
    "log.retention.ms": "-1",
    "offsets.retention.minutes": "5256000",
    # The default cleaner buffer alone (128 MB) would not fit a small heap.
    "log.cleaner.dedupe.buffer.size": "8388608",
    # After SIGKILL the controller holds the dead broker's registration for one session: a start then takes 11 s.
    # Not shorter than this: a busy machine may keep the broker from its heartbeat for a second.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Few partitions of the internal topics keep the start fast.
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""What the embedded broker sets where Kafka's own default does not suit one node; ``config`` overrides it."""

_REPLICATED: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
"""The same for a node of three: one of them may fail, and nothing acknowledged is lost."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node listens, and its place in the cluster.

    ``voters``: node id and controller port of every node, as nodes are told it, nothing for a node that is alone.
    ``behind``: a further port for clients that come through a proxy, and the proxy's port, which they are told. ``peers``: the
    same for the other nodes; None: they come to ``port`` as clients do.
    """

    port: int
    controller_port: int
    node_id: int = NODE_ID
    voters: Mapping[int, int] = field(default_factory=dict)
    behind: tuple[int, int] | None = None
    peers: tuple[int, int] | None = None


def server_properties(data: Path, place: Place, config: Mapping[str, str]) -> dict[str, str]:
    """All settings of a node. Raises ConfigurationError if ``config`` touches what makes the node this node.

    And for a directory with a comma: Kafka takes it for two, and the data would be elsewhere.
    """
    fixed = _fixed(data, place)
    mistakes = [f"{key} is the embedded broker's own and cannot be set" for key in sorted(fixed.keys() & config.keys())]
    mistakes += [f"the directory {data.parent} has a comma in its name: take another one"] if "," in str(data) else []
    if mistakes:
        raise ConfigurationError.of("the embedded broker's config", mistakes)
    return {**DEFAULTS, **(_REPLICATED if place.voters else {}), **config, **fixed}


def _fixed(data: Path, place: Place) -> dict[str, str]:
    voters = place.voters or {place.node_id: place.controller_port}
    clients = {"BROKER": (place.port, place.port)}
    if place.behind:
        clients["WIRE"] = place.behind
    if place.peers:
        clients["PEERS"] = place.peers
    listening = {name: ports[0] for name, ports in clients.items()} | {"CONTROLLER": place.controller_port}
    told = {name: ports[1] for name, ports in clients.items()}
    if place.peers:  # who follows a leader of the quorum goes where that says, and not where the voters are
        told["CONTROLLER"] = voters[place.node_id]
    return {
        "process.roles": "broker,controller",
        "node.id": str(place.node_id),
        "controller.quorum.voters": ",".join(f"{node}@{HOST}:{port}" for node, port in voters.items()),
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listening.items()),
        "advertised.listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in told.items()),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listening),
        "inter.broker.listener.name": "PEERS" if place.peers else "BROKER",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
    }


def as_properties(settings: Mapping[str, str]) -> str:
    """The text of a Java properties file."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in sorted(settings.items()))


def _escaped(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace("\n", "\\n")
    return "".join(c if c.isascii() else f"\\u{ord(c):04x}" for c in plain)


def logging_properties(log: Path) -> str:
    """Log4j's configuration: INFO to ``log``, at most four files of 10 MB, errors alone on the standard output."""
    return as_properties(
        {
            "status": "error",
            "appender.file.type": "RollingFile",
            "appender.file.name": "file",
            "appender.file.fileName": str(log),
            "appender.file.filePattern": f"{log}.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d %p %m (%c)%n",
            "appender.file.policies.type": "Policies",
            "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size.size": "10MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": "3",
            "rootLogger.level": "info",
            "rootLogger.appenderRef.file.ref": "file",
        }
    )


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on now. Raises BrokerStartError if there are too few."""
    found: list[int] = []
    with _giving:
        for port in random.sample(_PORTS, _PORT_TRIES):
            if port not in _given and is_free(port):
                found.append(port)
            if len(found) == count:
                _given.extend(found)
                return found
    raise BrokerStartError(
        f"no free port among {_PORT_TRIES} tried from {_PORTS[0]} to {_PORTS[-1]}", action="give port="
    )


def is_free(port: int) -> bool:
    """Whether a server may listen on ``port`` of the loopback now. Raises ConfigurationError for what is no port."""
    if port not in _ANY_PORT:
        raise ConfigurationError.of("the embedded broker's settings", [f"{port} is no port: give one from 1 to 65535"])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java's server sockets do, so that connections in TIME_WAIT do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
