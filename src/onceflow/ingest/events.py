"""What an ingest tells while it runs, for a display."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerReady:
    """No cluster was named, so the embedded broker is used; it outlives this process."""

    bootstrap_servers: str
    directory: str
    started: bool


@dataclass(frozen=True, slots=True)
class RowsToCome:
    """How many rows a table had behind the position. ``is_estimate``: more than it would be cheap to count."""

    count: int
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """The name is held. ``resumed``: a position was committed before.

    ``size_bytes``: what there is to read, of files; ``rows_to_come``: of a table. None if it is not known.
    """

    name: str
    topic: str
    resumed: bool
    size_bytes: int | None
    rows_to_come: RowsToCome | None


@dataclass(frozen=True, slots=True)
class Committed:
    """One transaction: the rows in it, and how much of the source they took."""

    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Waits:
    """All that the first look found is committed; from here on it follows."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end: all rows of this run. ``reason``: ``end`` or ``stopped``."""

    name: str
    rows: int
    reason: str


Event = BrokerReady | Started | Committed | Waits | Finished
Listener = Callable[[Event], None]
