"""Who else commits for the group: what runs ahead of the writer's blocks would lose the events of one that is aborted.

A consumer commits by itself unless ``enable.auto.commit`` is off, and confluent-kafka does not tell a consumer's settings::

    the consumer hands out event 5; the block sends what is made of it; the consumer commits offset 6, as it does every 5 s
    the block is aborted, and the consumer sought back to what its group has committed: it goes on behind event 5

So what the group has committed is compared with what the writer's own blocks have committed, in each block that consumes. Who
has run ahead is told before another block is committed: an offset of ours, put over the other one, would hide it for ever.

What is ahead may also be right, for it is another member's::

    a member stands still, is put out of its group, and another one handles and commits what comes next; the first one wakes
    what it sees is ahead of its own, and it must not be told that its consumer is made wrong

so whoever is ahead is told only where the broker has taken the member's own offsets since: then nobody has replaced it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from onceflow.errors import WriterError
from onceflow.writer.membership import Membership

At = tuple[str, int]
"""(topic, partition)"""

_LOOK_S = 2.0  # a block does not fail because nobody answers here


@dataclass(frozen=True, slots=True)
class Ahead:
    """A partition of which the group has ``committed`` more than the writer's blocks have (``own``)."""

    topic: str
    partition: int
    committed: int
    own: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} up to {self.committed}, the writer's blocks up to {self.own}"


class GroupOffsets:
    """What the writer's blocks have committed for the member that consumes in them; what was there before counts as theirs."""

    def __init__(self) -> None:
        self._member: Any = None
        self._own: dict[At, int] = {}

    def begin(self, consumer: Consumer, membership: Membership) -> None:
        """Before a block's first event. Asks once for each membership and partition: what was committed before it was others'.

        Also where a partition comes later than the membership, and where nobody has answered the time before.
        """
        if not membership.is_member:
            return
        if membership.metadata != self._member:
            self._member, self._own = membership.metadata, {}
        self._own |= _committed(consumer, membership.owned - self._own.keys())

    def ahead(self, consumer: Consumer, wanted: Iterable[At]) -> tuple[Ahead, ...]:
        """What somebody else has committed; to be asked before offsets of the block's own are on their way."""
        found = _committed(consumer, [at for at in wanted if at in self._own])
        return tuple(Ahead(*at, offset, self._own[at]) for at, offset in found.items() if offset > self._own[at])

    def ended(self, offsets: Mapping[At, int], *, committed: bool | None) -> None:
        """What became of the block's offsets; None: nobody knows yet, and the next block looks again."""
        if committed:
            self._own.update(offsets)
        elif committed is None:
            self._member = None


def check(ahead: tuple[Ahead, ...]) -> None:
    """Raises WriterError unless it is empty."""
    if ahead:
        raise WriterError(
            "the group has committed more than the writer's blocks: the consumer commits by itself (enable.auto.commit, its "
            f"default), or somebody else does. Committed are {'; '.join(map(str, ahead))}",
            action="make the consumer with 'enable.auto.commit': False; and set the group back to where the writer's blocks have "
            "come: what lies between was handed out, and comes no more. Offsets that are committed by hand count as well: to "
            "pass an event over, end a block with consumed() alone",
            ahead=ahead,
        )


def _committed(consumer: Consumer, wanted: Iterable[At]) -> dict[At, int]:
    """Where the group is: 0 where nothing is committed. Empty where nobody answers soon: the next block asks again."""
    asked = [TopicPartition(topic, partition) for topic, partition in wanted]
    if not asked:
        return {}
    try:
        found = consumer.committed(asked, timeout=_LOOK_S)
    except KafkaException:
        return {}
    return {(at.topic, at.partition): max(at.offset, 0) for at in found if at.error is None}
