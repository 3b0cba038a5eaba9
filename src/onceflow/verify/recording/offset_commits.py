"""The records of ``__consumer_offsets`` that give positions (OffsetCommitKey, versions 0 and 1; OffsetCommitValue, 0 to 4)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from onceflow.errors import VerificationError

_KEYS = (0, 1)  # of positions; other versions are keys of groups and members
_VALUES = range(5)
_LEADER_EPOCH_FROM, _COMPACT_FROM = 3, 4


@dataclass(frozen=True, slots=True)
class Position:
    """A position of a group, with what was kept beside it; ``offset`` None: it is removed."""

    topic: str
    partition: int
    offset: int | None
    metadata: str


def position_of(group: str, key: bytes, value: bytes | None) -> Position | None:
    """The position that a record gives this group; None for one that is of something else.

    Raises VerificationError for a version that is not known.
    """
    (version,) = struct.unpack_from(">h", key)
    if version not in _KEYS:
        return None
    whose, at = _text(key, 2)
    if whose != group:
        return None
    topic, at = _text(key, at)
    (partition,) = struct.unpack_from(">i", key, at)
    return Position(topic, partition, *(_given(value) if value is not None else (None, "")))


def _given(value: bytes) -> tuple[int, str]:
    version, offset = struct.unpack_from(">hq", value)
    if version not in _VALUES:
        raise VerificationError(
            f"__consumer_offsets has a position of version {version}, which is not known",
            action="use a release of Kafka that this version of onceflow knows",
        )
    at = 14 if version >= _LEADER_EPOCH_FROM else 10
    return offset, (_compact_text(value, at) if version >= _COMPACT_FROM else _text(value, at)[0])


def _text(data: bytes, at: int) -> tuple[str, int]:
    """A text with two bytes of length before it, and where it ends."""
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def _compact_text(data: bytes, at: int) -> str:
    """A text whose length, and one more, stands before it in groups of seven bits, the lowest first (KIP-482)."""
    length = shift = 0
    while True:
        length |= (data[at] & 0x7F) << shift
        at, shift, more = at + 1, shift + 7, data[at] & 0x80
        if not more:
            return data[at : at + length - 1].decode()
