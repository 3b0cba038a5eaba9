"""What is written to each input topic: keys, values and identities, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from onceflow.config import Plan, Source
from onceflow.events import EventIdentity
from onceflow.verify.workload.ddl import Field, parse_ddl
from onceflow.verify.workload.values import Values

KEYS = 50
_RAW_BYTES = 24
_ALPHABET = b"abcdef"

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Record:
    """A record to be written, without what makes it unique."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Inputs:
    """The records of one topic, one after the other without end, each with an identity of its own.

    ``source`` and a running number are its CloudEvents id. Not to be shared by threads.
    """

    def __init__(self, topic: str, records: Iterator[Record], *, source: str = "/onceflow/verify") -> None:
        self.topic = topic
        self._records = records
        self._source = f"{source}/{topic}"
        self._count = 0

    def next_of(self) -> tuple[str, Record, str]:
        """Topic, the next record with all its headers, and its id as ``recording.messages.event_id`` reads it."""
        record = next(self._records)
        identity = EventIdentity(self._source, str(self._count))
        self._count += 1
        own = [*record.headers, *identity.headers()]
        return self.topic, Record(record.key, record.value, own), f"{identity.source} {identity.id}"


def inputs_for(
    plan: Plan, topics: Mapping[str, Sequence[str]], seed: int, samples: Mapping[str, Sequence[Record]] | None = None
) -> list[Inputs]:
    """Records for every input topic of a plan. ``topics``: by the source's name the topics that it reads.

    A topic with a sample gets that, over and over; else values are made as the first source that reads it says: JSON that
    fits its schema, or bytes. Raises ConfigurationError for a schema that cannot be read.
    """
    chosen: dict[str, Iterator[Record]] = {}
    for source in plan.source:
        for topic in topics[source.name]:
            chance = random.Random(f"{seed}/{topic}")  # noqa: S311  repeatable on purpose
            sample = (samples or {}).get(topic)
            if topic not in chosen:
                chosen[topic] = cycle(sample) if sample else _made(source, chance)
    return [Inputs(topic, records, source=f"/onceflow/verify/{seed}") for topic, records in chosen.items()]


def _made(source: Source, chance: random.Random) -> Iterator[Record]:
    """Raises ConfigurationError at once, and not only where the first record is asked for, on a thread of its own."""
    return _keyed(_raw(chance) if source.format == "raw" else _json(columns_of(source), chance), chance)


def columns_of(source: Source) -> tuple[Field, ...]:
    """Of a source of JSON. Raises ConfigurationError for a schema that cannot be read."""
    return parse_ddl(source.schema_ or "", f"source {source.name!r}")


def _keyed(values: Iterator[bytes], chance: random.Random) -> Iterator[Record]:
    for value in values:
        yield Record(b"key-%d" % chance.randrange(KEYS), value)


def _raw(chance: random.Random) -> Iterator[bytes]:
    while True:
        yield bytes(chance.choices(_ALPHABET, k=chance.randrange(_RAW_BYTES)))


def _json(columns: tuple[Field, ...], chance: random.Random) -> Iterator[bytes]:
    values = Values(columns, chance)
    while True:
        yield json.dumps(values.row(), separators=(",", ":"), ensure_ascii=False).encode()
