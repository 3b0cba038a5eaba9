"""The relay: takes a batch of rows, commits it in Kafka, deletes it from the table; again and again.

1. **Fence.** The committer fences older relays of the name in Kafka, and only then gives the committed position. Before that it
   only looks: a relay that is started with another table by mistake, or that has no place for refused rows, is refused, and the
   one that runs goes on.
2. **Settle.** The position and the table's own count of batches must be equal, or the table one behind: then the rows of the
   batch that Kafka has are deleted. Anything else is refused. Only now the table is claimed.
3. **Take.** The rows that are visible now, in the order of their positions, at most a batch, where the table is as this relay has
   left it.
4. **Commit.** Records and position in one Kafka transaction.
5. **Forget.** The rows are deleted and the batch is booked, in one transaction of the database. They must be those that were
   sent.

A row that Kafka can never take (too large, a time that the topic does not take, an aggregatetype that is no topic, text that is
none) stops the relay: what comes after it may depend on it. With ``dead_letters`` it is set aside instead, in the table beside
the outbox, and a small record tells of it::

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

    the same, and B, which had claimed the table before, only connects again: it claims it anew, under a name of this start
    else A would find the claim that it had found, and claim over B: Kafka refuses A, and the table B

    A and B start at once, and the table is one batch behind; B fences A, claims over A, and A forgets the batch before B does
    the batch is gone and the table is B's: B goes on, and A learns from its next commit that it is fenced

A database that has lost what was committed there looks like another relay's::

    A ran and was stopped; B runs; the database is restored from a backup of A's time, or fails over to a replica that lagged
    B connects again and finds A's claim, or nobody's: nobody has taken over, and rows that were sent are in the table again
    so B looks where Kafka is before it gives way; whoever had taken over would have a table that is one batch behind at most

    the same in place, without B's connection being lost: the table's count of batches is not the one that B has left
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from onceflow.errors import Fenced, InputError, OutboxMismatch
from onceflow.ingest.committer import SourceCommitter
from onceflow.outbox.position import KEY, Sent
from onceflow.outbox.records import Refused, as_records, prepare, unsendable
from onceflow.outbox.refusals import error_of, refused_by_kafka
from onceflow.outbox.table import Limits, OutboxRow, OutboxTable, Place
from onceflow.outbox.topics import Topics
from onceflow.outbox.waker import Waker

OnStep = Callable[[str], None]
POLL_S = 1.0


class Relay:
    """One instance's work on one outbox; ``table`` is open. After an error close both and begin with a new one.

    ``instance`` stays the same for the relays of one process, so that one that begins again sees whether another took over;
    its claim is another one at each start.
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
        self._holder = f"{self._instance}/{uuid.uuid4().hex}"
        self._limits = limits or Limits()
        self._on_step = on_step or (lambda step: None)
        self._sent = Sent("")

    def start(self, *, again: bool = False) -> None:
        """Steps 1 and 2. ``again``: this instance has been started before, and gives way to one that came since."""
        before = self._table.place().instance
        if again and not (before or "").startswith(f"{self._instance}/"):
            self._refuse_lost()
            raise Fenced(
                f"another relay {self._name!r} took over while this one was not connected",
                action="nothing, if the other one is meant to run; if there is none, the database has lost this one's claim "
                "(restored, failed over): start it again",
                name=self._name,
            )
        prepare()
        self._look()
        if self._dead_letters:
            self._table.check_aside()
        text = self._committer.start().get(KEY)
        self._on_step("FENCED")
        place = self._claim(before, text)
        if place.batch < self._sent.batch:
            self._settle()
            self._on_step("SETTLED")

    def _refuse_lost(self) -> None:
        """Raises OutboxMismatch where the table is not as we left it, and as no other relay has left it either."""
        place, sent = self._look()
        if place.instance is None:
            raise _apart(self._name, self._table.address, ["this relay had claimed the table, and now nobody has"])
        if place.batch < sent.batch - 1:
            raise _apart(self._name, self._table.address, [_batches(place, sent)])

    @contextmanager
    def _as_left(self) -> Iterator[None]:
        """Around what the table refuses when it is not as we have left it."""
        try:
            yield
        except Fenced:
            self._refuse_lost()
            raise

    @property
    def events(self) -> int:
        """How many the relays of this name have sent from this table so far, once this one has started."""
        return self._sent.events

    @property
    def _left(self) -> Place:
        return Place(self._sent.incarnation, self._name, self._holder, self._sent.batch, self._sent.events)

    def _look(self) -> tuple[Place, Sent]:
        """Raises OutboxMismatch for another relay's table; whether the counts agree is known only behind the fence.

        Kafka first: what another relay books meanwhile does not let the table seem to be behind.
        """
        text = self._committer.look().get(KEY)
        place = self._table.place()
        sent = Sent(self._sent.incarnation or place.incarnation) if text is None else Sent.from_json(text)
        mistakes = _strange(self._name, place, sent)
        if mistakes:
            raise _apart(self._name, self._table.address, mistakes)
        return place, sent

    def _claim(self, before: str | None, text: str | None) -> Place:
        """The place that was found, and claimed as it was; ``before``: who had claimed it before the fence."""
        while True:
            place = self._table.place()
            if place.instance != before:
                self._committer.start()  # raises Fenced, unless that one is older: its claim came behind our fence
            self._sent = Sent(place.incarnation) if text is None else Sent.from_json(text)
            _check(self._name, self._table.address, place, self._sent)
            if self._table.claim(self._name, self._holder, over=place.instance):
                return place
            before = place.instance

    def _settle(self) -> None:
        """Forgets the batch that Kafka has, unless the one that we have fenced woke and did it: then there is nothing to do."""
        try:
            with _behind_commit(self._sent):
                self._table.forget(self._sent)
        except Fenced:
            place = self._table.place()
            if (place.instance, place.batch) != (self._holder, self._sent.batch):
                raise

    def step(self) -> int:
        """Steps 3 to 5 once. The number of records sent; 0: there was nothing to send."""
        with self._as_left():
            rows = self._table.take(self._left, self._limits)
        if not rows:
            return 0
        self._on_step("TAKEN")
        self._sent = self._commit(rows)
        self._on_step("COMMITTED")
        with _behind_commit(self._sent), self._as_left():
            self._table.forget(self._sent)
        self._on_step("FORGOTTEN")
        return len(rows)

    def _commit(self, rows: Sequence[OutboxRow]) -> Sent:
        refused = unsendable(rows) if self._dead_letters else {}
        while True:
            sent = self._sent.following(((row.position, row.id) for row in rows), refused)
            try:
                self._committer.commit(self._records(rows, refused), {KEY: sent.to_json()})
            except InputError as error:  # nothing of the batch is visible
                named = refused_by_kafka(error, [row for row in rows if row.position not in refused])
                if not named:  # the position or a letter, or a row that no record can be made of
                    raise
                if not self._dead_letters:
                    raise error_of(error, named) from error
                refused |= {row.position: reason for row, reason in named}
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

    def run(self, waker: Waker) -> None:
        """Sends what comes until woken; the running batch is finished."""
        while not waker.woken:
            if not self.step():
                self._committer.keep()
                self._table.wait(waker, POLL_S)


@contextmanager
def _behind_commit(sent: Sent) -> Iterator[None]:
    """A refusal says that the batch is out: whoever believed that it is not would send its rows in another way."""
    try:
        yield
    except OutboxMismatch as error:
        error.message += f"; batch {sent.batch} is committed in Kafka, and this relay has deleted none of its rows"
        raise


def _check(name: str, address: str, place: Place, sent: Sent) -> None:
    """Raises OutboxMismatch with all that is wrong, unless the table is where Kafka is or one batch behind."""
    mistakes = _strange(name, place, sent)
    if sent.incarnation == place.incarnation and not sent.batch - 1 <= place.batch <= sent.batch:
        mistakes.append(_batches(place, sent))
    if mistakes:
        raise _apart(name, address, mistakes, table_batch=place.batch, kafka_batch=sent.batch)


def _batches(place: Place, sent: Sent) -> str:
    return f"the table has sent {place.batch} batches, Kafka has {sent.batch}: one of them was restored or begun anew"


def _strange(name: str, place: Place, sent: Sent) -> list[str]:
    """What is wrong however many batches were sent since."""
    mistakes = []
    if place.name not in (None, name):
        mistakes.append(f"the table belongs to the relay {place.name!r}")
    if sent.incarnation != place.incarnation:
        mistakes.append("the relay's position is of another table (made anew, or in another database)")
    return mistakes


def _apart(name: str, address: str, mistakes: Sequence[str], **fields: int) -> OutboxMismatch:
    return OutboxMismatch(
        f"relay {name!r} and {address} do not belong together: " + "; ".join(mistakes),
        action="see docs/outbox.md, 'When the table and Kafka disagree'",
        name=name,
        **fields,
    )
