"""The cluster refuses what is too large for it (F20)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from confluent_kafka.admin import ResourceType

from onceflow.verify.cluster.configs import set_config
from onceflow.verify.engines.transaction import Transaction
from onceflow.verify.running.encounters import UnderWay

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

_ATTEMPTS_S = 120.0
_PASSED_BATCHES = 3
_HANGS_S = 30.0
# More than the marker of a transaction's end (78 bytes), to which the broker holds the limit too: a transaction whose marker is
# refused stays open as long as the limit stands. Less than any batch of records that is worth its name.
_LIMIT_BYTES = 128
# MessageSizeTooLargeError, RecordTooLargeException, MESSAGE_TOO_LARGE, RECORD_TOO_LARGE; and what Java's exception says.
_REFUSALS = ("TooLarge", "TOO_LARGE", "larger than the max message size")


@dataclass(frozen=True, slots=True)
class RecordTooLarge:
    """An output topic takes no records of the pipeline's size any more, until a driver has failed of it.

    ::

        operator   max.message.bytes of a topic goes down
        driver     MESSAGE_TOO_LARGE; what the same transaction has written elsewhere stands there, and must not become visible
        driver     tries the batch again, and ends with an error
        operator   the limit goes up: the next driver runs the same batch
    """

    name: str = "record-too-large"
    text: str = "a topic refuses records as too large, until a driver has failed of it"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        topic = random.choice(world.topics_out)
        try:
            _limit(world, topic, str(_LIMIT_BYTES))
            world.note(f"{topic} takes {_LIMIT_BYTES} bytes at most")
            # A batch that was under way may still pass, and one without a record for this topic does.
            came = world.driver.await_failure(_REFUSALS, _PASSED_BATCHES, _ATTEMPTS_S)
        finally:
            _limit(world, topic, None)
        if came:
            # What it had written to other topics may stand there, in a transaction.
            refused = UnderWay(transaction=Transaction.PERHAPS)
            world.met(f"{topic} refused a batch, and its driver failed", refused)
        else:
            end_if_it_hangs(world)
            world.missed(f"nothing too large came for {topic}")


def end_if_it_hangs(world: World) -> None:
    """Kills a control that commits nothing more though it may, as whoever operates it would. What is judged gets no help.

    ::

        broker     MESSAGE_TOO_LARGE
        producer   Kafka's own of Java (Spark 4.2 has 3.9.2) splits it at ``batch.size``, which it was below: the same batch again
        producer   does so without end (KAFKA-8350; seen 3,893 times in 100 s), as long as the limit stands
        sink       has come to no batch within 30 and within 300 s after it was up again: the rest of the run would show nothing
    """
    driver = world.driver
    if not driver.engine.judged and not driver.await_batches(1, _HANGS_S):
        world.note("the control hangs, and is killed")
        driver.kill()


def _limit(world: World, topic: str, limit: str | None) -> None:
    """The topic's limit in bytes; None: the cluster's."""
    set_config(world.kafka.direct_servers, ResourceType.TOPIC, topic, "max.message.bytes", limit)


LIMIT_FAULTS = (RecordTooLarge(),)
