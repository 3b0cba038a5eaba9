"""``with writer.transaction():`` all of the block's events and consumed offsets, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from onceflow.errors import DeliveryFailed, OnceflowError, TransactionAborted, WriterError
from onceflow.writer.coordination import Transactions
from onceflow.writer.delivery import FailedDelivery
from onceflow.writer.group_offsets import check as check_ahead
from onceflow.writer.marker import PROGRESS_BYTES, size_of
from onceflow.writer.membership import Membership
from onceflow.writer.misuse import check_transaction

Positions = Mapping[tuple[str, int], int]
"""(topic, partition) to the offset that comes next."""


class Transaction:
    """One transaction: committed at the end of its ``with`` block, aborted when the block raises. Each block takes a new one.

    After the block ``committed`` is True, False, or None while the outcome is unknown, as it is while the block commits.
    ``consumer`` is whom the block's events come from; it is looked at before the first of them.

    Raises at its end: TransactionAborted (retriable: seek the consumer back, if there is one, and run the block again),
    DeliveryFailed (an event was refused for good; the same block would fail again), WriterError (events were consumed and sent,
    and ``consumed`` was not called; or the consumer commits by itself), NotAuthorized (a right is lacking, which no repetition
    grants), Fenced (another writer has the id), OutcomeUnknown (``writer.settle()`` finds out).
    In all but the last nothing of the block is visible.
    """

    def __init__(self, transactions: Transactions, progress: str | None, consumer: Consumer | None = None) -> None:
        check_transaction(progress, consumer)
        if progress is not None and size_of(progress) > PROGRESS_BYTES:
            raise WriterError(
                f"the progress has {size_of(progress)} bytes, and may have {PROGRESS_BYTES}",
                action="commit a reference to it instead",
            )
        self._transactions = transactions
        self._progress = progress
        self._consumer = consumer
        self._membership: Membership | None = None
        self._began = False
        self._is_open = False
        self._handed_out: Positions = {}  # when the block began
        self._offsets: dict[tuple[str, int], int] = {}  # what the block commits
        self._is_consumed = False
        self._refusal: OnceflowError | None = None  # of what was consumed
        self.committed: bool | None = False

    def consumed(self, consumer: Consumer, positions: Positions | None = None) -> None:
        """Commits what was consumed in this transaction: ``positions``, or all that ``consumer`` has given out.

        It must be the consumer that the transaction was opened with, which must not commit by itself, and must read
        committed records only. Raises TransactionAborted when the group was rebalanced since the block began: the events
        may belong to another member now. Whoever owns their partitions then is handed them again; a consumer that keeps them
        goes on behind them, unless it is sought back. The same where ``positions`` name partitions that it had given up before
        the block: poll inside of it. WriterError where the group has committed more than the writer's blocks have. A block that
        catches that ends with it all the same.
        """
        before = self._noted(consumer)
        try:
            self._consume(consumer, before, positions)
        except OnceflowError as refusal:
            self._refusal = refusal
            raise
        self._is_consumed = True

    def _consume(self, consumer: Consumer, before: Membership, positions: Positions | None) -> None:
        self._check(before, Membership.of(consumer), positions or {})
        if positions is None:
            entries = _given_out(consumer)
        else:
            entries = [TopicPartition(topic, part, offset) for (topic, part), offset in positions.items()]
        if entries:
            self._add(consumer, entries, before)

    def _add(self, consumer: Consumer, entries: Sequence[TopicPartition], before: Membership) -> None:
        """Who has run ahead is looked for once a partition: where offsets of the block are on their way, the group's wait."""
        found = {(at.topic, at.partition): at.offset for at in entries}
        ahead = self._transactions.group_offsets.ahead(consumer, found.keys() - self._offsets.keys())
        self._transactions.add_offsets(entries, before.metadata)
        check_ahead(ahead)
        self._offsets |= found

    def _check(self, before: Membership, now: Membership, positions: Positions) -> None:
        """Raises TransactionAborted, or WriterError, unless the events are still those of the member that they were given to."""
        change = before.change_to(now)
        if change:
            raise self._transactions.aborted(f"{change}; its events belong to whoever owns their partitions now")
        if not before.is_member and self._transactions.had_member:
            raise self._transactions.aborted(
                "the consumer was put out of its group before the block; poll it inside of one"
            )
        before.check_member()
        foreign = sorted(positions.keys() - before.owned)
        if foreign:
            named = ", ".join(f"{topic}-{partition}" for topic, partition in foreign)
            raise self._transactions.aborted(f"{named} went to another member before the block began")

    def _noted(self, consumer: Consumer) -> Membership:
        if self._membership is None or consumer is not self._consumer:
            raise WriterError(
                "the transaction was not opened with this consumer, so a rebalance inside of the block would not be seen",
                action="use: with writer.transaction(consumer=consumer) as transaction",
            )
        return self._membership

    def __enter__(self) -> Self:
        if self._began:
            raise WriterError(
                "this transaction has had its block: what ``committed`` says is of that one",
                action="use: with writer.transaction() for each block",
            )
        if self._consumer is not None:
            self._membership = Membership.of(self._consumer)
            self._transactions.had_member |= self._membership.is_member
            self._handed_out = _positions(self._consumer)
            self._transactions.group_offsets.begin(self._consumer, self._membership)
        with self._transactions.at_work:
            self._transactions.begin()
            self._began = self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._transactions.at_work:
            was_open, self._is_open = self._is_open, False
            if error is None:
                self._commit()
            elif was_open:  # or what is open is another's: AsyncTransaction ends what was cancelled while it began
                self._abort_for(error)

    def _commit(self) -> None:
        """Commits. What is told of the block is what is known of that, whatever ends it.

        So that nobody runs a block again that is committed::

            the coordinator has committed; Ctrl-C comes on the way back to here
            "not committed" would have the block run again, and what it wrote is there already
        """
        self.committed = None
        try:
            self._check_consumed()
            self._transactions.commit(self._progress)
        except BaseException as error:
            self.committed = self._transactions.made
            self._transactions.group_offsets.ended(self._offsets, committed=self.committed)
            self._abort_for(error)
            raise
        self.committed = True
        self._transactions.group_offsets.ended(self._offsets, committed=True)

    def _check_consumed(self) -> None:
        """Raises WriterError where events were made of what was consumed, and its offsets would not be committed with them.

        A process that dies then is handed the same again, and sends the same again: to readers that know no ids, twice. And so::

            the group is rebalanced in the block; ``consumed`` says that its events are another member's now
            the block catches that and goes on to its end: committed, they come a second time from the other member
        """
        if self._refusal is not None:
            raise self._refusal
        if self._consumer is None or self._is_consumed or not self._transactions.is_used:
            return
        if _positions(self._consumer).items() - self._handed_out.items():
            raise WriterError(
                "the block has sent events and has not committed the offsets of what its consumer handed out in it",
                action="call transaction.consumed(consumer) in the block (consumed(consumer, {}), if it used nothing of that)",
            )

    def _abort_for(self, error: BaseException | None) -> None:
        reason = ""
        try:
            if isinstance(error, DeliveryFailed) and not _is_refused(error.fields.get("failures", ())):
                reason = self._transactions.reason()
        finally:  # whatever comes between: what stays open would hold up readers, and the next block
            self._transactions.abort()
        self._raise_for(error, reason)

    def _raise_for(self, error: BaseException | None, reason: str) -> None:
        """What the failure means for the caller. Raises Fenced where another writer has the id, which only a look shows.

        librdkafka takes nothing more, neither events nor offsets, before it reports the event that the broker refused: which
        failure came first is known after the abort. And which others there are::

            another thread   hears that an event was refused, and begins to take back those behind it
            sending          is told of that one event; the others are taken back
        """
        if not isinstance(error, DeliveryFailed | TransactionAborted):
            return
        self._transactions.take_back()
        told, found = error.fields.get("failures", ()), self._transactions.failed
        if _is_refused(told) and len(told) >= len(found):
            return
        if _is_refused(found):
            raise self._transactions.sender.error_of(found) from error
        if _is_refused(told):  # by another writer, in this one's block
            return
        if isinstance(error, DeliveryFailed):
            raise self._transactions.aborted(reason, self._with_failures(error, found)) from error

    def _with_failures(self, error: DeliveryFailed, found: Sequence[FailedDelivery]) -> DeliveryFailed:
        if error.fields.get("failures"):
            return error
        return self._transactions.sender.error_of(found, error.message, denied=bool(error.fields.get("denied")))


def _is_refused(failures: Iterable[FailedDelivery]) -> bool:
    """Whether the same block would fail again, because of one of its events."""
    return any(each.refused for each in failures)


def _positions(consumer: Consumer) -> dict[tuple[str, int], int]:
    return {(at.topic, at.partition): at.offset for at in _given_out(consumer)}


def _given_out(consumer: Consumer) -> list[TopicPartition]:
    return [at for at in consumer.position(consumer.assignment()) if at.offset >= 0]
