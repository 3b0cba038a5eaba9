"""The reader's loop: poll, handle, tell Kafka. One thread; partitions are handled one after the other, each in its own order.

A lane that must wait (an event to be tried again, a store that does not answer) keeps its events, and is paused when they are
more than a batch; the loop goes on polling, so the group keeps this reader, and the other partitions go on.

What it survives::

    the store refuses an epoch (StoreFenced), or a commit's answer is lost (CommitUnknown)
    is this reader still a member of its group? A commit of the old position asks Kafka. Only a member takes the partition
    again; the position that the store then gives decides what of the waiting events is handled already

    a reader is stopped between that question and its take, and fences the new owner
    the new owner is refused, asks the same question, and takes the partition back: whoever is no member stops asking

    the store is away while a handler works for longer than the patience, comes back, and goes away once more in the next try
    a take that worked was an answer: the second trouble has the whole patience. Where each try breaks it (a deadlock each time),
    the pauses between them grow, and when they are as long as the patience the reader ends

    the store lets each of 20 partitions wait for half a minute before it says that it does not answer
    behind the first of them the loop polls: else the group would take the reader for dead before its patience is over

    the process is stopped, its partition moves, it wakes with events that it has polled, and its store is its own (memory)
    before anything is handled Kafka is asked, if it has not said within the last second that this is a member (fence.py)

    P has claimed Z, and waits for X, which Q has claimed; Q waits for Z
    each claims what it waits for and nothing behind it, so those claims run out. Renewed with each try, they never would
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Problem

from onceflow.errors import EventUnreadable, HandlerFailed, OnceflowError, RequestFailed, StoreError, StoreFenced
from onceflow.kafka.headers import HeadersUnreadable
from onceflow.kafka.opened import opened
from onceflow.reader import trouble
from onceflow.reader.assignment import Assignment
from onceflow.reader.claims import Claims, Held
from onceflow.reader.closing import close
from onceflow.reader.dead_letters import DeadLetters
from onceflow.reader.event import Event, UnreadableEvent, event_of
from onceflow.reader.fence import STOOD_STILL_S, Fence, awake_and_asleep
from onceflow.reader.handling import Failed
from onceflow.reader.inbox import Inbox
from onceflow.reader.lane import Lane
from onceflow.reader.membership import Membership, PutOut
from onceflow.reader.offsets import Place, tell_kafka
from onceflow.reader.patience import Stopped
from onceflow.reader.reasons import told
from onceflow.reader.remainder import Remainder
from onceflow.reader.settings import ReaderSettings
from onceflow.reader.steps import OnStep, Step
from onceflow.reader.stores.interface import Store
from onceflow.reader.stores.rules import check_not_behind
from onceflow.reader.tally import Tally
from onceflow.reader.topic_watch import TopicWatch
from onceflow.reader.witness import Witness
from onceflow.stop_flag import StopFlag

log = logging.getLogger("onceflow.reader")
_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")

IDLE_S = 0.2
OFFSETS_EVERY_S = 1.0
OFFSETS_EVERY_S_OF_A_FORGETFUL_STORE = 0.1
FORGET_EVERY_S = 60.0
ASK_AGAIN_S = 0.2
TELL_EVERY_S = 60.0
TOLD_AT = 2  # times that a claim is met: where two readers come upon a duplicate in one moment, the next look finds it handled


class Loop:
    """One run of a reader. ``run`` returns after ``stop`` is set, or at the end of its topics if so asked.

    That is when its own partitions have been at an end, and all have been handled up to where they end then (``remainder.py``).
    """

    def __init__(
        self,
        settings: ReaderSettings,
        store: Store,
        mode: Inbox | Claims,
        assignment: Assignment,
        stop: StopFlag,
        on_step: OnStep,
        tally: Tally,
        fence: Fence,
    ) -> None:
        self._settings = settings
        self._who = f"the consumer of group {settings.group}"
        self._store = store
        self._mode = mode
        self._assignment = assignment
        self._letters = DeadLetters(settings, stop)
        self._stop = stop
        self._on_step = on_step
        self._tally = tally
        self._fence = fence
        self._membership = Membership(settings)
        self._witness = Witness(store, settings.lease_s, on_step)
        self._remainder = Remainder(settings, self._membership, stop)
        self._watch = TopicWatch(settings.topics, assignment.topics)
        self._handled: dict[Place, int] = {}  # the ends at which it has had partitions, with nothing left to handle
        self._is_done = False  # each of its own was, and it looks after those of others
        self._outage_told_until = 0.0
        self._trouble = ""  # what librdkafka said last of a connection
        self._ask_at = 0.0  # Kafka, where it has not answered as a member is answered
        self._offsets_at = 0.0
        self._forget_at = 0.0

    def run(self, *, until_end: bool = False) -> bool:
        """Reads until it is stopped, or the end is reached, and tells which. Raises OnceflowError; what is committed stays so."""
        options = {
            **self._settings.consumer_options(),
            "enable.partition.eof": True,
            "on_commit": self._committed,
            "error_cb": self._heard,
        }
        self._consumer = opened(lambda: Consumer(options, logger=_librdkafka), "the reader's Kafka settings")
        try:
            self._forget()  # a reader that is run every now and then may never live for long
            self._consumer.subscribe(
                list(self._settings.topics),
                on_assign=self._assignment.assigned,
                on_revoke=self._assignment.revoked,
                on_lost=self._assignment.lost,
            )
            with suppress(Stopped):
                while not self._stop.is_set():
                    if until_end and self._at_end():
                        return True
                    self._round()
            return False
        finally:
            self._letters.close()
            try:
                self._assignment.end()
            finally:
                close(self._consumer, self._who, self._assignment.tell_last)  # hands the partitions back

    def _round(self) -> None:
        self._poll()
        for lane in list(self._assignment.lanes.values()):
            troubles = lane.troubles
            if not self._stop.is_set():
                self._advance(lane)
            if lane.troubles > troubles:
                break
        if not self._stop.is_set():  # else the end tells it
            self._tell_kafka()
        self._forget()
        self._watch.look()
        self._tally.now_and_then()

    def _at_end(self) -> bool:
        """Each of them once: where events keep coming, they may never be at their ends all at the same time."""
        lanes = self._assignment.lanes
        self._handled |= {
            place: lane.read_until or 0 for place, lane in lanes.items() if lane.at_end and not lane.pending
        }
        self._is_done = self._is_done or (bool(lanes) and self._handled.keys() >= lanes.keys())
        if lanes and not self._is_done:
            return False
        return self._remainder.is_handled(self._consumer, self._handled if self._is_done else {})

    # -------------------------------------------------------------------------------------------------------- receiving

    def _poll(self) -> None:
        """Receives what is there now, waiting for the first only: while a batch is handled the next one gathers by itself.

        The first goes to its lane before there is a second call: in that the partition may go and come back, with events
        before the first one that its new lane would then take for handled.
        """
        try:
            first = self._consumer.poll(self._wait_s())
            if first is None:
                return
            came = self._receive([first])
            rest = self._settings.batch_size - 1
            if rest:
                came = self._receive(self._consumer.consume(rest, 0)) or came
        except KafkaException as error:
            # Raised by a rebalance callback too; going on without its partitions would leave them blocked in silence.
            trouble.check(error.args[0], self._who)
            raise RequestFailed(f"{self._who}: {error.args[0].str()}") from error
        if came:
            self._on_step(Step.POLLED)

    def _wait_s(self) -> float:
        now = time.monotonic()
        due = [at - now for lane in self._assignment.lanes.values() if (at := lane.due_at()) is not None]
        return max(0.0, min([IDLE_S, *due]))

    def _receive(self, messages: Sequence[Message]) -> bool:
        """Whether events were among them. Runs for every event: those of one partition come one after the other."""
        reads = self._settings.reads if self._settings.letters_of is not None else None
        came = False
        where, lane = None, None
        for message in messages:
            if message.error() is not None:
                self._receive_error(message)
                where = None  # it may have been the partition's end
                continue
            if where != (place := (message.topic(), message.partition())):
                where, lane = place, self._lane_of(message)
                if lane is not None:
                    lane.at_end = False
            if lane is None:
                continue
            event = event_of(message, lane.place)
            if reads is not None and not reads(event):
                if event.__class__ is UnreadableEvent:
                    log.warning("%s: %r is passed over, for whose letter it is nobody can tell", lane.name, event)
                continue
            if event.__class__ is UnreadableEvent:
                lane.unreadable(event, HeadersUnreadable())
            lane.pending.append(event)
            came = True
        return came

    def _lane_of(self, message: Message) -> Lane | None:
        return self._assignment.lanes.get((message.topic() or "", message.partition() or 0))

    def _receive_error(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        lane = self._lane_of(message)
        if trouble.is_end(error):
            if lane is not None:
                lane.at_end, lane.read_until = True, message.offset()
            return
        if error.code() == Problem.UNKNOWN_TOPIC_OR_PART:
            log.info("%s: %s", message.topic() or self._who, error.str())
            self._watch.ask_soon()
            return
        where, position = (lane.name, lane.position) if lane else (message.topic() or self._who, None)
        trouble.check(error, where, position, message.offset())

    def _heard(self, error: Problem) -> None:
        """What librdkafka says of its connections, at every attempt. What ends a reader comes as a message."""
        if error.code() != Problem._ALL_BROKERS_DOWN:  # noqa: SLF001  confluent-kafka's name of librdkafka's code
            self._trouble = f"; {error.str()}"
        elif time.monotonic() >= self._outage_told_until:
            self._outage_told_until = time.monotonic() + TELL_EVERY_S
            log.warning("%s waits for its brokers: %s%s", self._who, error.str(), self._trouble)

    # --------------------------------------------------------------------------------------------------------- handling

    def _advance(self, lane: Lane) -> None:
        due_at = lane.due_at()
        if due_at is not None and due_at <= time.monotonic():
            self._attempt(lane)
        # Pausing throws away what librdkafka has fetched ahead: a short wait is better spent with more events pending.
        full = bool(lane.pending) if lane.paused else len(lane.pending) > self._settings.batch_size
        if full != lane.paused:
            self._pause_or_resume(lane, full)

    def _pause_or_resume(self, lane: Lane, full: bool) -> None:
        place = [TopicPartition(lane.ownership.topic, lane.ownership.partition)]
        lane.paused = full
        (self._consumer.pause if lane.paused else self._consumer.resume)(place)

    def _attempt(self, lane: Lane) -> None:
        """One try of what stands in front."""
        try:
            if lane.doubtful and not self._take_again(lane):
                return
            lane.pending = lane.unhandled(lane.pending)
            if not lane.pending:  # a commit whose answer was lost had worked
                lane.store_answered()
                return
            self._witness.call(self._consumer, lane)
            if self._is_still_ours(lane):
                self._handle(lane)
        except Failed as failure:
            lane.store_answered()
            self._failed(lane, failure)
        except Held as held:
            lane.store_answered()
            if lane.held() == TOLD_AT:
                log.warning(
                    "%s waits until the claim has ended: another reader has claimed the same id: %s", lane.name, held
                )
            lane.not_before = time.monotonic() + ASK_AGAIN_S
        except StoreFenced as error:
            log.warning("%s: %s", lane.name, error.message)
            lane.doubtful = True
        except PutOut as error:
            log.warning("%s: put out of the group before its first event was handled: %s", lane.name, error)
            lane.doubtful = True
        except OnceflowError as error:
            self._wait_for_better(lane, error)

    def _handle(self, lane: Lane) -> None:
        poison = lane.poison(self._settings.retries)
        if poison is None:
            self._mode.handle(lane, lane.upcoming(self._settings.batch_size))
            return
        event, reason, attempts = lane.pending[0], poison.reason, poison.attempts
        if self._settings.dead_letters is None:  # one that a handler was given has ended the reader when it failed
            raise _unreadable(event, reason)
        self._mode.bury(lane, event, lambda: self._letters.write(event, reason, attempts))
        tried = "untried" if poison.is_final else f"after {attempts} attempts"
        log.error("%s: %r went to the dead letters %s: %s", lane.name, event, tried, told(reason))

    def _failed(self, lane: Lane, failure: Failed) -> None:
        if failure.event is None:
            last = lane.upcoming(self._settings.batch_size)[-1]
            lane.single_until = last.offset
            log.warning("%s: the handler failed for a batch, its events are tried one by one: %s", lane.name, failure)
            return
        failing = lane.failed(failure.event, failure.cause)
        if failing.attempts <= self._settings.retries:
            failing.retry_at = time.monotonic() + self._settings.backoff.pause_s(failing.attempts)
        elif self._settings.dead_letters is None:
            raise _handler_failed(lane, failing.attempts, failure) from failure.cause
        log.warning("%s: attempt %d of %r failed: %s", lane.name, failing.attempts, failure.event, failure)

    def _wait_for_better(self, lane: Lane, error: OnceflowError) -> None:
        """The store or the dead letters' brokers do not answer: the lane waits, up to the patience."""
        now, patience_s = time.monotonic(), self._settings.patience_s
        if not error.retriable or lane.troubled(now, patience_s, by_the_store=isinstance(error, StoreError)):
            raise error
        pause_s = self._settings.backoff.pause_s(lane.troubles + 1)
        lane.wait(now, pause_s)
        log.warning("%s waits %.1f s: %s", lane.name, pause_s, error.message)

    def _take_again(self, lane: Lane) -> bool:
        """Whether the partition is ours again, in the store as in the group."""
        if not self._is_member(lane):
            lane.not_before = time.monotonic() + ASK_AGAIN_S
            return False
        (ownership,) = self._assignment.take([(lane.ownership.topic, lane.ownership.partition)])
        check_not_behind(lane.ownership, ownership.next_offset)
        lane.taken(ownership)
        lane.store_is_there()
        self._on_step(Step.TAKEN)
        return True

    def _is_still_ours(self, lane: Lane) -> bool:
        """Whether what was polled may be handled, where the store cannot say it: else a claim, or the unit, will tell.

        What Kafka says is of the member, so of all its partitions; where it does not answer, each of them would wait for it.
        """
        if not self._fence.is_kafka or self._fence.heard_within(STOOD_STILL_S):
            return True
        if time.monotonic() >= self._ask_at:
            if self._is_member(lane):
                self._ask_at = 0.0
                return self._fence.heard_within(STOOD_STILL_S)  # it may have been stopped while it waited
            if not self._ask_at:
                log.warning(
                    "%s waits: Kafka does not confirm that this reader is still a member of the group", lane.name
                )
            self._ask_at = time.monotonic() + ASK_AGAIN_S
        lane.not_before = self._ask_at
        return False

    def _is_member(self, lane: Lane) -> bool:
        """Asks Kafka, which checks the member and its generation before it accepts an offset."""
        asked_at = awake_and_asleep()
        if lane.position is None:
            is_member = self._membership.owns(self._consumer.memberid(), lane.ownership.topic, lane.ownership.partition)
        else:
            lane.sent_position = None  # it is asked by telling it again
            is_member = tell_kafka(self._consumer, [lane], wait=True)
        if is_member:
            self._fence.kafka_answered(asked_at)
        return is_member

    # ------------------------------------------------------------------------------------------------------ now and then

    def _tell_kafka(self) -> None:
        """A store that forgets with its process depends on these offsets: they are told more often, and waited for."""
        now = time.monotonic()
        news = [lane for lane in self._assignment.lanes.values() if lane.has_news()]
        if not news or now < self._offsets_at:
            return
        durable = self._store.capabilities.durable
        self._offsets_at = now + (OFFSETS_EVERY_S if durable else OFFSETS_EVERY_S_OF_A_FORGETFUL_STORE)
        asked_at = awake_and_asleep()
        if tell_kafka(self._consumer, news, wait=not durable) and not durable:
            self._fence.kafka_answered(asked_at)
        self._on_step(Step.OFFSETS)

    def _committed(self, error: Problem | None, offsets: Sequence[TopicPartition]) -> None:
        """What became of an asynchronous commit; what was refused is told again."""
        for each in offsets or ():
            lane = self._assignment.lanes.get((each.topic, each.partition))
            if lane is None:
                continue
            lane.unanswered = max(0, lane.unanswered - 1)  # of an earlier lane of the partition it may be
            if error or each.error:
                log.info("%s: offset not committed: %s", lane.name, error or each.error)
                lane.sent_position = None

    def _forget(self) -> None:
        now = time.monotonic()
        if now < self._forget_at:
            return
        self._forget_at = now + FORGET_EVERY_S
        try:
            log.debug("%d ids forgotten", self._store.forget_expired())
        except OnceflowError as error:
            if not error.retriable:
                raise
            log.warning("ids not forgotten: %s", error.message)


def _handler_failed(lane: Lane, attempts: int, failure: Failed) -> HandlerFailed:
    event = failure.event
    assert event is not None
    return HandlerFailed(
        f"{lane.name}: offset {event.offset} failed {attempts} times: {failure}",
        action="mend the handler or the event and start again: it comes again first; or set dead_letters",
        topic=event.topic,
        partition=event.partition,
        offset=event.offset,
        attempts=attempts,
    )


def _unreadable(event: Event, reason: Exception) -> EventUnreadable:
    return EventUnreadable(
        f"{event.topic}-{event.partition}: offset {event.offset} cannot be read: {told(reason)}",
        action="set dead_letters: it goes there without its headers, and the reader goes on; it comes again first at each start",
        topic=event.topic,
        partition=event.partition,
        offset=event.offset,
    )
