"""What the relay asks of an outbox table, in whichever database it is.

A row is in the table until it was sent: what is there and not yet committed in Kafka is to be sent, whatever its number. So no
gap can be jumped over::

    A inserts position 1 and stays open; B inserts position 2 and commits
    a reader that keeps "everything up to 2 was read" never sees position 1, which appears when A commits
    this relay sends position 2 and deletes it; position 1 appears, and is sent

and a transaction that stays open delays its own rows only. What is committed in Kafka and not yet deleted is one batch at most:
its rows stand in the position that was committed with it (``position.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onceflow.outbox.position import Sent
from onceflow.outbox.waker import Waker
from onceflow.sqlite import is_utf8

REQUIRED = ("id", "aggregatetype", "aggregateid", "type", "payload", "position")


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One event as it stands in the table; ``payload`` None is a tombstone.

    ``flaws``: why it cannot be sent, in words. SQLite keeps any bytes as text, and a table of the user's own may allow nulls,
    which are the text "None" here; ``nulls`` are the names of these columns.
    """

    position: int
    id: str
    aggregatetype: str
    aggregateid: str | None  # None: of a letter alone
    type: str
    payload: bytes | None
    inserted_at_ms: int | None
    flaws: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch holds: rows, and bytes of payload (one row more than fits)."""

    rows: int = 2000
    size_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """The relay's own row: ``batch`` is the last one whose rows were deleted, ``incarnation`` names the table for ever."""

    incarnation: str
    name: str | None
    instance: str | None
    batch: int
    events: int


class OutboxTable(Protocol):
    """One outbox, used from one thread. Everything raises OutboxUnavailable (retriable) or OutboxMismatch."""

    @property
    def address(self) -> str:
        """Where it is, for people: without a password."""

    def open(self) -> None:
        """Connects and checks that the table is an outbox."""

    def close(self) -> None: ...

    def place(self) -> Place: ...

    def check_aside(self) -> None:
        """Raises OutboxMismatch unless there is a table for rows that are refused."""

    def claim(self, name: str, instance: str, *, over: str | None) -> bool:
        """Books the table for the relay ``name``, if the instance ``over`` (None: nobody) has it: whether it had."""

    def take(self, left: Place, limits: Limits) -> Sequence[OutboxRow]:
        """The rows of the next batch in the order of their positions, when the relay's row is as this relay has ``left`` it.

        When it returns rows, they are on disk for sure. Raises Fenced when the table, its claim or its count is another one:
        this is the last look at it before the rows are in Kafka, and who took them there as well need not be fenced there::

            a relay has sent nothing yet; an operator begins anew under another name (or on another cluster) while it still runs
            both find 0 batches sent; each is a name of its own for Kafka, which takes the same rows from both

            the same, and the tables are made anew: 0 batches are sent of them as well, and the rows are those of another table
        """

    def forget(self, sent: Sent) -> None:
        """Deletes the rows of a batch that is committed in Kafka, and books it; both or nothing. Refused ones are set aside.

        Raises Fenced when another relay has done it, OutboxMismatch when the rows are not those that were sent.
        """

    def wait(self, waker: Waker, timeout_s: float) -> None:
        """Returns when there may be new rows, when the waker is woken, or when the time is over."""


def load(columns: Iterable[tuple[Any, ...]], limits: Limits) -> list[OutboxRow]:
    """The rows of a batch from (position, id, aggregatetype, aggregateid, type, payload, inserted_at in ms), and no more."""
    return list(within((_row(*values) for values in columns), limits))


def _row(
    position: int, event_id: Any, kind: Any, aggregate: Any, event_type: Any, payload: Any, at_ms: Any
) -> OutboxRow:
    """SQLite's columns hold values of any type."""
    names = (event_id, kind, aggregate, event_type)
    texts = [str(value) for value in names]
    if payload is not None and not isinstance(payload, bytes):
        texts.append(str(payload))
        payload = texts[-1].encode(errors="surrogateescape")
    flaws = [f"its {name} is {flaw}" for name, value in zip(REQUIRED, names, strict=False) if (flaw := _no_text(value))]
    if event_id == "":  # no header is made of it: readers could not name the event
        flaws.append("its id is empty")
    flaws += [f"its {name} is no UTF-8" for name, text in zip(REQUIRED, texts, strict=False) if not is_utf8(text)]
    nulls = tuple(name for name, value in zip(REQUIRED, names, strict=False) if value is None)
    return OutboxRow(position, texts[0], texts[1], texts[2], texts[3], payload, at_ms, tuple(flaws), nulls)


def _no_text(value: Any) -> str:
    """A null or bytes would be a name all the same: the text "None", for every such event."""
    if value is None:
        return "null"
    return "bytes, and no text" if isinstance(value, bytes | memoryview) else ""


def within(rows: Iterable[OutboxRow], limits: Limits) -> Iterator[OutboxRow]:
    """Rows until the payloads reach the limit."""
    size_bytes = 0
    for row in rows:
        yield row
        size_bytes += len(row.payload or b"")
        if size_bytes >= limits.size_bytes:
            return
