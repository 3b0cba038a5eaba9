"""Faults by others: a stranger takes the transactional id, somebody adds a partition to a topic (F5, F19).

They come right before a step of a batch, for between two batches they would meet nothing that is under way. Where an engine tells
no steps, any time will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class HijackTransactionalId:
    """A producer that knows nothing of onceflow initialises the pipeline's transactional id, and leaves.

    What the pipeline has open is aborted and its epoch is refused. It finds that nobody has claimed its progress. If it looks
    between two requests of the stranger, it takes the identity back and runs the batch again; an epoch that the stranger holds
    for good cannot be told from that of a newer driver which has not claimed yet, so it stops as fenced, and goes on when it is
    started again. A stranger that *wrote* under the id would stand in the output as well, which no
    client can prevent: that is what the ACL on the transactional id is for.
    """

    name: str = "hijack-transactional-id"
    text: str = "a foreign producer initialises the pipeline's transactional id and leaves"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        with _in_a_batch(world, random):
            hijack(world)


def hijack(world: World) -> None:
    """Takes the pipeline's transactional id, whatever it does just now."""
    options = {"bootstrap.servers": world.kafka.direct_servers, "transactional.id": world.transactional_id}
    Producer({**options, "log_level": 0}).init_transactions(_PATIENCE_S)
    world.note(f"{world.transactional_id} was hijacked")


@dataclass(frozen=True, slots=True)
class AddInputPartition:
    """A topic that the pipeline reads gets one partition more.

    Spark finds it when it plans a batch, and reads it from its beginning: nothing is lost or repeated. Keys may move to another
    partition at that moment, so the order of a key holds before and after, and not across.
    """

    name: str = "add-input-partition"
    text: str = "an input topic gets a partition more"
    needs: tuple[str, ...] = ("growing topics",)

    def inject(self, world: World, random: Random) -> None:
        with _in_a_batch(world, random):
            add_partition(world, random.choice(world.topics_in))


@dataclass(frozen=True, slots=True)
class AddOutputPartition:
    """A topic that the pipeline writes gets one partition more.

    The pipeline partitions by the count that it knows, up to five minutes old, as Java's producer does; the broker accepts both.
    When the new count is known keys move: their order holds before and after, and not across.
    """

    name: str = "add-output-partition"
    text: str = "an output topic gets a partition more"
    needs: tuple[str, ...] = ("growing topics",)

    def inject(self, world: World, random: Random) -> None:
        with _in_a_batch(world, random):
            add_partition(world, random.choice(world.topics_out))


def add_partition(world: World, topic: str) -> None:
    """One more than the topic has; all brokers know it when this returns."""
    admin = AdminClient({"bootstrap.servers": world.kafka.direct_servers, "log_level": 0})
    count = world.kafka.client.topics([topic], refresh=True)[topic].partition_count + 1
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(_PATIENCE_S)
    world.note(f"{topic} has {count} partitions")
    world.kafka.wait_until_healthy()


@contextmanager
def _in_a_batch(world: World, random: Random) -> Iterator[None]:
    """The driver waits right before one of its steps until the block ends, if it tells steps and that one comes."""
    held = None
    if steps := world.driver.steps:
        held = world.driver.hold(random.choice(steps))
    else:
        world.sleep(random.uniform(0, 1))
    world.strikes_now()
    try:
        yield
    finally:
        if held is not None:
            world.driver.go(held)
