"""The ingest itself: takes rows from a source and commits them with the position behind them, transaction by transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.events import Committed, Finished, Listener, Started
from onceflow.ingest.source import Source, SourceBatch
from onceflow.ingest.terms import to_note, without_note

TRANSACTION_ROWS = 100_000
TRANSACTION_BYTES = 64 << 20
LOOK_AGAIN_S = 0.5
KEEP_S = 24 * 3600.0


@dataclass(slots=True)
class _Group:
    """What goes into one transaction."""

    rows: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    positions: dict[str, str | None] = field(default_factory=dict)
    size_bytes: int = 0

    def add(self, topic: str, batch: SourceBatch) -> None:
        if batch.rows is not None:
            self.rows.append((topic, batch.rows))
        self.positions.update(batch.positions)
        self.size_bytes += batch.size_bytes

    def is_full(self, limit_rows: int) -> bool:
        count = sum(rows.num_rows for _, rows in self.rows)
        size_bytes = sum(rows.nbytes for _, rows in self.rows)
        return bool(count >= limit_rows or size_bytes >= TRANSACTION_BYTES)


class Ingest:
    """One source into one topic under one name. ``run`` it once.

    ``from_now_on``: another topic or key than the name had before is meant, for all rows behind the position.
    ``stop``, from any thread or a signal handler, ends it after the running transaction.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        source: Source,
        tell: Listener = lambda event: None,
        *,
        transaction_rows: int = TRANSACTION_ROWS,
        from_now_on: bool = False,
    ) -> None:
        self._name = name
        self._topic = topic
        self._source = source
        self._tell = tell
        self._transaction_rows = transaction_rows
        self._from_now_on = from_now_on
        self._to_note: dict[str, str] = {}
        self._stop = threading.Event()
        self._committed_at = time.monotonic()

    def stop(self) -> None:
        """Asks it to end in order."""
        self._stop.set()

    def run(self, committer: SourceCommitter, *, follow: bool = False) -> int:
        """Ingests what is there (with ``follow``: and what comes, until ``stop``), and gives the number of rows.

        Raises what the committer and the source raise, and ConfigurationError where the name was begun with other options.
        All that was committed stays, and the next run goes on behind it.
        """
        # Positions are read after older instances are fenced: whatever they sent is decided then.
        positions = committer.start()
        terms = {**self._source.terms, "topic": self._topic}
        self._to_note = to_note(self._name, terms, positions, from_now_on=self._from_now_on)
        self._source.restore(without_note(positions))
        self._tell(Started(self._name, self._topic, bool(positions), self._source.size_bytes()))
        total = 0
        while True:
            total += self._look(committer)
            if not follow or self._stop.is_set():
                break
            self._rest(committer)
        if not self._stop.is_set():
            self._source.check_end()
        self._tell(Finished(self._name, total, "stopped" if self._stop.is_set() else "end"))
        return total

    def _rest(self, committer: SourceCommitter) -> None:
        """Between two looks: one that finds nothing for days must not be forgotten by the cluster."""
        if time.monotonic() - self._committed_at > KEEP_S:
            committer.keep()
            self._committed_at = time.monotonic()
        self._stop.wait(LOOK_AGAIN_S)

    def _look(self, committer: SourceCommitter) -> int:
        total = 0
        for group in self._groups():
            if self._stop.is_set():
                break
            rows = committer.commit(group.rows, {**group.positions, **self._to_note})
            self._to_note = {}
            total += rows
            self._committed_at = time.monotonic()
            self._tell(Committed(rows, group.size_bytes))
        return total

    def _groups(self) -> Iterator[_Group]:
        group = _Group()
        for batch in self._source.batches():
            group.add(self._topic, batch)
            if group.is_full(self._transaction_rows):
                yield group
                group = _Group()
        if group.positions:
            yield group
