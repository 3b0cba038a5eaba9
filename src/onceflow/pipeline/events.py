"""What a running pipeline tells about itself, for a terminal, for logs and for machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerReady:
    """The embedded broker runs; ``started`` is False when it ran before."""

    bootstrap_servers: str
    directory: str
    started: bool


@dataclass(frozen=True, slots=True)
class TopicsCreated:
    """Missing topics were made."""

    topics: tuple[str, ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know."""

    text: str


@dataclass(frozen=True, slots=True)
class Started:
    """The query runs."""

    name: str
    guarantee: str
    query_id: str
    checkpoint: str
    bootstrap_servers: str


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A micro-batch is visible. ``written`` is False when an earlier run had committed it already.

    ``rows_in`` counts what the sources gave, ``records`` what was written, ``malformed`` the rows that were dropped or
    emptied as the source's ``on_malformed`` says; ``duration_ms`` is the whole micro-batch, ``sink_ms`` its transaction
    with the query's own work in it.
    """

    batch_id: int
    written: bool
    rows_in: int
    records: int
    malformed: int
    duration_ms: int
    sink_ms: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """The pipeline ends after the running batch."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The pipeline ended in order; the counts are those of this run."""

    name: str
    batches: int
    records: int
    reason: str


@dataclass(frozen=True, slots=True)
class StandbyReady:
    """A second driver is warm and waits; ``pid`` is its process, and the process group that its JVM is in."""

    pid: int


@dataclass(frozen=True, slots=True)
class DriverLost:
    """The driver ``pid`` ended without being asked to; after ``pause_s`` seconds another one takes over."""

    pid: int
    reason: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class TookOver:
    """The first batch of the driver that took over is committed, ``seconds`` after the loss of the one before."""

    pid: int
    seconds: float


Event = (
    BrokerReady
    | TopicsCreated
    | Note
    | Started
    | BatchCommitted
    | Stopping
    | Finished
    | StandbyReady
    | DriverLost
    | TookOver
)
Listener = Callable[[Event], None]
