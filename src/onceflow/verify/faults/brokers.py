"""Faults of the Kafka nodes: killed, frozen, rolled, all killed, and coordinators and leaders that move (F2, F3, F7, F8).

Each returns when every node runs again, all replicas are in sync and every coordinator has loaded what it coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.faults.isolated import BETWEEN
from onceflow.verify.wire import Do, Rule, apis

if TYPE_CHECKING:
    from onceflow.verify.cluster import Node
    from onceflow.verify.running.world import World

THREE = "three brokers"
_MOST_DOWN_S = 3.0
_BEYOND_SESSION_S = 3.0
_MARKERS_S = 60.0


@dataclass(frozen=True, slots=True)
class KillBroker:
    """SIGKILL to any node, and a start up to three seconds later; alone it is the whole cluster that is away."""

    name: str = "kill-broker"
    text: str = "SIGKILL to a broker, which is started again"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        node = random.choice(world.kafka.nodes)
        world.note(f"node {node.id} killed")
        node.kill()
        world.sleep(random.uniform(0, _MOST_DOWN_S))
        world.kafka.heal()


@dataclass(frozen=True, slots=True)
class PauseBroker:
    """SIGSTOP until its session with the controller has ended: its leaderships move, and then it wakes and believes in them.

    ::

        old leader   frozen; connections to it stay open, nobody answers
        controller   its session has ended: another replica leads, under a higher leader epoch
        old leader   wakes: clients may write to it until it has heard; such writes never get their two acknowledgements
    """

    name: str = "pause-broker"
    text: str = "SIGSTOP to a broker for longer than its session, then SIGCONT"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        node = random.choice(world.kafka.nodes)
        session_s = int(node.settings["broker.session.timeout.ms"]) / 1000
        node.pause()
        world.note(f"node {node.id} frozen")
        world.sleep(session_s + random.uniform(1, _BEYOND_SESSION_S))
        # Where the controller itself has frozen, another one is elected first, and its session begins only then.
        world.wait_for(lambda: world.kafka.is_fenced(node), f"the end of broker {node.id}'s session")
        world.kafka.heal()


@dataclass(frozen=True, slots=True)
class RollBrokersClean:
    """Every node in turn is stopped in order, started, and waited for."""

    name: str = "roll-brokers-clean"
    text: str = "every broker in turn is stopped in order and started again"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.kafka.roll("clean", random.sample(world.kafka.nodes, len(world.kafka.nodes)))


@dataclass(frozen=True, slots=True)
class RollBrokersHard:
    """Every node in turn is killed, started, and waited for."""

    name: str = "roll-brokers-hard"
    text: str = "every broker in turn is killed (SIGKILL) and started again"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        world.kafka.roll("hard", random.sample(world.kafka.nodes, len(world.kafka.nodes)))


@dataclass(frozen=True, slots=True)
class KillAllBrokers:
    """SIGKILL to all nodes at the same moment, as where the power fails: a transaction is decided, and its markers are under way.

    ::

        coordinator   has answered a commit, and sends its markers to the leaders
        all nodes     are killed; no disk loses anything
        coordinator   is back, as nobody has told it of another one yet, and the partitions that it is to mark have no leader

    Which transaction that is, one of the pipeline or one of its input, is chance.
    """

    name: str = "kill-all-brokers"
    text: str = "SIGKILL to all brokers at once, while a transaction's markers are under way; all are started again"
    needs: tuple[str, ...] = (BETWEEN,)

    def inject(self, world: World, random: Random) -> None:
        nodes = random.sample(world.kafka.nodes, len(world.kafka.nodes))
        with world.kafka.peer_rules.during(Rule(Do.HOLD, frozenset({apis.WRITE_TXN_MARKERS}))) as (markers,):
            came = markers.wait_applied(timeout_s=_MARKERS_S)
            if came:
                world.strikes_now()
                _kill_at_once(nodes)
        if came:
            world.note("all nodes killed, and markers with them that were under way")
            world.kafka.heal()
        else:
            world.missed("no transaction was decided")


def _kill_at_once(nodes: Sequence[Node]) -> None:
    """None has a moment in which it could do something about the death of another one."""
    for node in nodes:
        node.pause()
    for node in nodes:
        node.kill()


class Role(Enum):
    """What a node coordinates for a pipeline, under one name: its transactions, or the offsets that keep its progress."""

    TRANSACTIONS = "transactions"
    OFFSETS = "committed offsets"

    def node(self, world: World) -> Node:
        """Who has the role now."""
        kafka, name = world.kafka, world.transactional_id
        return kafka.transaction_coordinator(name) if self is Role.TRANSACTIONS else kafka.group_coordinator(name)

    def move(self, world: World, to: Node) -> None:
        """Gives the role to another node."""
        kafka, name = world.kafka, world.transactional_id
        move = kafka.move_transaction_coordinator if self is Role.TRANSACTIONS else kafka.move_group_coordinator
        move(name, to)


@dataclass(frozen=True, slots=True)
class KillCoordinator:
    """SIGKILL to the node that has the role; another one loads its log and goes on."""

    name: str
    role: Role
    needs: tuple[str, ...] = (THREE,)

    @property
    def text(self) -> str:
        return f"SIGKILL to the coordinator of the pipeline's {self.role.value}"

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        node = self.role.node(world)
        world.note(f"node {node.id} killed, which coordinates the {self.role.value} of {world.transactional_id}")
        world.strikes_now()
        node.kill()
        world.wait_for(lambda: self.role.node(world) is not node, "a new coordinator")
        world.kafka.heal()


@dataclass(frozen=True, slots=True)
class MoveCoordinator:
    """Another node gets the role while all run: what is under way is answered NOT_COORDINATOR."""

    name: str
    role: Role
    needs: tuple[str, ...] = (THREE,)

    @property
    def text(self) -> str:
        return f"the coordinator of the pipeline's {self.role.value} moves to another broker"

    def inject(self, world: World, random: Random) -> None:
        to = random.choice(world.kafka.others(self.role.node(world)))
        self.role.move(world, to)
        world.note(f"node {to.id} coordinates the {self.role.value} of {world.transactional_id}")
        world.kafka.wait_until_healthy()


@dataclass(frozen=True, slots=True)
class MoveLeader:
    """Another node becomes the leader of a partition that is read or written: requests are answered NOT_LEADER."""

    name: str = "move-leader"
    text: str = "the leader of a partition of input or output moves to another broker"
    needs: tuple[str, ...] = (THREE,)

    def inject(self, world: World, random: Random) -> None:
        kafka = world.kafka
        topic = random.choice((*world.topics_in, *world.topics_out))
        count = kafka.client.topics([topic], refresh=True)[topic].partition_count
        partition = random.randrange(count)
        to = random.choice(kafka.others(kafka.leader(topic, partition)))
        kafka.move_leader(topic, partition, to)
        world.note(f"node {to.id} leads {topic}-{partition}")
        kafka.wait_until_healthy()


BROKER_FAULTS = (
    KillBroker(),
    PauseBroker(),
    RollBrokersClean(),
    RollBrokersHard(),
    KillAllBrokers(),
    KillCoordinator("kill-coordinator", Role.TRANSACTIONS),
    KillCoordinator("kill-group-coordinator", Role.OFFSETS),
    MoveCoordinator("move-transaction-coordinator", Role.TRANSACTIONS),
    MoveCoordinator("move-group-coordinator", Role.OFFSETS),
    MoveLeader(),
)
