"""``onceflow.Writer``: events into Kafka, once each and in order, from an ordinary Python program."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer

from onceflow import collector
from onceflow.errors import BrokerUnreachable, WriterError
from onceflow.writer import identity
from onceflow.writer.coordination import Transactions
from onceflow.writer.delivery import Delivery
from onceflow.writer.identity import Headers, Position, WireHeaders
from onceflow.writer.ledger import Ledger
from onceflow.writer.limits import TopicLimits
from onceflow.writer.sender import WAIT_S, Data, Sender, closed
from onceflow.writer.settings import WriterSettings
from onceflow.writer.transaction import Transaction

_OBJECTS = 20_000  # of events on their way, before the garbage collector looks at them


class Writer:
    """Writes events with their CloudEvents identity, exactly once while it lives, in order per partition.

    ``source`` is the CloudEvents source of events that name no other. ``kafka`` holds client options by their Java names;
    one that could lose, repeat or reorder events is refused. With ``transactional_id``, which must be this service's alone
    and stay the same over restarts, events are written inside of ``transaction()`` blocks.

    Use it as a context manager: leaving it waits until everything is acknowledged, or raises DeliveryFailed with all that is
    not. The first failure ends the writer: nothing is sent behind an event that failed, and what each partition holds is a
    beginning of what was sent to it. A transactional writer aborts instead, and goes on.

    No I/O before ``open()``, the ``with`` statement or the first event. Threads may share it, a transaction is
    one thread's. Does not pickle, and must be made after a fork. Raises ConfigurationError with every mistake.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        source: str = "",
        kafka: Mapping[str, object] | None = None,
        transactional_id: str | None = None,
    ) -> None:
        self._settings = WriterSettings.of(bootstrap_servers, kafka or {}, transactional_id, source)
        self._limits = TopicLimits(self._settings.cluster.for_librdkafka, dict(self._settings.producer))
        self._source = source
        self._sender: Sender | None = None
        self._transactions: Transactions | None = None
        self._is_closing = False
        self._closed = False
        self._while_open = ExitStack()
        # Threads may share a writer that none of them has opened; a signal's handler may open and close it as well.
        self._opening = threading.RLock()

    # ------------------------------------------------------------------------------------------------------ lifetime

    def open(self) -> Self:
        """Makes the producer; with a transactional id, also takes the id over from whoever had it."""
        with self._opening:
            self._check_may_open()
            if not self._is_open:
                self._make()
        return self

    @property
    def _is_open(self) -> bool:
        return self._sender is not None or self._transactions is not None

    def _make(self) -> None:
        """Makes what events go through, unless a signal's handler has opened the writer meanwhile, or closed it."""
        name = self._settings.transactional_id
        made = self._make_sender() if name is None else self._take_over(name)
        if self._is_closing or self._is_open:
            made.close()
            self._check_may_open()
            return
        if isinstance(made, Sender):
            self._sender = made
        else:
            self._transactions = made
        self._while_open.enter_context(collector.seldom(_OBJECTS))

    def _take_over(self, transactional_id: str) -> Transactions:
        patience_s = self._settings.delivery_timeout_s
        ledger = Ledger(self._settings.cluster, transactional_id, patience_s)
        timeout_s = self._settings.transaction_timeout_ms / 1000
        transactions = Transactions(transactional_id, ledger, self._make_sender, patience_s, timeout_s)
        transactions.open()
        return transactions

    def _make_sender(self) -> Sender:
        return Sender(self._settings.for_producer(), self._settings.delivery_timeout_s, self._limits)

    def close(self) -> None:
        """Waits until every event is acknowledged, and ends. Raises DeliveryFailed with all that is not.

        An event that another thread sends meanwhile is one of them, or is refused with WriterClosed. So that it is, nobody opens
        the writer any more::

            a thread that sends first opens the writer, which takes a while
            another one closes it: there is nothing to wait for yet
            the first one has opened it, hands its event over, and nobody waits for that
        """
        self._is_closing = True
        with self._opening:  # who opens it has done so by then, or has seen that
            pass
        if self._closed:
            return
        try:
            if self._sender is not None:
                self._sender.end()
        finally:
            self._end()

    def _end(self) -> None:
        self._closed = True
        self._while_open.close()
        sender = self._sender
        self._sender = None
        if self._transactions is not None:
            self._transactions.close()
        elif sender is not None:
            sender.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except Exception as more:  # noqa: BLE001  the first error is the one to see
            assert error is not None
            error.add_note(f"and at the writer's end: {more}")

    def _check_may_open(self) -> None:
        if self._is_closing:
            raise closed()

    def _check_open(self) -> None:
        if self._closed:
            raise closed()

    # ------------------------------------------------------------------------------------------------------- sending

    def send(
        self,
        topic: str,
        value: Data,
        *,
        id: str | None = None,  # noqa: A002  CloudEvents' name
        position: Position | None = None,
        key: Data = None,
        source: str | None = None,
        type: str = "",  # noqa: A002  CloudEvents' name
        sequence: int | None = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
    ) -> Delivery:
        """Sends one event, which is named by ``id`` or by its ``position`` in the source, and waits only for room.

        ``value`` None is a tombstone. ``partition`` -1 places by key as Kafka does; ``timestamp_ms`` 0 is now. Raises
        EventRefused, RecordTooLarge, TopicMissing or NotAuthorized for this event alone, which is then not sent;
        DeliveryFailed, once any event failed; BrokerUnreachable when there is no room for the delivery timeout.
        """
        sender = self._sender or self.sender()
        name = source or self._source
        is_text = id.__class__ is str and (source is None or source.__class__ is str)  # bytes would be taken as well
        if is_text and id and name and position is None and not type and sequence is None and headers is None:
            # As ``event`` does it, without the calls: most events are of this kind.
            delivery, wire = Delivery(sender, topic, name, id), identity.plain(name, id)
        else:
            is_placed = identity.is_placed(key, partition)
            delivery, wire = self.event(sender, topic, id, position, name, type, sequence, headers, is_placed=is_placed)
        if partition not in sender.known.get(topic, ()):
            sender.know(delivery, partition)
        deadline = 0.0
        while True:
            try:
                sender.put(delivery, value, key, wire, partition, timestamp_ms)
            except BufferError:
                deadline = deadline or time.monotonic() + sender.timeout_s
                self._wait_for_room(sender, deadline)
            else:
                return delivery

    def event(
        self,
        sender: Sender,
        topic: str,
        id: str | None,  # noqa: A002  CloudEvents' name
        position: Position | None,
        source: str | None,
        type: str,  # noqa: A002  CloudEvents' name
        sequence: int | None,
        headers: Headers | None,
        *,
        is_placed: bool,
    ) -> tuple[Delivery, WireHeaders]:
        """What ``send`` hands over: the promise of a delivery, and the headers that name the event. Raises EventRefused."""
        name = source or self._source
        try:
            named = identity.identify(name, id, position, type, sequence, is_placed=is_placed)
            wire: WireHeaders = [*named.headers()]
        except (TypeError, ValueError, AttributeError):
            identity.check_kinds(name, id, position, type, sequence)
            raise
        if headers is not None:
            wire += identity.checked(headers, named)
        return Delivery(sender, topic, named.source, named), wire

    def _wait_for_room(self, sender: Sender, deadline: float) -> None:
        sender.serve(WAIT_S)
        sender.check()
        if time.monotonic() > deadline:
            raise BrokerUnreachable(
                f"no room for another event within {sender.timeout_s:g} s", action="see whether the brokers take events"
            )

    def sender(self) -> Sender:
        """What events go through now. Raises WriterClosed; WriterError outside of a transaction, where one is needed."""
        sender, transactions = self._sender, self._transactions
        if self._closed or (sender is None and transactions is None):
            self.open()
            sender, transactions = self._sender, self._transactions
        if transactions is not None:
            return transactions.sending()
        if sender is None:  # another thread has closed it meanwhile
            raise closed()
        return sender

    def flush(self) -> None:
        """Waits until every event sent so far is acknowledged. Raises DeliveryFailed with all that is not."""
        self._check_open()
        if self._sender is not None:
            self._sender.flush()
        elif self._transactions is not None:
            self._transactions.open_sender().flush()

    def serve(self, wait_s: float) -> None:
        """Takes in what was answered, waiting up to ``wait_s``: for a thread that reports deliveries as they come."""
        sender = self._transactions.sender if self._transactions is not None else self._sender
        if sender is not None:
            sender.serve(wait_s)

    # -------------------------------------------------------------------------------------------------- transactions

    def transaction(self, progress: str | None = None, *, consumer: Consumer | None = None) -> Transaction:
        """A block that is committed as a whole or not at all.

        ``progress`` (text, up to 2048 bytes) is committed with it and read back by ``Writer.progress``, also after a crash:
        a position in the source, for one that has no consumer group. For one that has, ``consumer`` is who consumes in
        the block: ``Transaction.consumed`` commits its offsets.
        """
        return Transaction(self._with_transactions(), progress, consumer)

    @property
    def progress(self) -> str:
        """The progress of the last committed transaction under this transactional id; empty if there is none."""
        return self._with_transactions().marker.progress

    def settle(self) -> bool:
        """After OutcomeUnknown: finds out whether the transaction is committed. Raises OutcomeUnknown while nobody answers."""
        transactions = self._with_transactions()
        with transactions.at_work:
            return transactions.settle()

    def _with_transactions(self) -> Transactions:
        self.open()
        if self._transactions is None:
            raise WriterError("this writer has no transactional_id", action="give it one to use transactions")
        return self._transactions
