"""A broker that its peers cannot reach, while its clients can (F10).

They need a cluster that was made with ``between=True``: its nodes reach each other through wires, as brokers and as controllers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.wire import Direction, Do, Rule

if TYPE_CHECKING:
    from onceflow.verify.cluster import KafkaCluster, Node
    from onceflow.verify.running.world import World

BETWEEN = "wires between the brokers"
_BEYOND_SESSION_S = (0.5, 4.0)
# Kafka's clients within brokers and controllers. What a broker asks of its controller bears its bare number.
_FROM = r"^(?:broker-|raft-client-|AddPartitionsManager-client-)?(?:{})(?:-|$)"


class Way(StrEnum):
    """Which way nothing arrives any more."""

    IN = "hears nothing of the others"
    OUT = "is not heard by the others"
    BOTH = "is cut off from the others"


def cut_off(cluster: KafkaCluster, node: Node, way: Way) -> list[Rule]:
    """Between a node and the others requests and answers vanish that go this way, and no connection ends.

    What a node asks of itself arrives.
    """
    others = [each.id for each in cluster.others(node)]
    inward = [
        Rule(Do.DROP, None, Direction.REQUEST, nodes=frozenset({node.id}), client=_sent_by(others)),
        Rule(Do.DROP, None, Direction.ANSWER, nodes=frozenset(others), client=_sent_by([node.id])),
    ]
    outward = [
        Rule(Do.DROP, None, Direction.REQUEST, nodes=frozenset(others), client=_sent_by([node.id])),
        Rule(Do.DROP, None, Direction.ANSWER, nodes=frozenset({node.id}), client=_sent_by(others)),
    ]
    return (inward if way is not Way.OUT else []) + (outward if way is not Way.IN else [])


def _sent_by(nodes: Iterable[int]) -> str:
    return _FROM.format("|".join(str(node) for node in nodes))


@dataclass(frozen=True, slots=True)
class IsolateBroker:
    """For longer than a session; what it leads and coordinates goes to others as soon as they miss it.

    ::

        old leader   takes what clients write, and waits for replicas that do not come; it answers their questions as well
        controller   has not heard of it for a session: another replica leads, under a higher leader epoch
        old leader   is reached again, drops what it alone has, and follows
    """

    name: str = "isolate-broker"
    text: str = (
        "a broker is cut off from the other ones, one way or both, for longer than its session; clients reach it"
    )
    needs: tuple[str, ...] = (BETWEEN,)

    def inject(self, world: World, random: Random) -> None:
        node, way = random.choice(world.kafka.nodes), random.choice(list(Way))
        with world.kafka.peer_rules.during(*cut_off(world.kafka, node, way)) as active:
            if way is Way.IN:  # what it says arrives, so nobody misses it
                world.sleep(int(node.settings["broker.session.timeout.ms"]) / 1000)
            else:
                world.wait_for(lambda: world.kafka.is_fenced(node), f"the end of broker {node.id}'s session")
            world.sleep(random.uniform(*_BEYOND_SESSION_S))
        lost = sum(each.applied for each in active)
        tell = world.note if lost else world.missed
        tell(f"node {node.id} {way}: {lost} connections lost what was said on them")
        world.kafka.wait_until_healthy()
