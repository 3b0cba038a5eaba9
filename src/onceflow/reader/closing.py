"""The end of a consumer: its close waits for whatever the broker has not answered yet, and a frozen broker answers nothing.

What it survives (KAFKA-17734 tells of the same in the Java consumer)::

    the reader tells Kafka its positions; the broker freezes before it answers; the reader is to end
    librdkafka closes nothing while that commit is not answered, and asks three times, a minute each. Nothing depends on the
    commit: the reader ends without the answer, and what closes the consumer goes on behind it, on a thread of its own

    that broker wakes after the reader has ended
    the consumer leaves its group then. Its callbacks touch neither the store, which is closed, nor anything of the next run

    two readers are to end at the same moment: one has left, so the group is being rebalanced, and Kafka refuses the last
    positions of the other one
    they are told again as the rebalance goes on (``Assignment.tell_last``). Untold, the group's lag would stay until a reader
    comes back; and what a store in memory has handled since it last told Kafka would come again behind an end in order
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import Consumer

from onceflow.bounded import returned_within
from onceflow.reader.patience import Stopped

log = logging.getLogger("onceflow.reader")

CLOSE_S = 10.0  # librdkafka itself gives up its leave of the group after 5


def close(consumer: Consumer, name: str, tell_last: Callable[[Consumer], None]) -> None:
    """Tells the last positions and closes it, so that its partitions go to others at once; waits ``CLOSE_S`` at most.

    Raises what a callback raised.
    """

    def to_its_end() -> None:
        try:
            tell_last(consumer)
        finally:
            with suppress(Stopped):  # of an assignment that came with the end
                consumer.close()

    if not returned_within(CLOSE_S, to_its_end, "onceflow-reader-close", log.info):
        log.warning(
            "%s: no broker has answered within %g s, so it may not have left its group: its partitions go to others "
            "when its session is over, or as soon as a broker answers",
            name,
            CLOSE_S,
        )
