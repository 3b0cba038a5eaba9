"""The ingest itself: takes rows from a source and commits them with the position behind them, transaction by transaction.

::

    a row is larger than the topic takes; rows of other files are in its transaction, of which nothing is visible
    every start would make the same transaction, and those would never arrive: what comes before the row's batch is committed by
    itself, under the name that is still ours, and the error names the row as its event would be named
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

import pyarrow as pa

from onceflow.errors import InputError
from onceflow.events import identity_of
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.events import Committed, Finished, Listener, Started, Waits
from onceflow.ingest.source import Source, SourceBatch
from onceflow.ingest.terms import FOUND, is_begun, to_note, without_note
from onceflow.stop_flag import StopFlag

TRANSACTION_ROWS = 100_000
TRANSACTION_BYTES = 64 << 20
LOOK_AGAIN_S = 0.5


@dataclass(slots=True)
class _Group:
    """What goes into one transaction."""

    batches: list[SourceBatch] = field(default_factory=list)

    @property
    def positions(self) -> dict[str, str | None]:
        return {key: text for batch in self.batches for key, text in batch.positions.items()}

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)

    @property
    def _rows(self) -> Iterator[pa.RecordBatch]:
        return (batch.rows for batch in self.batches if batch.rows is not None)

    def found(self) -> dict[str, str | None]:
        """What counts nothing, and may go before the rest."""
        waits = is_begun(self.positions)
        return {
            key: text for key, text in self.positions.items() if key.startswith(FOUND) and not (waits and text is None)
        }

    @property
    def count(self) -> int:
        return sum(rows.num_rows for rows in self._rows)

    def is_full(self, limit_rows: int) -> bool:
        size_bytes = sum(rows.nbytes for rows in self._rows)
        return bool(self.count >= limit_rows or size_bytes >= TRANSACTION_BYTES)

    def before(self, batch: SourceBatch) -> _Group:
        return _Group(list(takewhile(lambda each: each is not batch, self.batches)))


class _Sent:
    """The rows of a group as they are asked for, by each attempt anew."""

    def __init__(self, topic: str, group: _Group) -> None:
        self._topic = topic
        self._group = group
        self._last: SourceBatch | None = None

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        for batch in self._group.batches:
            if batch.rows is not None:
                self._last = batch
                yield self._topic, batch.rows

    def refused(self, error: InputError) -> tuple[SourceBatch, int] | None:
        """The batch of the first row that the error names, and the row's number in it; None if it is about something else."""
        if error.fields.get("topic") != self._topic:
            return None  # the positions
        if "row" in error.fields:  # told while the batch was encoded: none was asked for after it
            return None if self._last is None else (self._last, error.fields["row"])
        number = min(error.fields.get("rows", ()), default=None)
        for batch in self._group.batches:
            if number is not None and batch.rows is not None:
                if number < batch.rows.num_rows:
                    return batch, number
                number -= batch.rows.num_rows
        return None


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
        self._has_waited = False
        self._to_note: dict[str, str] = {}
        self._is_begun = False  # rows were committed under the name
        self._next = _Group()
        self._stop = StopFlag()

    def stop(self) -> None:
        """Asks it to end in order."""
        self._stop.set()
        self._source.stop()

    def run(self, committer: SourceCommitter, *, follow: bool = False) -> int:
        """Ingests what is there (with ``follow``: and what comes, until ``stop``), and gives the number of rows.

        Raises what the committer and the source raise, and ConfigurationError where the name was begun with other options.
        All that was committed stays, and the next run goes on behind it.
        """
        self._restore(committer.look())  # a start that is refused leaves the instance that runs alone
        # Positions are read after older instances are fenced: whatever they sent is decided then.
        positions = committer.start()
        self._restore(positions)
        self._is_begun = is_begun(positions)
        size_bytes, rows_to_come = self._source.size_bytes(), self._source.rows_to_come()
        self._tell(Started(self._name, self._topic, self._is_begun, size_bytes, rows_to_come))
        total = 0
        while True:
            total += self._look(committer)
            if not follow or self._stop.is_set():
                break
            self._need_topic()
            self._tell_once(Waits())
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

    def _tell_once(self, event: Waits) -> None:
        if not self._has_waited:
            self._has_waited = True
            self._tell(event)

    def _rest(self, committer: SourceCommitter) -> None:
        """Between two looks: one that finds nothing for days must not be forgotten by the cluster."""
        committer.keep()
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
        note, sent = self._to_note if group.count else {}, _Sent(self._topic, group)
        try:
            rows = committer.commit(sent, {**group.positions, **note})
        except InputError as error:  # nothing of it is visible
            if (refused := sent.refused(error)) is None:
                raise
            batch, row = refused
            good = group.before(batch)
            if good.positions and (self._is_begun or good.count):
                committer.start()  # raises Fenced if the name is another one's by now
                self._commit(committer, good)
            raise _named(error, batch, row) from error
        if group.count:
            self._to_note, self._is_begun = {}, True
        self._tell(Committed(rows, group.size_bytes))
        return rows

    def _groups(self) -> Iterator[_Group]:
        """Positions before the first row of a name go with that row, in a later look if need be: see ``terms.py``.

        Rows that a source gave before one that it refuses are written first: good files do not wait for a bad one.
        What was found, and not read, waits for nothing: it binds nobody. That it is read by now waits with the position::

            app.log has blank lines alone, which are read, and the position waits; it is renamed, and the ingest is started anew
            without a position it is known by nothing but that it was found
        """
        try:
            for batch in self._source.batches():
                self._next.batches.append(batch)
                if self._next.is_full(self._transaction_rows):
                    yield self._taken()
        except InputError:
            yield from self._left()
            raise
        yield from self._left()

    def _left(self) -> Iterator[_Group]:
        if self._next.positions and (self._is_begun or self._next.count):
            yield self._taken()
        elif found := self._next.found():
            left = {key: text for key, text in self._next.positions.items() if key not in found}
            self._next = _Group([SourceBatch(None, left, self._next.size_bytes)])
            yield _Group([SourceBatch(None, found)])

    def _taken(self) -> _Group:
        group, self._next = self._next, _Group()
        return group


def _named(error: InputError, batch: SourceBatch, row: int) -> InputError:
    """The same error with the row's event: of a file its address and the number of the row, or the line."""
    assert batch.rows is not None, "it has the row"
    [headers] = batch.rows.column("headers").slice(row, 1).to_pylist()
    event = identity_of([(header["key"], header["value"]) for header in headers])
    assert event is not None, "each row has one"
    return type(error)(
        f"row {event.id} of {event.source}: {error.message}",
        action=f"{error.action}, what was read before it is written",
        **{**error.fields, "source": event.source, "id": event.id},
    )
