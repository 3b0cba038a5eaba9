"""The relay: takes a batch of rows, commits it in Kafka, deletes it from the table; again and again.

1. **Fence.** The committer fences older relays of the name in Kafka, and only then gives the committed position.
2. **Settle.** The position and the table's own count of batches must be equal, or the table one behind: then the rows of the
   batch that Kafka has are deleted. Anything else is refused. Only now the table is claimed.
3. **Take.** The rows that are visible now, in the order of their positions, at most a batch.
4. **Commit.** Records and position in one Kafka transaction.
5. **Forget.** The rows are deleted and the batch is booked, in one transaction of the database. They must be those that were
   sent.

A row that Kafka can never take (too large, an aggregatetype that is no topic, text that is none) stops the relay: what comes
after it may depend on it. With ``dead_letters`` it is set aside instead, in the table beside the outbox, and a small record
tells of it::

    row 5 is refused; the letter and rows 6 to 9 are committed in Kafka, and the relay is killed
    the position names row 5 as refused, so the next start sets it aside before it deletes the batch

Two relays of one name::

    A commits batch 8 in Kafka and is stopped (SIGSTOP, a long pause) before it forgets it
    B starts: fences A, finds 8 in Kafka and 7 in the table, forgets batch 8, sends batch 9
    A wakes and forgets batch 8: the table says 9, so A deletes nothing and stops (Fenced)

    A has taken rows and is stopped before the commit; B starts and sends them
    A wakes and commits: Kafka refuses it (Fenced)

    A has fenced in Kafka, and is stopped before it looks at the table; B starts, claims the table and sends batches
    A wakes with a position of before that, which does not fit the table, and would claim it: B, connecting again, would find A
    so whoever finds another claim than before its own fence asks Kafka who holds the name, and claims over that one alone

    the same, and B, which had claimed the table before, only connects again: the claim is the one that A had found
    A's position does not fit the table; before it says that the two disagree, which an operator would mend, it asks as well
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence

import pyarrow as pa

from onceflow.errors import Fenced, OutboxMismatch, RecordTooLarge
from onceflow.ingest.committer import SourceCommitter
from onceflow.outbox.position import KEY, Sent
from onceflow.outbox.records import Refused, as_records, prepare, topic_of, unsendable
from onceflow.outbox.table import Limits, OutboxRow, OutboxTable, Place
from onceflow.outbox.topics import Topics
from onceflow.outbox.waker import Waker

OnStep = Callable[[str], None]
POLL_S = 1.0
KEEP_S = 24 * 3600.0


class Relay:
    """One instance's work on one outbox; ``table`` is open. After an error close both and begin with a new one.

    ``instance`` stays the same for the relays of one process, so that one that begins again sees whether another took over.
    ``topics`` sees to missing topics before each commit; without it they are an error of the commit.
    """

    def __init__(
        self,
        name: str,
        table: OutboxTable,
        committer: SourceCommitter,
        *,
        instance: str | None = None,
        limits: Limits | None = None,
        topics: Topics | None = None,
        dead_letters: bool = False,
        on_step: OnStep | None = None,
    ) -> None:
        self._topics = topics
        self._dead_letters = dead_letters
        self._name = name
        self._table = table
        self._committer = committer
        self._instance = instance or uuid.uuid4().hex
        self._limits = limits or Limits()
        self._on_step = on_step or (lambda step: None)
        self._sent = Sent("")

    def start(self, *, again: bool = False) -> None:
        """Steps 1 and 2. ``again``: this instance has been started before, and gives way to one that came since."""
        before = self._table.place().instance
        if again and before != self._instance:
            raise Fenced(
                f"another relay {self._name!r} took over while this one was not connected",
                action="nothing, if the other one is meant to run",
                name=self._name,
            )
        prepare()
        text = self._committer.start().get(KEY)
        self._on_step("FENCED")
        if self._dead_letters:
            self._table.check_aside()
        place = self._claim(before, text)
        if place.batch < self._sent.batch:
            self._table.forget(self._sent)
            self._on_step("SETTLED")

    def _claim(self, before: str | None, text: str | None) -> Place:
        """The place that was found, and claimed as it was; ``before``: who had claimed it before the fence."""
        while True:
            place = self._table.place()
            if place.instance != before:
                self._committer.start()  # raises Fenced, unless that one is older: its claim came behind our fence
            self._sent = Sent(place.incarnation) if text is None else Sent.from_json(text)
            self._check(place)
            if self._table.claim(self._name, self._instance, over=place.instance):
                return place
            before = place.instance

    def _check(self, place: Place) -> None:
        """Raises OutboxMismatch, or Fenced where another relay has sent batches since our fence."""
        try:
            _check(self._name, self._table.address, place, self._sent)
        except OutboxMismatch:
            self._committer.start()
            raise

    def step(self) -> int:
        """Steps 3 to 5 once. The number of records sent; 0: there was nothing to send."""
        rows = self._table.take(self._sent.batch, self._limits)
        if not rows:
            return 0
        self._on_step("TAKEN")
        sent = self._commit(rows)
        self._on_step("COMMITTED")
        self._table.forget(sent)
        self._sent = sent
        self._on_step("FORGOTTEN")
        return len(rows)

    def _commit(self, rows: Sequence[OutboxRow]) -> Sent:
        refused = unsendable(rows) if self._dead_letters else {}
        while True:
            sent = self._sent.following(((row.position, row.id) for row in rows), refused)
            try:
                self._committer.commit(self._records(rows, refused), {KEY: sent.to_json()})
            except RecordTooLarge as error:
                # Nothing of the batch is visible. Kafka counts within the rows of the topic.
                of_topic = _sent_to(error.fields["topic"], rows, refused)
                if not of_topic:  # the position or a letter
                    raise
                row = of_topic[error.fields["row"]]
                if not self._dead_letters:
                    raise _too_large(error, row) from error
                refused[row.position] = error.message
                self._committer.start()
            else:
                return sent

    def _records(self, rows: Sequence[OutboxRow], refused: Refused) -> list[tuple[str, pa.RecordBatch]]:
        source = f"/outbox/{self._name}/{self._sent.incarnation}"
        records = as_records(rows, source, self._sent.events, refused, self._letters)
        if self._topics is not None:
            self._topics.ensure(topic for topic, _ in records)
        return records

    @property
    def _letters(self) -> str:
        return f"outbox.dead-letter.{self._name}"

    def run(self, waker: Waker, told: Callable[[int], None] = lambda count: None) -> None:
        """Sends what comes until woken; the running batch is finished. ``told`` hears the size of each batch."""
        committed_at = time.monotonic()
        while not waker.woken:
            count = self.step()
            if count:
                told(count)
            elif time.monotonic() - committed_at < KEEP_S:
                self._table.wait(waker, POLL_S)
                continue
            else:
                self.keep()
            committed_at = time.monotonic()

    def keep(self) -> None:
        """Commits the position once more: a cluster forgets what was not committed for a week."""
        self._committer.commit([], {KEY: self._sent.to_json()})


def _sent_to(topic: str, rows: Sequence[OutboxRow], refused: Refused) -> list[OutboxRow]:
    return [row for row in rows if row.position not in refused and topic_of(row) == topic]


def _too_large(error: RecordTooLarge, row: OutboxRow) -> RecordTooLarge:
    return RecordTooLarge(
        f"event {row.id} (type {row.type}) of {row.aggregatetype} {row.aggregateid!r:.100}: {error.message}",
        action="raise the topic's max.message.bytes, or start with --refused dead-letter, which sets such rows aside and goes "
        "on; nothing of the batch is visible, and the rows stand in the table",
        **{**error.fields, "event_id": row.id, "position": row.position},
    )


def _check(name: str, address: str, place: Place, sent: Sent) -> None:
    """Raises OutboxMismatch with all that is wrong, unless the table is where Kafka is or one batch behind."""
    mistakes = []
    if place.name not in (None, name):
        mistakes.append(f"the table belongs to the relay {place.name!r}")
    if sent.incarnation != place.incarnation:
        mistakes.append("the position in Kafka is of another table (made anew, or in another database)")
    elif not sent.batch - 1 <= place.batch <= sent.batch:
        mistakes.append(
            f"the table has sent {place.batch} batches, Kafka has {sent.batch}: one of them was restored or begun anew"
        )
    if mistakes:
        raise OutboxMismatch(
            f"relay {name!r} and {address} do not belong together: " + "; ".join(mistakes),
            action="see docs/outbox.md, 'When the table and Kafka disagree'",
            name=name,
            table_batch=place.batch,
            kafka_batch=sent.batch,
        )
