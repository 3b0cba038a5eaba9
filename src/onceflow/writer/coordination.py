"""The transactions of one transactional id: begun, committed or aborted, and looked up when the answer does not say.

::

    open      1 FENCE init_transactions   2 READ the marker   3 CLAIM: the marker with our name, a transaction of its own
    commit    4 every event acknowledged  5 the marker into the transaction   6 END: EndTxn, again until it is answered
    refused   7 LOOK who claimed the id; another: stop   8 FENCE   9 READ the marker, which tells what became of 6
                 no marker at all: nobody can tell

Nothing is aborted once 6 was sent. 8 ends whatever was open: after it nothing of the old transaction can arrive, and what
9 reads is final. Two writers that start at the same moment cannot both go on::

    A looks and finds its own claim; B, newer, has fenced A but not claimed yet; A fences B
    B's claim is refused: B was never open, and says so
    or B's claim took longer than its transaction may: nobody else has claimed the id, and B says so and may start again
    or B's claim came before A's fence: A reads it at 9 and stops; B, refused, looks, finds its claim and takes the id back

A cluster forgets the marker when nothing was committed for ``offsets.retention.minutes``, or an administrator deletes it::

    A's EndTxn is not answered; the marker is gone; A claims the id anew and reads its own new claim: no transaction since
    "not committed" would be a guess, and the block, run again, comes twice: so nothing is claimed while a commit is in doubt

    A rests for weeks and the coordinator has forgotten the id as well; A's next block finds no marker
    A goes on from the marker that it committed last, with its progress, and not from an empty one

An aborted transaction may leave something behind in librdkafka, which keeps its epoch::

    an event fails, and what else is outstanding is taken back (purged); librdkafka has given it a sequence number already
    the next block's first event for that partition has the number behind it: a gap, for which the broker refuses an innocent
    block; or what was taken back was still on its way, and arrives while the next block has the partition open
    so after a failure 8 and 9 come before the next block: a fresh epoch starts every partition at 0, and refuses what is late

    the block raises while events are outstanding; librdkafka aborts, drops what waits and waits for what is on its way
    of the blocks behind such ones every second was refused for a gap (OUT_OF_ORDER_SEQUENCE_NUMBER), where some events waited and
    some were on their way: so a fresh epoch comes first as well

    while it does that, a thread that serves the writer (AsyncWriter's) sees events fail, and takes back the others
    nothing is taken back by anyone while librdkafka aborts, so that what it reports can be told apart

Why librdkafka gives a transaction up it tells to whoever asks for the next step, and to nobody before::

    a service rests for longer than transactional.id.expiration.ms, and the coordinator refuses the partitions of its next block
    each event is reported as purged, and nothing else comes: so before an abort for events that were not acknowledged it is asked

A block that nobody has done anything wrong in need not be run again::

    a service rests for longer than transactional.id.expiration.ms; its next block is refused, whatever is in it
    so after a rest 7 to 9 come before the next block, as after a failure: the id is taken anew where it was forgotten
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceflow.errors import (
    BrokerUnreachable,
    ConfigurationError,
    DeliveryFailed,
    Fenced,
    NotAuthorized,
    OnceflowError,
    OutcomeForgotten,
    OutcomeUnknown,
    RequestFailed,
    TransactionAborted,
    WriterError,
)
from onceflow.kafka.rights import is_denied, tells_of_denial
from onceflow.transaction.requests import ANCHOR_TOPIC
from onceflow.writer.bounded import bounded
from onceflow.writer.delivery import FailedDelivery
from onceflow.writer.group_offsets import GroupOffsets
from onceflow.writer.ledger import Ledger
from onceflow.writer.marker import Marker
from onceflow.writer.sender import Sender

_log = logging.getLogger(__name__)

REST_S = 600.0
"""After it a writer looks before its next block. No cluster forgets an id so soon, if it is not told to; connections that rest
so long are closed by its brokers (connections.max.idle.ms), so that little is spared without a look."""

_SLICE_S = 2.0  # of a blocking call: what librdkafka is told to take at most
AGAIN = "run the block again; a consumer whose events it sends is sought back to its committed offsets first"
_RIGHTS = "grant WRITE on the topics that it writes, and READ on the group and on the topics whose offsets it commits"
_GRACE_S = 5.0  # beyond the patience, for a call that keeps to its time
_PAUSE_S = 0.05
_EXPIRED = {KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID}


class State(Enum):
    """Where the id's transactions are."""

    NEW = auto()
    READY = auto()
    OPEN = auto()
    IN_DOUBT = auto()  # EndTxn was sent and not answered
    BROKEN = auto()  # nothing is committed or in doubt, but the producer must be replaced
    STOPPED = auto()  # final: another writer holds the id


class Transactions:
    """The transactions of one id, one at a time. ``patience_s`` bounds each blocking step.

    ``timeout_s``: how long the coordinator leaves a transaction open.
    """

    def __init__(
        self,
        transactional_id: str,
        ledger: Ledger,
        make_sender: Callable[[], Sender],
        patience_s: float,
        timeout_s: float = math.inf,
    ) -> None:
        self.id = transactional_id
        self.instance = uuid.uuid4().hex[:12]
        self.state = State.NEW
        self.marker = Marker()
        self.intended = Marker()  # the marker of the commit that is in doubt
        self.sender: Sender
        self._ledger = ledger
        self._make_sender = make_sender
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        # Held while a block begins or ends, and while one is settled: a writer that another thread closes meanwhile waits.
        self.at_work = threading.RLock()
        self.had_member = False  # a consumer of its blocks was in its group
        self.is_used = False  # something was sent in the open block
        self.group_offsets = GroupOffsets()  # of the consumers of its blocks
        self._answered_at = -math.inf  # when the coordinator last knew the id
        self._is_forgotten = False  # what became of the commit in doubt
        self._calm_at = -math.inf  # what connections were lost before does not matter
        self.failed: tuple[FailedDelivery, ...] = ()  # of the block that was aborted last
        self._is_abort_owed = False
        self.made: bool | None = False  # whether the open block, or the last one, is committed; None: nobody knows yet

    # ---------------------------------------------------------------------------------------------------------- start

    def open(self) -> None:
        """Steps 1 to 3. Raises Fenced when another writer takes the id at the same time, and what a cluster refuses."""
        self._ledger.ensure_topic()
        self._fence()
        self.marker = self._ledger.read()
        self._claim()

    def _fence(self) -> None:
        made = self._make_sender()  # first: the old one can be asked again where none can be made
        if self.state is not State.NEW:
            self.sender.close()
        self.sender = made
        self.state = State.BROKEN
        made.connect(ANCHOR_TOPIC)
        try:
            self._ask(self.sender.producer.init_transactions)
        except KafkaException as error:
            raise self._refused(error.args[0], "InitProducerId") from None

    def _claim(self) -> None:
        claimed = self.marker.claimed_by(self.instance)
        began_at = time.monotonic()
        try:
            self.sender.producer.begin_transaction()
            self._enter(claimed)
            self._ask(self.sender.producer.commit_transaction)
        except KafkaException as error:
            took_s = time.monotonic() - began_at
            found = self._ledger.read()
            if found.owner != self.instance:
                timed_out = took_s >= self._timeout_s and (found == self.marker or not found.owner)
                raise self._unclaimed(error.args[0], timed_out=timed_out) from None
            self._fence()
            # Between the two, another may have claimed the id and committed: what stands there is read again.
            claimed = self._ledger.read()
            if claimed.owner != self.instance:
                raise self._stop("another writer claimed the id") from None
        self._confirmed(claimed)

    # ---------------------------------------------------------------------------------------------------- transaction

    def begin(self) -> None:
        """Opens a transaction. Raises Fenced, OutcomeUnknown (the last one is undecided), WriterError (one is open)."""
        if self._is_abort_owed:
            self.abort()
        if self.state is State.OPEN:
            raise WriterError(
                "a transaction is open already", action="end it first: a writer has one transaction at a time"
            )
        if self.state is State.IN_DOUBT:
            raise self._unknown("it was not answered")
        if self.state is State.STOPPED:
            raise self._stop("it stopped before")
        if self.state is State.BROKEN or self._is_shaken() or self.sender.is_coarse or self._has_rested():
            self._recover()
        self.failed = ()
        self.is_used = False
        self.made = False
        self._calm_down()
        self.sender.producer.begin_transaction()
        self.state = State.OPEN

    def _is_shaken(self) -> bool:
        """Whether the producer lost a connection: librdkafka 2.16 may then wait in send_offsets_to_transaction without end."""
        self.sender.serve(0)
        return self.sender.is_shaken(self._calm_at)

    def _has_rested(self) -> bool:
        """Whether the coordinator may have forgotten the id since."""
        return time.monotonic() - self._answered_at > REST_S

    def _calm_down(self) -> None:
        """What was lost while nothing was on its way cannot be what librdkafka waits for in the block.

        It tells of that only to who polls, and init_transactions does not::

            one of the bootstrap servers is dead; the new producer meets it, and finds the cluster through another one
            the block's first poll hears of it, and the block is aborted, and the next one, for a connection that never was
        """
        self.sender.serve(0)
        self._calm_at = time.monotonic()

    def open_sender(self) -> Sender:
        """What the open transaction's events go through. Raises WriterError when none is open."""
        if self.state is not State.OPEN:
            raise WriterError(
                "a writer with a transactional_id writes inside of transactions",
                action="use: with writer.transaction(): writer.send(...)",
            )
        return self.sender

    def sending(self) -> Sender:
        """The same, for an event of the block."""
        if self.state is not State.OPEN:
            return self.open_sender()
        self.is_used = True
        return self.sender

    def add_offsets(self, positions: Iterable[TopicPartition], membership: Any) -> None:
        """Consumed offsets of a group, into the open transaction. Raises TransactionAborted, NotAuthorized."""
        if self._is_shaken():
            raise self.aborted("a connection was lost in it")
        try:
            self._ask(self.sender.producer.send_offsets_to_transaction, list(positions), membership)
        except KafkaException as error:
            raise self.aborted(f"the consumed offsets were refused: {self._why(error.args[0])}") from None

    def commit(self, progress: str | None) -> None:
        """Steps 4 to 6.

        Raises DeliveryFailed, TransactionAborted, NotAuthorized (all before 6; the caller then aborts), Fenced, OutcomeUnknown.
        """
        self.sender.flush()
        if self._is_shaken():
            raise self.aborted("a connection was lost in it")
        intended = self.marker.advanced(progress)
        try:
            self._enter(intended)
        except KafkaException as error:
            raise self.aborted(f"the marker was refused: {_said(error.args[0])}") from None
        self.intended = intended
        self.made, self.state = None, State.IN_DOUBT
        if not self.settle():
            raise self.aborted("the coordinator refused the commit, and the marker shows that it was not made")

    def settle(self) -> bool:
        """Finds out what became of a commit that is in doubt: True if it is committed. Raises OutcomeUnknown, Fenced."""
        if self.state is not State.IN_DOUBT:
            raise WriterError("no commit is in doubt", action="call settle after OutcomeUnknown alone")
        if self._is_forgotten:
            raise self._forgotten()
        try:
            self._ask(self.sender.producer.commit_transaction)
        except KafkaException as error:
            if error.args[0].retriable():
                raise self._unknown(error.args[0].str()) from None
            return self._look(error.args[0])
        self.made = True
        self._confirmed(self.intended)
        return True

    def _look(self, refusal: KafkaError) -> bool:
        """Steps 7 to 9, and then the same from afar if the id is another's: what the marker tells is final by now.

        Cut short, whatever by, it leaves the commit in doubt::

            EndTxn was not answered, the id is fenced, and Ctrl-C comes before the marker is read
            "nothing is in doubt" would have the block run again, and the transaction may be committed
        """
        try:
            found = self._final()
            told = self.made = found.tells(self.instance, self.intended.number)
        except BaseException as error:
            self.state = State.IN_DOUBT
            if isinstance(error, OnceflowError):
                raise self._unknown(error.message) from None
            raise
        if told is None:
            self.state, self._is_forgotten = State.IN_DOUBT, True
            raise self._forgotten()
        if self.state is not State.STOPPED:
            self._take(found)
        elif told:
            self.marker = self.intended  # and not what was found: the other may have gone on from it
        else:
            raise self._stop(refusal.str())
        return told

    def _final(self) -> Marker:
        """The marker, when nothing of the commit in doubt can arrive any more."""
        try:
            return self._fenced_marker()
        except Fenced:
            return self._ledger.read()

    def abort(self) -> None:
        """Aborts the open transaction, and none whose commit was sent.

        Where that is not answered, or events failed or were outstanding, the next transaction begins by finding out who holds the
        id, under a fresh epoch.
        """
        if self.state is not State.OPEN:
            return
        self._is_abort_owed = True  # until it is done: Ctrl-C may come, and then it is the next block's, or the end's
        had_given_up = self.sender.stop()
        leaves_gap = had_given_up or bool(self.sender.failures) or self.sender.outstanding > 0
        try:
            self._ask(self.sender.producer.abort_transaction)
        except KafkaException:
            self.state = State.BROKEN
            self.failed = tuple(self.sender.failures)
        else:
            # What librdkafka had not reported before it stopped to take events is known now.
            self.failed = tuple(self.sender.failures)
            self.state = State.BROKEN if leaves_gap or self.failed else State.READY
            self.sender.forget()
        self._is_abort_owed = False

    def close(self) -> None:
        """Aborts what is open, once nobody is at work on it."""
        with self.at_work:
            self.abort()
            self.sender.close()

    def reason(self) -> str:
        """Why librdkafka has given up the open transaction, which is to be aborted now; empty if it has not.

        Asked to begin another one it says so, and does nothing: one is open.
        """
        if self.state is not State.OPEN:
            return ""
        try:
            bounded(self.sender.producer.begin_transaction, (), _GRACE_S)
        except KafkaException as error:
            return _told(error.args[0])
        return ""

    def _why(self, error: KafkaError) -> str:
        """In a transaction that is given up already, why it was."""
        return (self.reason() if error.code() == KafkaError._STATE else "") or _said(error)  # noqa: SLF001

    def take_back(self) -> None:
        """Makes a broken producer usable again, if the id is still ours and the cluster answers. Raises Fenced."""
        if self.state is State.BROKEN:
            try:
                self._recover()
            except Fenced:
                raise
            except OnceflowError:
                self.state = State.BROKEN

    def _recover(self) -> None:
        """Steps 7 to 9. Where the marker is gone, the one that this writer knows is committed once more."""
        found = self._fenced_marker()
        if found.owner:
            self._take(found)
        else:
            self._claim()

    def _fenced_marker(self) -> Marker:
        self._check_owner(self._ledger.read(stable=False))
        self._fence()
        found = self._ledger.read()
        self._check_owner(found)
        return found

    def _take(self, found: Marker) -> None:
        self._confirmed(found)

    def _confirmed(self, marker: Marker) -> None:
        """By the coordinator, which knows the id."""
        self.marker = marker
        self.state = State.READY
        self._answered_at = time.monotonic()

    def _check_owner(self, found: Marker) -> None:
        if found.owner not in ("", self.instance):
            raise self._stop("another writer claimed the id")

    # --------------------------------------------------------------------------------------------------------- asking

    def _enter(self, marker: Marker) -> None:
        self._ask(
            self.sender.producer.send_offsets_to_transaction, [self._ledger.entry(marker)], self._ledger.membership
        )

    def _ask(self, question: Callable[..., object], *arguments: Any) -> None:
        """Asks again while librdkafka says that it may be, until the patience ends; then raises what it said last."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                bounded(question, (*arguments, min(_SLICE_S, self._patience_s)), self._patience_s + _GRACE_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise
                _log.debug("%s of %r: again after %s", getattr(question, "__name__", ""), self.id, error.args[0].str())
                time.sleep(_PAUSE_S)
            else:
                return

    # --------------------------------------------------------------------------------------------------------- errors

    def _stop(self, reason: str) -> Fenced:
        self.state = State.STOPPED
        return Fenced(
            f"another writer took over the transactional id {self.id!r}: {reason}",
            action="nothing, if the other is meant to run; it carries on. Never give one id to two services",
            transactional_id=self.id,
        )

    def _unclaimed(self, error: KafkaError, *, timed_out: bool) -> OnceflowError:
        """A claim that was not made: only what is fatal to the producer tells of another one.

        Where the coordinator aborts a transaction that was open for too long, librdkafka says the same as of a fence.
        """
        if timed_out:
            return BrokerUnreachable(
                f"the transactional id {self.id!r} was not claimed: that took longer than its transaction may "
                f"({self._timeout_s:g} s), and no other writer has claimed it: {error.str()}",
                action="start again; if it comes again, look why the brokers are slow, or raise transaction.timeout.ms",
            )
        if error.fatal():
            return self._stop(f"the claim was refused: {error.str()}")
        if is_denied(error):
            return NotAuthorized(
                f"the transactional id {self.id!r} was not claimed: {error.str()}",
                action=f"grant READ on the group {self._ledger.group} and on the topic {ANCHOR_TOPIC}",
            )
        return BrokerUnreachable(
            f"the transactional id {self.id!r} was not claimed: {error.str()}",
            action="check that the brokers run and are reachable, and start again",
        )

    def _unknown(self, reason: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the commit of transaction {self.intended.number} of {self.id!r} was sent, and whether it was made is not known "
            f"yet: {reason}",
            action="call writer.settle(), which finds out; or read Writer.progress at the next start",
            transactional_id=self.id,
            transaction=self.intended.number,
        )

    def _forgotten(self) -> OutcomeForgotten:
        return OutcomeForgotten(
            f"the commit of transaction {self.intended.number} of {self.id!r} was sent, and nobody can tell whether it was made: "
            "the marker that would tell is gone (the cluster drops it when nothing was committed for offsets.retention.minutes)",
            action="look in the topics for the block's events, by their ids; then make a new writer. Its progress may be empty",
            transactional_id=self.id,
            transaction=self.intended.number,
        )

    def aborted(self, reason: str, told: DeliveryFailed | None = None) -> OnceflowError:
        """What to raise when the open transaction cannot go on; the caller aborts it. No repetition grants a missing right.

        ``told`` names the events that failed, by sources and ids: whether a right is lacking is not read out of its text.
        """
        denied = tells_of_denial(reason) or (told is not None and bool(told.fields.get("denied")))
        why = "; ".join(text for text in (reason, told.message if told else "") if text)
        return (NotAuthorized if denied else TransactionAborted)(
            f"a transaction of {self.id!r} was aborted: {why}",
            action=_RIGHTS if denied else AGAIN,
            transactional_id=self.id,
        )

    def _refused(self, error: KafkaError, what: str) -> OnceflowError:
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return ConfigurationError.of(
                "the writer's settings", ["transaction.timeout.ms: is above the broker's transaction.max.timeout.ms"]
            )
        if is_denied(error):
            return NotAuthorized(
                f"{what}: {error.str()}", action=f"grant WRITE and DESCRIBE on the transactional id {self.id!r}"
            )
        if error.retriable() or error.code() == KafkaError._TIMED_OUT:  # noqa: SLF001  confluent-kafka's name of the code
            return self.sender.unreachable(error.str())
        return RequestFailed(f"{what}: {error.str()}", error=error.name())


def _told(error: KafkaError) -> str:
    """The reason for which a transaction must be aborted; empty for any other error."""
    return _said(error) if error.txn_requires_abort() else ""


def _said(error: KafkaError) -> str:
    """What the broker said, and what it means where its words do not tell."""
    expired = "its producer id has expired (transactional.id.expiration.ms): " if error.code() in _EXPIRED else ""
    return expired + error.str()
