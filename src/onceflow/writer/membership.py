"""What a consumer owns when a transaction begins, and as which member of which generation of its group.

The offsets of events may be committed by the member that the events were given to, and by nobody after it. Asked at the end of a
block, a consumer tells what it is by then::

    A is handed event 5 of partition 0, and polls once more: a rebalance takes partition 0 away
    B, its new owner, begins at the committed offset, handles event 5 and commits
    A commits offset 6 as what it is now, a member of the new generation: accepted, and event 5 counts twice

    A is handed event 5 of partition 0, and polls once more: it gives partition 0 up, and the group is not through yet
    A's positions name the partitions that are left: event 5 is committed, its offset is not, and B is handed it as well

So both are noted before the block's first event. The offsets are committed as the member noted: a broker refuses it when its
generation has ended (KIP-447). And when the block ends, nothing may have changed on this side either.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import Consumer

from onceflow.errors import WriterError

_MARK = b"CGMDv2:"
_GENERATION_BYTES = 4


@dataclass(frozen=True, slots=True)
class Membership:
    """``metadata``: group, generation and member, as librdkafka packs them; ``owned``: (topic, partition)."""

    metadata: Any
    is_member: bool
    owned: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, consumer: Consumer) -> Self:
        """What it is now. Raises WriterError for a consumer without a group."""
        metadata = consumer.consumer_group_metadata()
        if metadata is None:
            raise WriterError("the consumer is not a member of a group", action="give it a group.id and subscribe")
        # Asked last: what was put out of its group comes back as another member, and only while it is polled.
        owned = frozenset((at.topic, at.partition) for at in consumer.assignment())
        return cls(metadata, _is_member(metadata, consumer.memberid()), owned)

    def change_to(self, now: Membership) -> str:
        """What has happened since, for people; empty if nothing."""
        if now.is_member and not self.is_member:
            return "the consumer joined its group in the middle of the block"
        if self.is_member and not now.is_member:
            return "the consumer was put out of its group in the middle of the block"
        if now.metadata != self.metadata:
            return "the group was rebalanced in the middle of the block"
        if now.owned != self.owned:
            return "the consumer's partitions changed in the middle of the block"
        return ""

    def check_member(self) -> None:
        """Raises WriterError for a consumer that holds partitions and is no member: nothing would fence its offsets."""
        if self.owned and not self.is_member:
            raise WriterError(
                "the consumer is not a member of its group: its partitions were assigned by hand, or it was put out",
                action="subscribe, so that a newer owner of the partitions fences it; or keep the position as the "
                "transaction's progress",
            )


def _is_member(metadata: bytes, member_id: str | None) -> bool:
    """Whether it is in a generation: one that was put out keeps its last number, and has no id; a consumer of the newer protocol
    has an id from its beginning, joined or not.

    librdkafka packs a mark, the generation (-1 outside of any; in the machine's order), the group, the member.
    """
    if not member_id or not metadata.startswith(_MARK):
        return bool(member_id)
    return int.from_bytes(metadata[len(_MARK) : len(_MARK) + _GENERATION_BYTES], sys.byteorder, signed=True) >= 0
