"""A private Kafka cluster of one or three real nodes, for verification."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self

from onceflow.broker.embedded import TRANSACTION_VERSIONS
from onceflow.broker.installation import LOCKED, Installation
from onceflow.broker.process import new_cluster_id
from onceflow.broker.readiness import wait_until_ready
from onceflow.broker.settings import HOST, Place, free_ports
from onceflow.errors import ConfigurationError, SetupError
from onceflow.kafka.client import GROUP, TRANSACTION, Again, KafkaClient, Pause
from onceflow.kafka.settings import ClusterSettings
from onceflow.verify.cluster import placement
from onceflow.verify.cluster.node import Node
from onceflow.verify.wire import Rules, Wire

_log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_MS = 3_000  # a frozen node answers nothing, and another one is to be asked then
_START_S = 300.0  # a machine that is busy with other things takes its time
_LOOK_S = 1.0
PATIENCE_S = 300.0


class KafkaCluster:
    """Real Kafka nodes on 127.0.0.1, each broker and controller; with three, topics have three replicas and need two.

    ``directory`` holds a directory for each node. ``config`` are Kafka's broker settings over the defaults of
    ``onceflow.broker.settings``. With ``wire`` pipelines reach each node through a ``Wire``; all ``wires`` obey ``rules``, which
    draw from ``seed``. With ``between`` three nodes reach each other so, too: ``peer_wires``, which obey ``peer_rules``.
    ``installation`` is the Kafka that the nodes run at first, that of the locked jars by default.
    The nodes end with this process, however it ends. Works as a context manager, which starts them and kills them; their files
    stay. Methods may be called from any thread, but not two that start or end
    the same node.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        brokers: int = 1,
        transaction_version: int = 2,
        heap_mb: int = 256,
        config: Mapping[str, str] | None = None,
        wire: bool = False,
        between: bool = False,
        seed: int = 0,
        installation: Installation = LOCKED,
    ) -> None:
        mistakes = [] if brokers in (1, 3) else [f"brokers is {brokers}, and may be 1 or 3"]
        mistakes += (
            []
            if transaction_version in TRANSACTION_VERSIONS
            else [f"transaction_version is {transaction_version}, not 0, 1 or 2"]
        )
        mistakes += ["between: a node that is alone has no peers"] if between and brokers == 1 else []
        if mistakes:
            raise ConfigurationError.of("the Kafka cluster", mistakes)
        self.directory = Path(directory).absolute()
        self.transaction_version = transaction_version
        places = _places(brokers, wire=wire, between=between)
        self.nodes = tuple(
            Node(
                self.directory / f"node-{place.node_id}",
                place,
                dict(config or {}),
                heap_mb=heap_mb,
                installation=installation,
            )
            for place in places
        )
        self.rules, self.peer_rules = Rules(seed), Rules(seed)
        self.wires: tuple[Wire, ...] = ()
        self.peer_wires: tuple[Wire, ...] = ()
        self._client: KafkaClient | None = None
        self._client_is_made = threading.Lock()

    # Addresses

    @property
    def direct_servers(self) -> str:
        """Bootstrap servers past all proxies."""
        return ",".join(node.address for node in self.nodes)

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap servers for the pipelines: the wires, if there are any."""
        return ",".join(f"{HOST}:{node.wire_port or node.port}" for node in self.nodes)

    @property
    def client(self) -> KafkaClient:
        """Questions to the cluster past all proxies; open while the cluster runs."""
        with self._client_is_made:
            if self._client is None:
                options = ClusterSettings.of(self.direct_servers).for_protocol()
                options |= {"client_id": "onceflow-verify", "request_timeout_ms": _REQUEST_TIMEOUT_MS}
                self._client = KafkaClient(options, patience_s=PATIENCE_S)
            client = self._client
        client.open()
        return client

    # Life

    def start(self, timeout_s: float = _START_S) -> Self:
        """Start all nodes at the same time and wait until every coordinator can be used. Raises BrokerStartError."""
        began = time.monotonic()
        try:
            self._connect_wires()
            self._launch()
            lack = wait_until_ready(
                [node.port for node in self.nodes], self.nodes[0].settings, self._all_run, timeout_s
            )
            if lack:
                ended = [node for node in self.nodes if not node.is_running]
                raise (ended or list(self.nodes))[0].start_error(lack)
        except BaseException:
            self.kill()
            raise
        _log.info("%d nodes started in %.1f s", len(self.nodes), time.monotonic() - began)
        return self

    def _connect_wires(self) -> None:
        if self.wires or self.peer_wires:
            return
        for node in self.nodes:  # each is known before the next one is tried, whose port may be taken
            if node.wire_target:
                self.wires += (Wire((HOST, node.wire_target), self.rules, node=node.id, port=node.wire_port or 0),)
            for proxy, target in node.peer_wires.items():
                self.peer_wires += (Wire((HOST, target), self.peer_rules, node=node.id, port=proxy),)

    def _launch(self) -> None:
        cluster_id = new_cluster_id()
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.launch(cluster_id, self.transaction_version), self.nodes))

    def _all_run(self) -> bool:
        return all(node.is_running for node in self.nodes)

    def stop(self) -> None:
        """Stop all nodes in order, at the same time: the last ones find no majority any more, and are killed then."""
        self._close_connections()
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.stop(10), self.nodes))

    def kill(self) -> None:
        """Kill all nodes, also when one of them cannot be killed; that is raised afterwards."""
        with ExitStack() as kills:  # from the last one to the first
            for node in reversed(self.nodes):
                kills.callback(node.kill)
            self._close_connections()

    def _close_connections(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        for rules in (self.rules, self.peer_rules):
            rules.clear()
        for wire in (*self.wires, *self.peer_wires):
            wire.close()
        self.wires = self.peer_wires = ()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    # Who leads, who coordinates

    def node(self, node_id: int) -> Node:
        return next(node for node in self.nodes if node.id == node_id)

    def leader(self, topic: str, partition: int) -> Node:
        """The node that leads a partition now."""
        return self.node(placement.replicas_of(self.client, topic, partition).leader)

    def transaction_coordinator(self, transactional_id: str) -> Node:
        """The node that coordinates the transactions of an id now."""
        return self.node(placement.coordinator_of(self.client, TRANSACTION, transactional_id))

    def group_coordinator(self, group: str) -> Node:
        """The node that coordinates a group now, its committed offsets too."""
        return self.node(placement.coordinator_of(self.client, GROUP, group))

    def others(self, node: Node) -> tuple[Node, ...]:
        return tuple(each for each in self.nodes if each is not node)

    def is_fenced(self, node: Node) -> bool:
        """Whether no other node lists it any more: its session with the controller has ended."""
        try:
            views = [placement.view(self.client, other.id, topics=[]) for other in self.others(node)]
        except Again:
            return False
        return all(node.id not in view.nodes for view in views)

    def move_leader(self, topic: str, partition: int, to: Node) -> None:
        """Make ``to`` the leader of a partition; of the internal topics too, which moves coordinators."""
        placement.move(self.client, topic, partition, to.id)

    def move_transaction_coordinator(self, transactional_id: str, to: Node) -> None:
        """Make ``to`` the coordinator of a transactional id (and of all ids of its partition)."""
        number = placement.partition_of(self.client, TRANSACTION, transactional_id)
        self.move_leader(placement.TRANSACTIONS_TOPIC, number, to)

    def move_group_coordinator(self, group: str, to: Node) -> None:
        """Make ``to`` the coordinator of a group (and of all groups of its partition)."""
        self.move_leader(placement.GROUPS_TOPIC, placement.partition_of(self.client, GROUP, group), to)

    # Health

    def roll(
        self,
        how: Literal["clean", "hard"] = "clean",
        order: Sequence[Node] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Restart one node after the other (``hard``: by SIGKILL), each when the one before is in sync again."""
        end: Callable[[Node], object] = Node.kill if how == "hard" else Node.stop
        for node in order or self.nodes:
            node.restart(end)
            self.wait_until_healthy(patience_s)

    def heal(self, patience_s: float = PATIENCE_S) -> None:
        """Let frozen nodes go on, start those that do not run, and wait until all is well."""
        for node in self.nodes:
            node.resume()
        self._start_missing()
        self.wait_until_healthy(patience_s)

    def _start_missing(self) -> None:
        missing = [node for node in self.nodes if not node.is_running]
        if missing:
            with ThreadPoolExecutor(len(missing)) as pool:
                list(pool.map(Node.start, missing))

    def wait_until_healthy(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until every node sees all nodes and all replicas in sync, nothing is moving and coordinators are loaded.

        Every node is asked, because one that was frozen believes for a moment what was true before; and all have to see the
        same, because one may not have heard of a new leader or of a new partition, and a client asks any of them.
        Raises SetupError with what is still wrong.
        """
        pause = Pause(patience_s)
        while lack := self._lack(max(_LOOK_S, pause.deadline - time.monotonic())):
            if pause.expired:
                raise SetupError(
                    f"the Kafka cluster in {self.directory} is not healthy after {patience_s:.0f} s: {lack}",
                    action=f"see {', '.join(str(node.directory / 'broker.log') for node in self.nodes)}",
                )
            pause.wait()

    def _lack(self, patience_s: float) -> str:
        """What is wrong now, or still when the patience ends; "" for nothing."""
        lack = "; ".join(f"node {node.id} does not run" for node in self.nodes if not node.is_running)
        try:
            lack = lack or self._not_in_sync() or ", ".join(placement.reassignments(self.client))
        except Again as again:
            return str(again)
        ports = [node.port for node in self.nodes]
        return lack or wait_until_ready(ports, self.nodes[0].settings, self._all_run, patience_s)

    def _not_in_sync(self) -> str:
        everybody = {node.id for node in self.nodes}
        views = {node.id: placement.view(self.client, node.id) for node in self.nodes}
        for node in self.nodes:
            view = views[node.id]
            if view.nodes != everybody:
                return f"node {node.id} sees the nodes {sorted(view.nodes)} alone"
            for (topic, partition), each in view.partitions.items():
                if each.leader < 0 or sorted(each.replicas) != list(each.in_sync):
                    return f"node {node.id} sees {topic}-{partition} as {each}"
            if view.partitions != views[self.nodes[0].id].partitions:
                return f"node {node.id} sees other leaders or partitions than node {self.nodes[0].id}"
        return ""


def _places(count: int, *, wire: bool, between: bool) -> list[Place]:
    ports = iter(free_ports(7 * count))
    numbers = range(1, count + 1)
    controllers = {number: next(ports) for number in numbers}
    told = {number: next(ports) for number in numbers} if between else controllers
    voters = told if count > 1 else {}

    def proxied(is_wanted: bool) -> tuple[int, int] | None:
        return (next(ports), next(ports)) if is_wanted else None

    return [
        Place(next(ports), controllers[number], number, voters, proxied(wire), proxied(between)) for number in numbers
    ]
