"""The relay's position: which batch is committed in Kafka, and which rows it was made of.

It is committed in the transaction of the batch's records, so it tells after a crash whether the batch is out::

    the relay commits batch 8 in Kafka and is killed before it deletes the batch's rows
    the next start finds batch 8 in Kafka and 7 in the table: it deletes the rows that the position names, and sends none of them

    the relay is killed before Kafka's commit
    the next start finds batch 7 in both: the rows are still to be sent

    the database is restored from a backup: it has batch 3, Kafka has 8
    rows of batches 4 to 8 are in the table again, and nothing tells which: refused, whatever they are
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from onceflow.ingest.later_version import check_known

KEY = "outbox"


@dataclass(frozen=True, slots=True)
class Sent:
    """The newest batch in Kafka. ``rows`` are ranges of positions without gaps; ``digest`` proves which events they were.

    ``refused``: those of them that only a dead letter tells of.
    """

    incarnation: str
    batch: int = 0
    events: int = 0  # in all batches so far
    rows: tuple[tuple[int, int], ...] = ()
    digest: str = ""
    refused: tuple[int, ...] = ()

    def following(self, rows: Iterable[tuple[int, str]], refused: Iterable[int] = ()) -> Sent:
        """The position after the next batch, of (position, id) in rising order."""
        named = list(rows)
        ranges = _ranges([position for position, _ in named])
        events = self.events + len(named)
        return Sent(self.incarnation, self.batch + 1, events, ranges, digest_of(named), tuple(sorted(refused)))

    def positions(self) -> Iterator[int]:
        """Every position of the batch."""
        for first, last in self.rows:
            yield from range(first, last + 1)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Sent:
        """Raises ConfigurationError for what a later version wrote."""
        found = json.loads(text)
        check_known(cls, found, f"the outbox {found['incarnation']}")
        ranges, refused = tuple((first, last) for first, last in found["rows"]), tuple(found.get("refused", ()))
        return cls(**{**found, "rows": ranges, "refused": refused})


def digest_of(rows: Iterable[tuple[int, str]]) -> str:
    """Of (position, id), whatever their order."""
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:32]


def _ranges(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and found[-1][1] == position - 1:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return tuple(found)
