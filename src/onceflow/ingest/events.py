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
class Started:
    """The name is held. ``size_bytes``: what there is to read, if known; ``resumed``: a position was committed before."""

    name: str
    topic: str
    resumed: bool
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """One transaction: the rows in it, and how much of the source they took."""

    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end: all rows of this run. ``reason``: ``end`` or ``stopped``."""

    name: str
    rows: int
    reason: str


Event = BrokerReady | Started | Committed | Finished
Listener = Callable[[Event], None]
