"""One librdkafka producer, and all that is outstanding on it.

The order of a partition is kept even where an event fails: what the topic holds is always a beginning of what was sent.
Plain librdkafka does not promise that, because it gives up each event alone::

    events 1 and 2 wait for a broker that is away; 1 reaches its message.timeout.ms and is given up
    the broker comes back; 2, sent a moment later, is written
    the application sends 1 again, behind 2

So librdkafka is told to give up nothing (``message.timeout.ms=0``), and the writer gives up all that is outstanding at once,
when the oldest event was not acknowledged within the delivery timeout. An event that a broker refuses is a fatal error for
librdkafka (``enable.gapless.guarantee``): those behind it are not written either. After a failure nothing more is sent. In a
transaction neither matters: a failure aborts all of it.

What is refused is not therefore unwritten. librdkafka repeats a request, and reports what came of the last one alone::

    the leader appends an event; the connection is lost before it says so
    the right to write is taken away; the repeated request is refused for that, before anybody looks for a repetition

So an event is called not written where nothing of the kind was heard since it was sent (``heard_log``), and else nobody knows.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from onceflow.errors import (
    BrokerUnreachable,
    DeliveryFailed,
    NotAuthorized,
    RecordTooLarge,
    RequestFailed,
    TopicMissing,
    WriterClosed,
)
from onceflow.kafka.missing import SURE_S, meant
from onceflow.kafka.opened import opened
from onceflow.kafka.rights import is_denied, tells_of_denial
from onceflow.writer.delivery import REFUSED, Delivery, FailedDelivery, Fate
from onceflow.writer.heard_log import TELLING, HeardLog
from onceflow.writer.identity import WireHeaders
from onceflow.writer.limits import TopicLimits, size_alone
from onceflow.writer.misuse import mistakes_of, no_such_partition, place_mistakes, refused

WAIT_S = 0.05
_SERVE_EVERY = 200  # events between two looks at what came in
_GIVE_UP_S = 10.0
_LAST_CHANCE_S = 1.0
_MISSING = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}
_MEND = "mend the cause, make a new writer and send these events again under the same ids"
_MEND_BLOCK = "mend the cause (correct what is refused, or leave it out), and run the block again under the same ids"
_TAKEN_BACK = {
    KafkaError._PURGE_QUEUE: "taken back before it was sent",  # noqa: SLF001  librdkafka's "Purged in queue"
    KafkaError._PURGE_INFLIGHT: "taken back on its way to the broker",  # noqa: SLF001
}
"""What becomes of the events that are outstanding when another one has failed, or when they take too long."""
_NOT_TAKEN = (BufferError, KafkaException, OverflowError, TypeError, ValueError)
"""What librdkafka and its binding refuse an event with."""
_AWAY = {"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "LEADER_NOT_AVAILABLE"}

Data = bytes | str | None


class Sender:
    """Sends events in order, and knows which are not acknowledged. Threads may share it.

    ``timeout_s`` is the delivery timeout. ``on_settled`` is called for each event that is decided, on whichever thread
    looks at what came in.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        timeout_s: float,
        limits: TopicLimits,
        on_settled: Callable[[Delivery], None] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._options = options
        self._limits = limits
        self._is_transactional = "transactional.id" in options
        # An event that failed in a block is never committed: the block ends with its failure.
        self.fate_of_lost = Fate.ABORTED if self._is_transactional else Fate.UNKNOWN
        self._alone: set[Delivery] = set()  # those that a broker may refuse for their size, each in a batch of its own
        self._refitting = 0  # the thread that replaces the producer: no other one hands anything over meanwhile
        self.failures: list[FailedDelivery] = []
        self._on_settled = on_settled
        self.settles_more = on_settled is not None  # or an acknowledged event is taken off ``pending``, and that is all
        self._servers = options["bootstrap.servers"]
        self.pending: dict[Delivery, bool] = {}
        self.known: dict[str, range] = {}  # the topics that there are: what ``partition`` may be, -1 for placed by key
        self._since_served = 0
        self._given_up = False
        self._is_cut_short = False  # what is outstanding is to be taken back, and whoever did it was interrupted
        self._is_ended = False  # no more events are taken; those that were are waited for
        self._one_refits = threading.RLock()
        # No event is handed over behind those that another thread takes back. A signal's handler may send as well.
        self._handing_over = threading.RLock()
        self._broken = False  # by an error that librdkafka calls fatal
        self._doubt_at = -math.inf  # when what became of a request was last not known, or a connection not made
        self._sent_again_at = -math.inf  # when the connection to the coordinator was last lost, or EndTxn asked again
        self._told_at = -math.inf  # when librdkafka last told of that as of an error
        self._trouble = ""  # what librdkafka last reported of its connections
        self._batch_bytes = limits.batch_bytes
        self._live: Producer | None = self._made(self._batch_bytes)

    def _made(self, batch_bytes: int) -> Producer:
        options = {**self._options, **TELLING, "batch.size": batch_bytes, "error_cb": self._note}
        return opened(
            lambda: Producer(options, logger=HeardLog(self._note_doubt, self._note_sent_again)), "the writer's settings"
        )

    @property
    def producer(self) -> Producer:
        """librdkafka's producer. Raises WriterClosed."""
        if self._live is None:
            raise closed()
        return self._live

    def connect(self, topic: str) -> None:
        """Waits until a broker answers, about ``topic``, but not for long: where none does, the next call tells why.

        For what librdkafka 2.16 does first in a transaction it asks any broker who coordinates, and a new producer has none yet::

            init_transactions looks for a connection in the moment before there is one, and again 500 ms later
            so 5 of 7 starts took 510 ms, and the others 60; with an answer of any kind before it, all took 60
        """
        with suppress(KafkaException):
            self.producer.list_topics(topic, timeout=min(2.0, self.timeout_s))

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.str()
        self._told_at = self._doubt_at = time.monotonic()

    def _note_doubt(self) -> None:
        self._doubt_at = time.monotonic()

    def _note_sent_again(self) -> None:
        self._sent_again_at = time.monotonic()

    def _break(self, error: KafkaError) -> None:
        self._trouble = error.str()
        self._broken = True

    def sent_again(self, since: float) -> bool:
        """Whether a request to the transaction coordinator may have been sent twice, ``since`` then."""
        self.serve(0)
        return self._sent_again_at > since

    def is_shaken(self, since: float) -> bool:
        """Whether the producer broke, or told of a connection that it could not make, or of the last one lost, ``since`` then."""
        return self._broken or self._told_at > since

    # ------------------------------------------------------------------------------------------------------- sending

    def put(
        self, delivery: Delivery, value: Data, key: Data, headers: WireHeaders, partition: int, timestamp_ms: int
    ) -> None:
        """Hands one event over. Raises BufferError when there is no room, what ``check`` raises, or what it is refused for.

        A signal may be heard whenever a call begins or has ended, and its handler may raise::

            produce has taken the event; Ctrl-C is heard before it is noted here, or is taken for a refusal
            the event is written, or fails, and neither flush nor the end of the writer knows of it

        So it is noted just before, with no call in between, and forgotten only where librdkafka refuses it.

        Its time counts from here::

            a broker that starts takes 25 s to tell of the topic; the event is handed over, and acknowledged within 10
            counted from ``send``, it were overdue by then: all that is outstanding would be taken back, though the broker works
        """
        if self.failures:
            self.check()
        try:
            if timestamp_ms < 0:
                raise ValueError  # named below
            with self._handing_over:
                topic = delivery.topic
                if topic in self._limits.tight:
                    self._weigh(delivery, value, key, headers)
                producer = self.producer
                if self._given_up or self._is_ended or (self._refitting and self._refitting != threading.get_ident()):
                    raise self._shut()
                delivery.sent_at = time.monotonic()
                self.pending[delivery] = True
                # By position (None is on_delivery, callback's other name): names cost a tenth of all that sending an event takes.
                producer.produce(topic, value, key, partition, delivery, None, timestamp_ms, headers)
        except _NOT_TAKEN as error:
            self.pending.pop(delivery, None)
            self._alone.discard(delivery)
            if isinstance(error, KafkaException):
                raise self._refusal(error.args[0], delivery, partition) from None
            if isinstance(error, TypeError | ValueError | OverflowError):
                mistakes = mistakes_of(value, key, headers, partition, timestamp_ms)
                if mistakes:
                    raise refused(delivery.topic, delivery.name, mistakes) from error
            raise
        self._since_served += 1
        if self._since_served >= _SERVE_EVERY:
            self.serve(0)

    def _shut(self) -> Exception:
        """Why no event is handed over now."""
        if self._given_up:
            return self.error_of(tuple(self.failures), "what was outstanding is taken back: nothing follows it")
        return closed() if self._is_ended else BufferError()

    def _weigh(self, delivery: Delivery, value: Data, key: Data, headers: WireHeaders) -> None:
        """Raises RecordTooLarge. Where the broker alone can tell (see ``TopicLimits``), it is only noted if it is at fault then.

        An event that is larger than a batch may be has one of its own. What shares one is not at fault where that is refused.
        """
        limit = self._limits.tight[delivery.topic]
        size = size_alone(value, key, headers)
        if size <= limit:
            return
        if self._limits.is_exact(delivery.topic):
            raise RecordTooLarge(
                f"event {delivery.name} has {size} bytes, and {delivery.topic} takes {limit} (max.message.bytes)",
                action="raise the topic's max.message.bytes, split the event, or set compression.type",
                topic=delivery.topic,
            )
        if size > self._batch_bytes:
            self._alone.add(delivery)
            self.settles_more = True

    def _refusal(self, error: KafkaError, delivery: Delivery, partition: int) -> Exception:
        event = f"{delivery.identity.source} {delivery.identity.id}"
        if error.code() == KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001  the topic was made anew, with fewer of them
            self.known.pop(delivery.topic, None)
            return refused(delivery.topic, delivery.name, [f"the topic has no partition {partition} any more"])
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return RecordTooLarge(
                f"event {event} for {delivery.topic} is larger than the writer's max.request.size",
                action="raise max.request.size (and the topic's max.message.bytes), or split the event",
                topic=delivery.topic,
            )
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001  confluent-kafka's name of librdkafka's code
            self._broken = True
            self.serve(0)
        said = f"event {event} to {delivery.topic} was not sent: {error.str()}"
        return self.error_of(tuple(self.failures), said, denied=is_denied(error))

    def know(self, delivery: Delivery, partition: int) -> None:
        """Makes sure that there is a place for the event, before the first one there. Waits while no broker answers.

        A broker hears of a topic or of a partition a moment after it was made: that it does not know it proves nothing at once.
        Raises TopicMissing; EventRefused where the topic has no such partition.
        """
        topic = delivery.topic
        mistakes = place_mistakes(topic, partition)
        if mistakes:
            raise refused(topic, delivery.name, mistakes)
        began_at = time.monotonic()
        deadline, sure_at = began_at + self.timeout_s, began_at + min(SURE_S, self.timeout_s)
        while (error := self._look_up(topic)) is not None or partition not in self.known[topic]:
            is_away = error is not None and error.name() in _AWAY
            may_come = error is None or error.name() in _MISSING
            if time.monotonic() >= (deadline if is_away else sure_at if may_come else began_at):
                raise self._no_place(delivery, partition, error)
            self.serve(WAIT_S)

    @property
    def is_coarse(self) -> bool:
        """Whether it makes batches that are larger than a topic takes, which was met after the producer was made."""
        return self._limits.batch_bytes < self._batch_bytes

    def _refit(self) -> None:
        """Replaces the producer by one of smaller batches, as soon as nothing is outstanding. Raises DeliveryFailed.

        A signal's handler sends by the one that there was, for where it runs nothing goes on until it ends::

            all is acknowledged; a signal is heard; its handler sends, and waits for room until the delivery timeout
            nobody makes room: the thread that replaces the producer is the one that waits
        """
        with self._one_refits:
            # Another thread did it meanwhile; or a signal's handler sends, while the thread that it has interrupted is at it.
            if not self.is_coarse or self._refitting:
                return
            with self._handing_over:
                self._refitting = threading.get_ident()
            try:
                batch_bytes = self._limits.batch_bytes
                made = self._made(batch_bytes)
                while self.pending:  # no call follows the last look, so no handler comes behind it
                    self.flush()
                self._batch_bytes, self._live = batch_bytes, made
            finally:
                self._refitting = 0

    def _look_up(self, topic: str) -> KafkaError | None:
        """Asks the cluster: ``known`` has what there is of the topic then, or the error is what it said.

        Before that the producer is replaced where its batches are larger than the topic takes. Raises DeliveryFailed.
        """
        self.serve(0)
        try:
            found = self.producer.list_topics(topic, timeout=min(2.0, self.timeout_s)).topics[topic]
        except KafkaException as error:
            return cast("KafkaError", error.args[0])
        if found.error is not None:
            return cast("KafkaError", found.error)
        self._limits.learn(topic)
        if self.is_coarse and not self._is_transactional:
            self._refit()
        self.known[topic] = range(-1, len(found.partitions))  # from here on other threads send there, and ask nobody
        return None

    def _no_place(self, delivery: Delivery, partition: int, error: KafkaError | None) -> Exception:
        topic = delivery.topic
        if error is None:
            return refused(topic, delivery.name, [no_such_partition(partition, self.known[topic].stop)])
        if error.name() in _MISSING:
            return self._missing(topic)
        if error.name() in _AWAY:
            return self.unreachable(error.str())
        if error.name() == "TOPIC_AUTHORIZATION_FAILED":
            return NotAuthorized(f"topic {topic}: {error.str()}", action="grant WRITE and DESCRIBE on the topic")
        if error.name() == "TOPIC_EXCEPTION":
            return TopicMissing(f"{topic!r} cannot be a topic's name: {error.str()}", action="correct the name")
        return RequestFailed(f"the metadata of topic {topic}: {error.str()}", error=error.name())

    def _missing(self, topic: str) -> TopicMissing:
        action = "create it, or correct the name"
        with suppress(KafkaException):  # the names are a help, no more
            action += f"; {meant([topic], self.producer.list_topics(timeout=min(2.0, self.timeout_s)).topics)}"
        return TopicMissing(f"topic {topic} does not exist", action=action, topics=(topic,))

    # ------------------------------------------------------------------------------------------------ what came in

    def failure_of(self, delivery: Delivery, error: KafkaError) -> FailedDelivery:
        """A delivery report that says no, as data. What is not refused outright may have been written."""
        refused, reason = error.code() in REFUSED, _TAKEN_BACK.get(error.code(), error.str())
        fate = Fate.NOT_WRITTEN if refused and self._doubt_at < delivery.sent_at else self.fate_of_lost
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._limits.doubt(delivery.topic)
            if delivery not in self._alone:
                refused, reason = False, self._limits.refused_batch(delivery.topic, self._batch_bytes)
        return FailedDelivery(delivery.topic, delivery.identity, reason, fate, refused)

    def settled(self, delivery: Delivery) -> None:
        """Takes a decided event off the books; one of an aborted transaction is on them no more."""
        self._alone.discard(delivery)
        if self.pending.pop(delivery, False) and delivery.failure is not None:
            self.failures.append(delivery.failure)
        if self._on_settled is not None:
            self._on_settled(delivery)

    def serve(self, wait_s: float) -> None:
        """Takes in what was answered, waiting up to ``wait_s`` for something; gives up where that is due."""
        self._since_served = 0
        self._poll(wait_s)
        if self._is_overdue():
            self._last_chance()
        if self._is_cut_short or (not self._given_up and (self.failures or self._broken or self._is_overdue())):
            self.give_up()

    def _last_chance(self) -> None:
        """The application may have slept for long: the answers are here, and only have to be taken in."""
        deadline = time.monotonic() + _LAST_CHANCE_S
        while self._is_overdue() and time.monotonic() < deadline:
            self._poll(WAIT_S)

    def _poll(self, wait_s: float) -> None:
        try:
            self.producer.poll(wait_s)
        except KafkaException as error:  # librdkafka reports a fatal error here, once
            self._break(error.args[0])

    def _is_overdue(self) -> bool:
        oldest = self._oldest()
        return oldest is not None and time.monotonic() - oldest.sent_at > self.timeout_s

    def _oldest(self) -> Delivery | None:
        """Looked at while other threads send and are answered::

        serving   begins to look; the interpreter changes threads
        sending   adds an event: an iterator that has begun fails, which ended the thread that serves, and with it all answers
        """
        while True:
            with suppress(RuntimeError):
                return next(iter(self.pending), None)

    def give_up(self) -> None:
        """Takes back all that is outstanding: nothing more of it is written, unless it is on its way already.

        Once; but begun and cut short it is done by whoever comes next::

            a broker is away, the events are overdue and are being taken back; Ctrl-C; the writer's block ends, and flushes
            they are never acknowledged and never taken back: it would wait for ever
        """
        try:
            if self.stop() and not self._is_cut_short:
                return
            self._is_cut_short = False
            self._take_back()
        except BaseException:
            self._is_cut_short = True
            raise

    def stop(self) -> bool:
        """No event follows, and none is taken back any more: what aborts does that. Whether it had come to that already."""
        with self._handing_over:
            before, self._given_up = self._given_up, True
        return before

    def _take_back(self) -> None:
        self.producer.purge()
        deadline = time.monotonic() + _GIVE_UP_S
        while self.pending and time.monotonic() < deadline:
            self._poll(WAIT_S)
        for delivery in list(self.pending):
            delivery.abandon("librdkafka did not say what became of it")

    def check(self) -> None:
        """Raises DeliveryFailed with all failures, if there is one."""
        if self.failures and not self._given_up:
            self.give_up()
        if self.failures:
            raise self.error_of(tuple(self.failures))

    def wait_for(self, delivery: Delivery, timeout_s: float | None = None) -> None:
        """Waits until ``delivery`` is decided; the delivery timeout bounds it, and ``timeout_s`` if it is given."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if not delivery.done:  # one that is decided asks nobody: the writer may be closed
            self.serve(0)
        while not delivery.done and (left := deadline - time.monotonic()) > 0:
            self.serve(min(WAIT_S, left))

    @property
    def outstanding(self) -> int:
        return len(self.pending)

    def flush(self) -> None:
        """Waits until every event so far is acknowledged; the delivery timeout bounds it. Raises DeliveryFailed.

        Does not wait for those that other threads send meanwhile: while they do, there is always one.
        """
        so_far = list(self.pending)
        while any(delivery in self.pending for delivery in so_far):
            self._hurry()
            self.serve(0)
        self.check()

    def _hurry(self) -> None:
        """Takes in what was answered, as ``_poll``; what lingers for company is sent, for librdkafka hurries just as long."""
        try:
            self.producer.flush(WAIT_S)
        except KafkaException as error:
            self._break(error.args[0])

    def forget(self) -> None:
        """After an abort: what failed was part of it."""
        self.pending.clear()
        self.failures.clear()
        self._given_up = self._is_cut_short = False

    def end(self) -> None:
        """Takes no more events, and waits for those that it has taken. Raises DeliveryFailed, as ``flush``.

        In this order, for threads share it::

            nothing is outstanding any more; another thread hands over an event; what is outstanding is dropped
            the writer has ended without an error, and the event is nowhere
        """
        with self._handing_over:
            self._is_ended = True
        self.flush()

    def close(self) -> None:
        """Drops whatever is still outstanding.

        Not by ``Producer.close()``: that aborts a transaction in progress, and the one whose commit was sent and not
        answered counts as one.
        """
        if self.pending:
            self.stop()
            self._take_back()
        self._live = None

    # ------------------------------------------------------------------------------------------------------- errors

    def error_of(
        self, failures: Sequence[FailedDelivery], message: str = "", *, denied: bool = False
    ) -> DeliveryFailed:
        """All failures in one error, those first that tell why the others are; the first few of them in its text.

        For librdkafka does not tell of them in the order in which they failed::

            an event is refused for its size, and librdkafka's transaction must be aborted
            its main thread takes back what waits behind, and reports it; then another thread reports what was refused

        ``denied``: a right is lacking, by what ``message`` was made of; what was reported besides is looked at here, and not the
        text, for an event may be called "authorization failed".
        """
        telling = sorted(failures, key=lambda failure: (not failure.refused, failure.reason in _TAKEN_BACK.values()))
        lines = "".join(f"\n  - {failure}" for failure in telling[:5])
        more = f"\n  - and {len(failures) - 5} more" if len(failures) > 5 else ""
        noun = "event was" if len(failures) == 1 else "events were"
        said = message or f"{len(failures)} {noun} not acknowledged"
        trouble = f" ({self._trouble})" if self._trouble else ""
        text = f"{said}{trouble}{':' if lines else ''}{lines}{more}"
        denied = denied or any(map(tells_of_denial, (self._trouble, *(failure.reason for failure in failures))))
        grant = "grant WRITE on the topics of these events; " if denied else ""
        return DeliveryFailed(
            text,
            action=grant + (_MEND_BLOCK if self._is_transactional else _MEND),
            failures=tuple(telling),
            denied=denied,
            fatal=not self._is_transactional and (bool(self.failures) or self._given_up or self._broken),
        )

    def unreachable(self, text: str) -> BrokerUnreachable:
        """No broker answers."""
        return BrokerUnreachable(
            f"no broker of {self._servers} answered within {self.timeout_s:g} s: {self._trouble or text}",
            action="check bootstrap_servers, that the cluster runs, and security.protocol",
        )


def closed() -> WriterClosed:
    """What is told to whoever sends all the same."""
    return WriterClosed("the writer is closed", action="make a new one")
