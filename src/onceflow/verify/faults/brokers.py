"""Faults of the Kafka nodes: killed, frozen, rolled, and coordinators and leaders that move (F2, F3, F7, F8).

Each returns when every node runs again, all replicas are in sync and every coordinator has loaded what it coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

THREE = "three brokers"
_MOST_DOWN_S = 3.0
_BEYOND_SESSION_S = 3.0


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
    """SIGSTOP for longer than its session with the controller: its leaderships move, and then it wakes and believes in them.

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
class KillCoordinator:
    """SIGKILL to the node that coordinates the pipeline's transactions; another one loads their log and goes on."""

    name: str = "kill-coordinator"
    text: str = "SIGKILL to the coordinator of the pipeline's transactions"
    needs: tuple[str, ...] = (THREE,)

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        node = world.kafka.transaction_coordinator(world.transactional_id)
        world.note(f"node {node.id} killed, which coordinates {world.transactional_id}")
        node.kill()
        world.wait_for(
            lambda: world.kafka.transaction_coordinator(world.transactional_id) is not node, "a new coordinator"
        )
        world.kafka.heal()


@dataclass(frozen=True, slots=True)
class KillGroupCoordinator:
    """SIGKILL to the node that keeps the pipeline's progress; another one loads the committed offsets."""

    name: str = "kill-group-coordinator"
    text: str = "SIGKILL to the coordinator of the pipeline's committed offsets"
    needs: tuple[str, ...] = (THREE,)

    def inject(self, world: World, random: Random) -> None:
        world.sleep(random.uniform(0, 1))
        group = world.transactional_id
        node = world.kafka.group_coordinator(group)
        world.note(f"node {node.id} killed, which keeps the offsets of {group}")
        node.kill()
        world.wait_for(lambda: world.kafka.group_coordinator(group) is not node, "a new coordinator")
        world.kafka.heal()


@dataclass(frozen=True, slots=True)
class MoveTransactionCoordinator:
    """Another node becomes the coordinator while all run: what is under way is answered NOT_COORDINATOR."""

    name: str = "move-transaction-coordinator"
    text: str = "the coordinator of the pipeline's transactions moves to another broker"
    needs: tuple[str, ...] = (THREE,)

    def inject(self, world: World, random: Random) -> None:
        kafka = world.kafka
        to = random.choice(kafka.others(kafka.transaction_coordinator(world.transactional_id)))
        kafka.move_transaction_coordinator(world.transactional_id, to)
        world.note(f"node {to.id} coordinates {world.transactional_id}")
        kafka.wait_until_healthy()


@dataclass(frozen=True, slots=True)
class MoveGroupCoordinator:
    """Another node becomes the keeper of the pipeline's progress while all run."""

    name: str = "move-group-coordinator"
    text: str = "the coordinator of the pipeline's committed offsets moves to another broker"
    needs: tuple[str, ...] = (THREE,)

    def inject(self, world: World, random: Random) -> None:
        kafka = world.kafka
        to = random.choice(kafka.others(kafka.group_coordinator(world.transactional_id)))
        kafka.move_group_coordinator(world.transactional_id, to)
        world.note(f"node {to.id} keeps the offsets of {world.transactional_id}")
        kafka.wait_until_healthy()


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
    KillCoordinator(),
    KillGroupCoordinator(),
    MoveTransactionCoordinator(),
    MoveGroupCoordinator(),
    MoveLeader(),
)
