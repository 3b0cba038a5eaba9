"""What the rules (``rules.py``) need of a store within one transaction: four tables, read and written set by set.

``positions``  per partition: the epoch of its owner and the offset that comes next; a row a partition, kept for ever
``sequences``  per partition and source: the highest sequence below the position; the compact form, a row a source
``ids``        what was handled and has no sequence, all of it below its partition's position; this is what expires
``claims``     what is being handled (open, under a lease), and what was confirmed before something older was

Because an id is moved to ``ids`` only when its position has passed it, expiry may delete any row there: an offset that can
still come again is never among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from operator import itemgetter
from typing import Protocol

from onceflow.errors import StoreMismatch
from onceflow.reader.stores.interface import EventKey, Ownership

LAYOUT_VERSION = 1
TABLES = tuple(f"onceflow_{name}" for name in ("layout", "positions", "sequences", "ids", "claims"))

EventId = tuple[str, str]
"""(source, id): what names an event."""


event_id: Callable[[EventKey], EventId] = itemgetter(EventKey._fields.index("source"), EventKey._fields.index("id"))
"""What names an event."""


_LONGEST = 1000  # bytes; group, source and id together must fit into PostgreSQL's index rows of 2.7 kB
_SHORT = _LONGEST // 4  # characters, of up to four bytes
_TOLD = 100  # characters of a long name that stay legible


def storable(keys: Sequence[EventKey]) -> Sequence[EventKey]:
    """The same events, with names that every server can keep, one name to one.

    NUL (which PostgreSQL refuses) is escaped, and of a long name a digest is kept.
    """
    names = list(chain.from_iterable(map(event_id, keys)))
    text = "".join(names)
    if "\0" not in text and "\\" not in text and max(map(len, names), default=0) <= _SHORT:
        return keys
    return [key._replace(source=_storable(key.source), id=_storable(key.id)) for key in keys]


def _storable(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("\0", "\\0")
    if len(escaped) <= _SHORT or len(encoded := escaped.encode(errors="surrogatepass")) <= _LONGEST:
        return escaped
    # No escaped name begins like this: behind a backslash it has another one, or a zero.
    return f"\\#{sha256(encoded).hexdigest()} {escaped[:_TOLD]}"


@dataclass(frozen=True, slots=True)
class Position:
    """One partition: the epoch of its owner, and the offset that comes next (None: nothing was ever handled)."""

    epoch: int
    next_offset: int | None


def layout_mismatch(where: str, version: object) -> StoreMismatch:
    """The error of a store that was made by something else (no version), or by another version."""
    found = "tables named onceflow_ of something else" if version is None else f"layout {version}"
    return StoreMismatch(
        f"{where} has {found}; this version of onceflow uses layout {LAYOUT_VERSION}",
        action="use the version of onceflow that made it, or another store",
    )


class Tables(Protocol):
    """One group's tables inside one transaction."""

    def position(self, topic: str, partition: int) -> Position | None:
        """The partition's row, so that no other transaction can change it before this one ends."""

    def move(self, ownership: Ownership, next_offset: int) -> None:
        """Moves the position."""

    def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:
        """The highest handled sequence of each source that has one."""

    def raise_sequences(self, ownership: Ownership, sequences: Mapping[str, int]) -> None:
        """Sets them; the rules never lower one."""

    def book(self, events: Collection[EventId]) -> set[EventId]:
        """Adds ids; which of them were not there. Waits for another transaction that is adding the same ones."""

    def known(self, events: Collection[EventId]) -> set[EventId]:
        """Which of them are in ``ids``."""

    def confirmed_early(self, events: Collection[EventId]) -> set[EventId]:
        """Which of them are claims that were confirmed before their position passed them."""

    def put_claims(self, ownership: Ownership, keys: Mapping[EventId, EventKey], lease_s: float) -> set[EventId]:
        """Claims those that nobody else holds and nobody confirmed. Which of them somebody does, or did.

        Free is: no row, an open one whose lease ran out, or an open one of this very partition and offset.
        """

    def lowest_open(self, ownership: Ownership) -> int | None:
        """The offset of the partition's lowest open claim, if there is one."""

    def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        """Books claims as confirmed that cannot leave the table yet."""

    def early_below(self, ownership: Ownership, offset: int) -> list[EventKey]:
        """The partition's confirmed claims below an offset."""

    def drop_claims(self, ownership: Ownership, events: Collection[EventId]) -> None:
        """Deletes these claims, if they are the partition's."""
