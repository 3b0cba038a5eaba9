"""Source offsets as Spark keeps them, one entry for each source that a plan reads: what Kafka's say. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

Offsets = list[Any]
"""One entry per source, as Spark's offset log keeps it (Kafka's: topic to partition to offset); None where one has none yet."""


def all_kafka(sources: Offsets) -> bool:
    """Whether every source that has offsets is a Kafka source."""
    return all(_is_kafka(offsets) for offsets in sources if offsets is not None)


def kafka_offsets(sources: Offsets) -> dict[tuple[str, int], int]:
    """Of the Kafka sources; where several read one partition, the lowest."""
    merged: dict[tuple[str, int], int] = {}
    for offsets in sources:
        if _is_kafka(offsets):
            for topic, partition, offset in _flat(offsets):
                merged[topic, partition] = min(offset, merged.get((topic, partition), offset))
    return merged


def readings_agree(sources: Offsets) -> bool:
    """Whether Kafka sources that read partitions of a topic in common have all of the same offsets there.

    A partition that one of them alone knows is in doubt::

        a topic that two sources read gets a partition, and records there, after Spark has asked for one of them
        {"t": {"0": 5}} and {"t": {"0": 5, "1": 7}}             one offset of t-1, 7, would tell the first one to pass over seven
    """
    read: dict[str, list[dict[str, int]]] = {}
    for offsets in sources:
        for topic, parts in offsets.items() if _is_kafka(offsets) else ():
            read.setdefault(topic, []).append(parts)
    return not any(
        one.keys() & other.keys() and one != other
        for parts_of in read.values()
        for one, other in combinations(parts_of, 2)
    )


def rows_between(start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> int:
    """Of one Kafka source: how many offsets there are from ``start`` to ``end``."""
    return sum(
        max(0, offset - start.get(topic, {}).get(partition, 0))
        for topic, parts in end.items()
        for partition, offset in parts.items()
    )


def _is_kafka(offsets: Any) -> bool:
    return isinstance(offsets, dict) and all(
        isinstance(parts, dict) and all(str(p).isdigit() and isinstance(o, int) for p, o in parts.items())
        for parts in offsets.values()
    )


def _flat(offsets: dict[str, dict[str, int]]) -> Iterator[tuple[str, int, int]]:
    for topic, parts in offsets.items():
        for partition, offset in parts.items():
            yield topic, int(partition), offset
