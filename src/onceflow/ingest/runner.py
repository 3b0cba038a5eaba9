"""The ingest itself: takes rows from a source and commits them with the position behind them, transaction by transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from onceflow.errors import InputError
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

    @property
    def count(self) -> int:
        return sum(rows.num_rows for _, rows in self.rows)

    def is_full(self, limit_rows: int) -> bool:
        size_bytes = sum(rows.nbytes for _, rows in self.rows)
        return bool(self.count >= limit_rows or size_bytes >= TRANSACTION_BYTES)


class Ingest:
    """One source into one topic under one name. ``run`` it once.

    ``from_now_on``: another topic or key than the name had before is meant, for all rows behind the position.
    ``make_topic`` is called once: before the first rows go, or it waits for some. A start that is refused needs no topic.
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
        make_topic: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._topic = topic
        self._source = source
        self._tell = tell
        self._transaction_rows = transaction_rows
        self._from_now_on = from_now_on
        self._make_topic = make_topic
        self._has_topic = False
        self._to_note: dict[str, str] = {}
        self._is_begun = False  # rows were committed under the name
        self._next = _Group()
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
        self._restore(committer.look())  # a start that is refused leaves the instance that runs alone
        # Positions are read after older instances are fenced: whatever they sent is decided then.
        positions = committer.start()
        self._restore(positions)
        self._is_begun = bool(positions)
        self._tell(Started(self._name, self._topic, bool(positions), self._source.size_bytes()))
        total = 0
        while True:
            total += self._look(committer)
            if not follow or self._stop.is_set():
                break
            self._need_topic()
            self._rest(committer)
        if not self._stop.is_set():
            self._source.check_end()
        self._tell(Finished(self._name, total, "stopped" if self._stop.is_set() else "end"))
        return total

    def _restore(self, positions: Mapping[str, str]) -> None:
        """Refuses positions that are of something else, and goes on from them. Counts until it is called again."""
        terms = {**self._source.terms, "topic": self._topic}
        self._to_note = to_note(self._name, terms, positions, from_now_on=self._from_now_on)
        self._source.restore(without_note(positions))

    def _need_topic(self) -> None:
        if not self._has_topic:
            self._make_topic()
            self._has_topic = True

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
            total += self._commit(committer, group)
        return total

    def _commit(self, committer: SourceCommitter, group: _Group) -> int:
        if group.count:
            self._need_topic()
        note = self._to_note if group.count else {}
        rows = committer.commit(group.rows, {**group.positions, **note})
        if group.count:
            self._to_note, self._is_begun = {}, True
        self._committed_at = time.monotonic()
        self._tell(Committed(rows, group.size_bytes))
        return rows

    def _groups(self) -> Iterator[_Group]:
        """Positions before the first row of a name go with that row, in a later look if need be: see ``terms.py``.

        Rows that a source gave before one that it refuses are written first: good files do not wait for a bad one.
        """
        try:
            for batch in self._source.batches():
                self._next.add(self._topic, batch)
                if self._next.is_full(self._transaction_rows):
                    yield self._taken()
        except InputError:
            if self._next.count:
                yield self._taken()
            raise
        if self._next.positions and (self._is_begun or self._next.count):
            yield self._taken()

    def _taken(self) -> _Group:
        group, self._next = self._next, _Group()
        return group
