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
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from onceflow.errors import (
    BrokerUnreachable,
    ConfigurationError,
    DeliveryFailed,
    NotAuthorized,
    RecordTooLarge,
    RequestFailed,
    TopicMissing,
    WriterClosed,
)
from onceflow.writer.delivery import Delivery, FailedDelivery
from onceflow.writer.identity import WireHeaders
from onceflow.writer.misuse import kind, mistakes_of, refused

_log = logging.getLogger("onceflow.writer.librdkafka")
_log.addHandler(logging.NullHandler())
_log.addFilter(lambda record: "enable.gapless.guarantee is experimental" not in record.getMessage())

WAIT_S = 0.05
_SERVE_EVERY = 200  # events between two looks at what came in
_GIVE_UP_S = 10.0
_LAST_CHANCE_S = 1.0
_SURE_S = 2.0  # that a topic does not exist
_MISSING = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}
_AWAY = {"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "LEADER_NOT_AVAILABLE"}

Data = bytes | str | None


class Sender:
    """Sends events in order, and knows which are not acknowledged. Threads may share it.

    ``timeout_s`` is the delivery timeout. ``on_settled`` is called for each event that is decided, on whichever thread
    looks at what came in.
    """

    def __init__(
        self, options: Mapping[str, Any], timeout_s: float, on_settled: Callable[[Delivery], None] | None = None
    ) -> None:
        self.timeout_s = timeout_s
        self.failures: list[FailedDelivery] = []
        self._on_settled = on_settled
        self._servers = options["bootstrap.servers"]
        self._pending: dict[Delivery, bool] = {}
        self.known: set[str] = set()  # the topics that there are
        self._since_served = 0
        self._given_up = False
        self._handing_over = threading.Lock()  # no event is handed over behind those that another thread takes back
        self._broken = False  # by an error that librdkafka calls fatal
        self.shaken = False  # a connection was lost
        self._trouble = ""  # what librdkafka last reported of its connections
        try:
            self._live: Producer | None = Producer({**options, "error_cb": self._note}, logger=_log)
        except KafkaException as error:  # certificate files are read here
            raise ConfigurationError.of("the writer's settings", [error.args[0].str()]) from None

    @property
    def producer(self) -> Producer:
        """librdkafka's producer. Raises WriterClosed."""
        if self._live is None:
            raise WriterClosed("the writer is closed", action="make a new one")
        return self._live

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.str()
        self.shaken = True

    # ------------------------------------------------------------------------------------------------------- sending

    def put(
        self, delivery: Delivery, value: Data, key: Data, headers: WireHeaders, partition: int, timestamp_ms: int
    ) -> None:
        """Hands one event over. Raises BufferError when there is no room, what ``check`` raises, or what it is refused for."""
        if self.failures:
            self.check()
        try:
            with self._handing_over:
                if self._given_up:
                    raise self.error_of(tuple(self.failures), "what was outstanding is taken back: nothing follows it")
                self._pending[delivery] = True
                self.producer.produce(
                    delivery.topic,
                    value,
                    key,
                    partition,
                    on_delivery=delivery,
                    timestamp=timestamp_ms,
                    headers=headers,
                )
        except BaseException as error:
            self._pending.pop(delivery, None)
            if isinstance(error, KafkaException):
                raise self._refusal(error.args[0], delivery) from None
            if isinstance(error, TypeError | ValueError | OverflowError):
                mistakes = mistakes_of(value, key, headers, partition, timestamp_ms)
                if mistakes:
                    raise refused(delivery.topic, delivery.name, mistakes) from error
            raise
        self._since_served += 1
        if self._since_served >= _SERVE_EVERY:
            self.serve(0)

    def _refusal(self, error: KafkaError, delivery: Delivery) -> Exception:
        event = f"{delivery.identity.source} {delivery.identity.id}"
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return RecordTooLarge(
                f"event {event} for {delivery.topic} is larger than the writer's max.request.size",
                action="raise max.request.size (and the topic's max.message.bytes), or split the event",
                topic=delivery.topic,
            )
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001  confluent-kafka's name of librdkafka's code
            self._broken = True
            self.serve(0)
        return self.error_of(tuple(self.failures), f"event {event} was not sent: {error.str()}")

    def know(self, topic: str) -> None:
        """Makes sure that the topic exists, before its first event. Waits while no broker answers. Raises TopicMissing.

        A broker hears of a topic a moment after it was created, so that it does not know it proves nothing at once.
        """
        if not isinstance(topic, str):
            raise refused(topic, "of the writer", [f"topic must be a text, not {kind(topic)}"])
        began_at = time.monotonic()
        deadline, sure_at = began_at + self.timeout_s, began_at + min(_SURE_S, self.timeout_s)
        while topic not in self.known:
            code, text = self._look_up(topic)
            if code == "":
                self.known.add(topic)
            elif code in _MISSING and time.monotonic() < sure_at:
                self.serve(WAIT_S)
            elif code in _MISSING:
                raise TopicMissing(
                    f"topic {topic} does not exist", action="create it, or correct the name", topics=(topic,)
                )
            elif code == "TOPIC_AUTHORIZATION_FAILED":
                raise NotAuthorized(f"topic {topic}: {text}", action="grant WRITE and DESCRIBE on the topic")
            elif code == "TOPIC_EXCEPTION":
                raise TopicMissing(f"{topic!r} cannot be a topic's name: {text}", action="correct the name")
            elif code not in _AWAY:
                raise RequestFailed(f"the metadata of topic {topic}: {text}", error=code)
            elif time.monotonic() >= deadline:
                raise self.unreachable(text)

    def _look_up(self, topic: str) -> tuple[str, str]:
        self.serve(0)
        try:
            found = self.producer.list_topics(topic, timeout=min(2.0, self.timeout_s)).topics[topic].error
        except KafkaException as error:
            found = error.args[0]
        return (found.name(), found.str()) if found is not None else ("", "")

    # ------------------------------------------------------------------------------------------------ what came in

    def settled(self, delivery: Delivery) -> None:
        """Takes a decided event off the books; one of an aborted transaction is on them no more."""
        if self._pending.pop(delivery, False) and delivery.failure is not None:
            self.failures.append(delivery.failure)
        if self._on_settled is not None:
            self._on_settled(delivery)

    def serve(self, wait_s: float) -> None:
        """Takes in what was answered, waiting up to ``wait_s`` for something; gives up where that is due."""
        self._since_served = 0
        self._poll(wait_s)
        if self._is_overdue():
            self._last_chance()
        if (self.failures or self._broken or self._is_overdue()) and not self._given_up:
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
            self._note(error.args[0])
            self._broken = True

    def _is_overdue(self) -> bool:
        oldest = list(islice(self._pending, 1))  # one step for the interpreter: other threads change it meanwhile
        return bool(oldest) and time.monotonic() - oldest[0].sent_at > self.timeout_s

    def give_up(self) -> None:
        """Takes back all that is outstanding: nothing more of it is written, unless it is on its way already."""
        if not self.stop():
            self._take_back()

    def stop(self) -> bool:
        """No event follows, and none is taken back any more: what aborts does that. Whether it had come to that already."""
        with self._handing_over:
            before, self._given_up = self._given_up, True
        return before

    def _take_back(self) -> None:
        self.producer.purge()
        deadline = time.monotonic() + _GIVE_UP_S
        while self._pending and time.monotonic() < deadline:
            self._poll(WAIT_S)
        for delivery in list(self._pending):
            delivery.abandon("librdkafka did not say what became of it")

    def check(self) -> None:
        """Raises DeliveryFailed with all failures, if there is one."""
        if self.failures and not self._given_up:
            self.give_up()
        if self.failures:
            raise self.error_of(tuple(self.failures))

    def wait_for(self, delivery: Delivery) -> None:
        """Waits until ``delivery`` is decided; the delivery timeout bounds it."""
        while not delivery.done:
            self.serve(WAIT_S)

    @property
    def outstanding(self) -> int:
        return len(self._pending)

    def flush(self) -> None:
        """Waits until every event is acknowledged; the delivery timeout bounds it. Raises DeliveryFailed with all failures."""
        while self._pending:
            self._hurry()
            self.serve(0)
        self.check()

    def _hurry(self) -> None:
        """Takes in what was answered, as ``_poll``; what lingers for company is sent, for librdkafka hurries just as long."""
        try:
            self.producer.flush(WAIT_S)
        except KafkaException as error:
            self._note(error.args[0])
            self._broken = True

    def forget(self) -> None:
        """After an abort: what failed was part of it."""
        self._pending.clear()
        self.failures.clear()
        self._given_up = False

    def close(self) -> None:
        """Drops whatever is still outstanding.

        Not by ``Producer.close()``: that aborts a transaction in progress, and the one whose commit was sent and not
        answered counts as one.
        """
        if self._pending:
            self.stop()
            self._take_back()
        self._live = None

    # ------------------------------------------------------------------------------------------------------- errors

    def error_of(self, failures: Sequence[FailedDelivery], message: str = "") -> DeliveryFailed:
        """All failures in one error; the first few of them in its text."""
        lines = "".join(f"\n  - {failure}" for failure in failures[:5])
        more = f"\n  - and {len(failures) - 5} more" if len(failures) > 5 else ""
        noun = "event was" if len(failures) == 1 else "events were"
        said = message or f"{len(failures)} {noun} not acknowledged"
        trouble = f" ({self._trouble})" if self._trouble else ""
        return DeliveryFailed(
            f"{said}{trouble}{':' if lines else ''}{lines}{more}",
            action="mend the cause, make a new writer and send these events again under the same ids",
            failures=tuple(failures),
        )

    def unreachable(self, text: str) -> BrokerUnreachable:
        """No broker answers."""
        return BrokerUnreachable(
            f"no broker of {self._servers} answered within {self.timeout_s:g} s: {self._trouble or text}",
            action="check bootstrap_servers, that the cluster runs, and security.protocol",
        )
