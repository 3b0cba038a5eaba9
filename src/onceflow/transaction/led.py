"""Which node leads a partition that is to be written, as metadata has it."""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.kafka.client import Topic
from onceflow.transaction.failures import AttemptFailed


def led(topics: Mapping[str, Topic], topic: str, partition: int) -> int:
    """The leader. Raises AttemptFailed for a partition that is gone::

    four partitions are known; the topic is deleted and made anew with two
    what was encoded for the others has no place; another attempt asks how many there are
    """
    leaders = topics[topic].leaders
    if partition not in leaders:
        raise AttemptFailed(
            f"{topic}-{partition}: the topic has {len(leaders)} partitions now, it was made anew with fewer"
        )
    return leaders[partition]
