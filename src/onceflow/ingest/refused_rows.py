"""Which rows a broker has refused: it counts within a batch of one partition, and whoever gave the rows knows neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from onceflow.errors import InputError
from onceflow.transaction.partitioner import assign_partitions
from onceflow.transaction.router import TopicInfo


class AttemptTopics:
    """What the topics of one attempt are, as ``find`` said when it met them: a row that is looked for later must not move
    because a partition was added meanwhile.
    """

    def __init__(self, find: Callable[[str], TopicInfo]) -> None:
        self._find = find
        self._met: dict[str, TopicInfo] = {}

    def find(self, topic: str) -> TopicInfo:
        """The topic's partition count and limit."""
        if topic not in self._met:
            self._met[topic] = self._find(topic)
        return self._met[topic]


def refused_rows(
    error: InputError, rows: Iterable[tuple[str, pa.RecordBatch]], topics: AttemptTopics, seed: int
) -> dict[int, str]:
    """Why, by the row's number among those of ``error.fields["topic"]``; nothing where the error names no record.

    ``rows`` and ``seed`` are those that were written.
    """
    topic, partition, records = (error.fields.get(name) for name in ("topic", "partition", "records"))
    if topic is None or partition is None or not records:
        return {}
    numbers = _numbers(rows, topic, partition, topics.find(topic).partitions, seed)
    return {
        number: records[record] or "the broker refuses it" for record, number in enumerate(numbers) if record in records
    }


def _numbers(
    rows: Iterable[tuple[str, pa.RecordBatch]], topic: str, partition: int, count: int, seed: int
) -> Iterable[int]:
    """The numbers of the topic's rows that go to the partition, in their order there."""
    first = 0
    for batch in (batch for name, batch in rows if name == topic):
        keys, explicit = (batch.column(name) if name in batch.schema.names else None for name in ("key", "partition"))
        placed = assign_partitions(keys, explicit, count, rows=batch.num_rows, seed=seed, first_row=first)
        yield from (first + int(number) for number in np.flatnonzero(placed == partition))
        first += batch.num_rows
