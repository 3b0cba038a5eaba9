"""A relay that lives on: where the database or the cluster was away, it begins again, as a restart of the process would."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from onceflow.errors import ConfigurationError, OnceflowError
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.positions import check_name
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox.relay import Relay
from onceflow.outbox.sql import TableName
from onceflow.outbox.table import Limits, OutboxTable
from onceflow.outbox.topics import Topics
from onceflow.outbox.waker import Waker
from onceflow.sqlite import FORMS, file_of

KIND = "outbox"
_PAUSE_S = 2.0


class OutboxService:
    """``run`` relays until ``waker`` is woken; ``once`` sends what is there. Counts the records that it has sent.

    ``create_partitions``: missing topics are made, of so many partitions. ``dead_letters``: see ``relay.py``.
    The first start must succeed. After it, retriable errors are told and the relay begins again; others are raised.
    """

    def __init__(
        self,
        name: str,
        table: OutboxTable,
        settings: ClusterSettings,
        waker: Waker,
        *,
        limits: Limits | None = None,
        create_partitions: int | None = None,
        dead_letters: bool = False,
    ) -> None:
        check_name(KIND, name)
        self._name = name
        self._table = table
        self._settings = settings
        self._waker = waker
        self._limits = limits
        self._topics = Topics(settings, create_partitions)
        self._dead_letters = dead_letters
        self._instance = uuid.uuid4().hex
        self.on_trouble: Callable[[OnceflowError], None] = lambda error: None
        self.on_start: Callable[[], None] = lambda: None
        self._relay: Relay | None = None  # the newest that has started
        self._before = 0  # events that the outbox had sent when the first of them had started

    @property
    def sent(self) -> int:
        """Records that this service has sent, those too whose commit is known, or whose rows are deleted, since a later start."""
        return 0 if self._relay is None else self._relay.events - self._before

    def once(self) -> None:
        """Sends batches until the table is empty."""
        with self._started_relay() as relay:
            while not self._waker.woken and relay.step():
                pass

    def run(self) -> None:
        """Until woken."""
        while not self._waker.woken:
            try:
                with self._started_relay() as relay:
                    relay.run(self._waker)
            except OnceflowError as error:
                if not (error.retriable and self._is_started):
                    raise
                self.on_trouble(error)
                self._waker.wait(_PAUSE_S)

    @contextmanager
    def _started_relay(self) -> Iterator[Relay]:
        try:
            self._table.open()
            # The table's own count of batches vouches for the positions where the cluster has forgotten the progress.
            with SourceCommitter(self._name, self._settings, kind=KIND, trust_positions=True) as committer:
                relay = Relay(
                    self._name,
                    self._table,
                    committer,
                    instance=self._instance,
                    limits=self._limits,
                    topics=self._topics,
                    dead_letters=self._dead_letters,
                )
                relay.start(again=self._is_started)
                if not self._is_started:
                    self._before = relay.events
                self._relay = relay
                self.on_start()
                yield relay
        finally:
            self._table.close()

    @property
    def _is_started(self) -> bool:
        return self._relay is not None


def outbox_at(url: str, table: str) -> OutboxTable:
    """The outbox at ``postgresql://...`` or ``sqlite:///path``. No I/O. Raises ConfigurationError."""
    name = TableName.parse(table)
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        from onceflow.outbox.postgresql import PostgresqlOutbox

        return PostgresqlOutbox(url, name)
    if scheme == "sqlite":
        from onceflow.outbox.sqlite import SqliteOutbox

        if not (path := file_of(url)):
            raise ConfigurationError.of("the outbox's address", [f"{url!r} names no file: write {FORMS}"])
        return SqliteOutbox(Path(path), name)
    raise ConfigurationError(
        f"no outbox can be at an address that begins with {scheme!r}",
        action="write postgresql://user@host:5432/database, or sqlite:///file (four slashes for an absolute path)",
    )
