"""The transactions of one transactional id: begun, committed or aborted, and looked up when the answer does not say.

::

    open      1 FENCE init_transactions   2 PROBE: a nonce, a transaction of its own   3 READ the marker, and the nonce with it
              4 CLAIM: the marker with our name, a transaction of its own
    commit    5 every event acknowledged  6 the marker into the transaction   7 END: EndTxn, again until it is answered
    refused   8 LOOK who claimed the id after us; another: stop   9 FENCE, PROBE and READ, which tells what became of 7
                 no marker at all: nobody can tell

Nothing is aborted once 7 was sent. A fence ends whatever was open: after it nothing of the old transaction can arrive, and what
is read behind it is final, if whoever answers knows of the nonce that was committed behind it as well. Else::

    the other brokers cannot reach the group's coordinator, and clients can: another one coordinates, and it does not know
    block 7 is committed; it answers with block 6, and no read of Kafka's tells that from the truth
    a start would take 6 for the newest, and block 7 be sent again; a writer in doubt would take block 7 for aborted

What a look shows without one is believed as far as it goes: a claim behind our own can only have come later, and tells what came
of ours; another owner, with neither our claim before it nor more transactions than we know of, may be the one that we took the
id from.

Two writers that start at the same moment cannot both go on::

    A looks and finds its own claim; B, newer, has fenced A but not claimed yet; A fences B
    B's claim is refused: B was never open, and says so
    or B's claim took longer than its transaction may: nobody else has claimed the id, and B says so and may start again
    or B's claim came before A's fence: A reads it at 9 and stops; B, refused, looks, finds its claim and takes the id back
    or B's fence came behind A's, and before A's probe: A looks again; B's claim is there by then, or A fences B again

A cluster forgets the marker when nothing was committed for ``offsets.retention.minutes``, or an administrator deletes it::

    A's EndTxn is not answered; the marker is gone; A claims the id anew and reads its own new claim: no transaction since
    "not committed" would be a guess, and the block, run again, comes twice: so nothing is claimed while a commit is in doubt

    A rests for weeks and the coordinator has forgotten the id as well; A's next block finds no marker
    A goes on from the marker that it committed last, with its progress, and not from an empty one

An aborted transaction may leave something behind in librdkafka, which keeps its epoch::

    an event fails, and what else is outstanding is taken back (purged); librdkafka has given it a sequence number already
    the next block's first event for that partition has the number behind it: a gap, for which the broker refuses an innocent
    block; or what was taken back was still on its way, and arrives while the next block has the partition open
    so after a failure 9 comes before the next block: a fresh epoch starts every partition at 0, and refuses what is late

    the probe's EndTxn stands still on a connection that is lost; librdkafka sends it again, and that one is answered
    the first one arrives while the next block is open under the same epoch, and commits the half of it that is there
    so where a connection was lost meanwhile, 9 comes once more: neither probe nor claim is followed by a block

    the block raises while events are outstanding; librdkafka aborts, drops what waits and waits for what is on its way
    of the blocks behind such ones every second was refused for a gap (OUT_OF_ORDER_SEQUENCE_NUMBER), where some events waited and
    some were on their way: so a fresh epoch comes first as well

    while it does that, a thread that serves the writer (AsyncWriter's) sees events fail, and takes back the others
    nothing is taken back by anyone while librdkafka aborts, so that what it reports can be told apart

Who answers 7 may be the one that has been replaced, here as the id's coordinator::

    block 6 was committed by a coordinator that the others cannot reach since; block 7 is open at the one that has replaced it
    the connection to that is lost; librdkafka asks anybody who coordinates, and sends EndTxn to the old one
    there the last thing that this epoch did is "committed", and so it says; block 7 is open, and is aborted when its time is over
    so what is answered behind a lost connection is looked up: 8 and 9

Why librdkafka gives a transaction up it tells to whoever asks for the next step, and to nobody before::

    a service rests for longer than transactional.id.expiration.ms, and the coordinator refuses the partitions of its next block
    each event is reported as purged, and nothing else comes: so before an abort for events that were not acknowledged it is asked

A block that nobody has done anything wrong in need not be run again::

    a service rests for longer than transactional.id.expiration.ms; its next block is refused, whatever is in it
    so after a rest 8 and 9 come before the next block, as after a failure: the id is taken anew where it was forgotten
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
    ConfigurationError,
    DeliveryFailed,
    Fenced,
    NotAuthorized,
    OnceflowError,
    OutcomeForgotten,
    OutcomeUnknown,
    RequestFailed,
    WriterError,
)
from onceflow.kafka.rights import is_denied
from onceflow.transaction.requests import ANCHOR_TOPIC
from onceflow.writer.bounded import bounded
from onceflow.writer.delivery import FailedDelivery
from onceflow.writer.group_offsets import GroupOffsets
from onceflow.writer.ledger import Ledger
from onceflow.writer.marker import Marker
from onceflow.writer.refusals import EXPIRED, Refusals, said, told_reason
from onceflow.writer.sender import Sender

_log = logging.getLogger(__name__)

REST_S = 600.0
"""After it a writer looks before its next block. No cluster forgets an id so soon, if it is not told to; connections that rest
so long are closed by its brokers (connections.max.idle.ms), so that little is spared without a look."""

_SLICE_S = 2.0  # of a blocking call: what librdkafka is told to take at most
_GRACE_S = 5.0  # beyond the patience, for a call that keeps to its time
_PAUSE_S = 0.05
_BY_NOBODY = "no other writer has claimed it"


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
        self._of_commit: Sender | None = None  # whom that commit was asked of: another's commits another transaction
        self._ledger = ledger
        self._make_sender = make_sender
        self._refusals = Refusals(transactional_id, ledger.group, ledger.rights, patience_s, timeout_s)
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        # Held while a block begins or ends, and while one is settled: a writer that another thread closes meanwhile waits.
        self.at_work = threading.RLock()
        self.had_member = False  # a consumer of its blocks was in its group
        self.is_used = False  # something was sent in the open block
        self.group_offsets = GroupOffsets()  # of the consumers of its blocks
        self._answered_at = -math.inf  # when the coordinator last knew the id
        self._began_at = (
            -math.inf
        )  # the newest transaction's end: from its marker on, a probe or a claim from its beginning
        self._is_forgotten = False  # what became of the commit in doubt
        self._calm_at = -math.inf  # what connections were lost before does not matter
        self.failed: tuple[FailedDelivery, ...] = ()  # of the block that was aborted last
        self._is_abort_owed = False
        self.made: bool | None = False  # whether the open block, or the last one, is committed; None: nobody knows yet

    # ---------------------------------------------------------------------------------------------------------- start

    def open(self) -> None:
        """Steps 1 to 4. Raises Fenced when another writer takes the id at the same time, and what a cluster refuses."""
        self._ledger.ensure_topics()
        self.marker = self._fence_and_read()
        self._claim()

    def _fence_and_read(self) -> Marker:
        """Steps 1 to 3, again where the connection to the coordinator was lost meanwhile."""
        deadline = time.monotonic() + self._patience_s
        while True:
            self._fence()
            try:
                found = self._read_behind_fence()
            except KafkaException as error:
                overdue = "another writer may have claimed it" if self._is_overdue() else ""
                raise self._unclaimed(error.args[0], overdue) from None
            if not self._is_sent_again():
                return found
            self._check_time(deadline)

    def _fence(self) -> None:
        made = self._make_sender()  # first: the old one can be asked again where none can be made
        old = None if self.state is State.NEW else self.sender
        self.state = State.BROKEN
        self.sender = made
        if old is not None:
            old.close()  # Ctrl-C may come while it does: the new one is in its place by then
        made.connect(ANCHOR_TOPIC)
        try:
            self._ask(self.sender.producer.init_transactions)
        except KafkaException as error:
            raise self._refused(error.args[0], "InitProducerId") from None

    def _read_behind_fence(self) -> Marker:
        """Steps 2 and 3, again until whoever answers knows of the nonce. Raises KafkaException, BrokerUnreachable.

        A fence of another writer's shows in the next probe, which is refused.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            nonce = uuid.uuid4().hex
            self._commit_alone(self._ledger.probe(nonce))
            found = self._ledger.read_with_nonce()
            if found.nonce == nonce:
                return found.marker
            if time.monotonic() >= deadline:
                raise self._refusals.outdated()
            _log.debug("the marker of %r is read again: whoever answers does not know what is committed", self.id)
            time.sleep(_PAUSE_S)

    def _claim(self) -> None:
        claimed = self.marker.claimed_by(self.instance)
        try:
            self._commit_alone(self._ledger.entry(claimed))
        except KafkaException as error:
            is_overdue = self._is_overdue()
            found = self._ledger.read()
            if found.owner != self.instance:
                timed_out = is_overdue and (found == self.marker or not found.owner)
                raise self._unclaimed(error.args[0], _BY_NOBODY if timed_out else "") from None
            claimed = self._read_own()
        else:
            if self._is_sent_again():
                claimed = self._read_own()
        self._confirmed(claimed)

    def _read_own(self) -> Marker:
        """What is committed behind our claim, if it was made: another may have claimed the id and committed since."""
        found = self._fence_and_read()
        if found.owner == self.instance:
            return found
        if found in (self.marker, Marker()):
            raise self._refusals.unsure("the connection to its coordinator was lost in it")
        raise self._stop("another writer claimed the id")

    def _commit_alone(self, entry: TopicPartition) -> None:
        """A transaction with nothing else in it. Raises KafkaException."""
        self._began_at = time.monotonic()
        self.sender.producer.begin_transaction()
        self._enter(entry)
        self._ask(self.sender.producer.commit_transaction)

    def _is_sent_again(self) -> bool:
        """Whether the EndTxn of that transaction may have been: a copy may come late, or another one may have answered."""
        return self.sender.sent_again(self._began_at)

    def _check_time(self, deadline: float) -> None:
        """Rests a moment. Raises BrokerUnreachable at the deadline."""
        if time.monotonic() >= deadline:
            raise self._refusals.unsure(
                f"for {self._patience_s:g} s the connection to its coordinator was lost each time"
            )
        time.sleep(_PAUSE_S)

    def _is_overdue(self) -> bool:
        """Whether the coordinator may have aborted that transaction because it was open for too long."""
        return time.monotonic() - self._began_at >= self._timeout_s

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
        """Steps 5 to 7.

        Raises DeliveryFailed, TransactionAborted, NotAuthorized (all before 7; the caller then aborts), Fenced, OutcomeUnknown.
        """
        self.sender.flush()
        if self._is_shaken():
            raise self.aborted("a connection was lost in it")
        intended = self.marker.advanced(progress)
        self._began_at = time.monotonic()
        try:
            self._enter(self._ledger.entry(intended))
        except KafkaException as error:
            raise self.aborted(f"the marker was refused: {said(error.args[0])}") from None
        self.intended, self._of_commit = intended, self.sender
        self.made, self.state = None, State.IN_DOUBT
        if not self.settle():
            raise self.aborted(
                "the commit was refused, or its answer is not sure, and the marker shows that it was not made"
            )

    def settle(self) -> bool:
        """Finds out what became of a commit that is in doubt: True if it is committed. Raises OutcomeUnknown, Fenced.

        Asked is only who was asked to commit::

            EndTxn is refused; a look has fenced the id with a new producer, and Ctrl-C comes in the middle of its probe
            that producer, asked to commit, commits the probe, and says that it has: of the block nothing is there
        """
        if self.state is not State.IN_DOUBT:
            raise WriterError("no commit is in doubt", action="call settle after OutcomeUnknown alone")
        if self._is_forgotten:
            raise self._forgotten()
        if self.sender is not self._of_commit:
            return self._look("its producer was replaced")
        try:
            self._ask(self.sender.producer.commit_transaction)
        except KafkaException as error:
            if error.args[0].retriable():
                raise self._unknown(error.args[0].str()) from None
            return self._look(error.args[0].str())
        if self._is_sent_again():
            return self._look("a connection was lost before it was answered")
        self.made = True
        self._confirmed(self.intended)
        return True

    def _look(self, refusal: str) -> bool:
        """Steps 8 and 9: what is told there is final.

        Cut short, whatever by, it leaves the commit in doubt::

            EndTxn was not answered, the id is fenced, and Ctrl-C comes before the marker is read
            "nothing is in doubt" would have the block run again, and the transaction may be committed
        """
        try:
            found = self._final_marker()
            told = found.tells(self.instance, self.intended.number)
            self._is_forgotten = told is None
            self.made = told
        except BaseException as error:
            self.state = State.IN_DOUBT
            if isinstance(error, OnceflowError):
                raise self._unknown(error.message) from None
            raise
        if told is None:
            self.state = State.IN_DOUBT
            raise self._forgotten()
        if found.owner == self.instance:
            self._confirmed(found)
            return told
        stopped = self._stop(refusal)
        if not told:
            raise stopped
        self.marker = self.intended  # and not what was found: the other may have gone on from it
        return True

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
            return told_reason(error.args[0])
        return ""

    def _why(self, error: KafkaError) -> str:
        """In a transaction that is given up already, why it was."""
        return (self.reason() if error.code() == KafkaError._STATE else "") or said(error)  # noqa: SLF001

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
        """Steps 8 and 9. Where the marker is gone, the one that this writer knows is committed once more."""
        found = self._final_marker()
        if found.owner not in ("", self.instance):
            raise self._stop("another writer claimed the id")
        if found.owner:
            self._confirmed(found)
        else:
            self._claim()

    def _final_marker(self) -> Marker:
        """Steps 8 and 9: one that shows another's claim behind ours, or what is read behind a fence.

        Again where the connection to the coordinator was lost meanwhile; where the probe outlived its transaction (the process
        slept, say); and where another writer has fenced this one since, and has not claimed the id: it may never do so.
        """
        deadline = time.monotonic() + self._patience_s
        refusal: KafkaError | None = None
        while True:
            found = self._ledger.read(stable=False)
            if found.is_taken_from(self.instance, self.marker.number):
                return found
            if refusal is not None and time.monotonic() >= deadline:
                raise self._unclaimed(refusal, _BY_NOBODY if self._is_overdue() else "")
            self._fence()
            try:
                found = self._read_behind_fence()
                if not self._is_sent_again():
                    return found
            except KafkaException as error:
                refusal = error.args[0]
                if not _may_be_a_fence(refusal):
                    raise self._unclaimed(refusal, "") from None
                time.sleep(_PAUSE_S)
            else:
                self._check_time(deadline)

    def _confirmed(self, marker: Marker) -> None:
        """By the coordinator, which knows the id."""
        self.marker = marker
        self.state = State.READY
        self._answered_at = time.monotonic()

    # --------------------------------------------------------------------------------------------------------- asking

    def _enter(self, entry: TopicPartition) -> None:
        self._ask(self.sender.producer.send_offsets_to_transaction, [entry], self._ledger.membership)

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
        return self._refusals.fenced(reason)

    def _unclaimed(self, error: KafkaError, overdue: str) -> OnceflowError:
        refusal = self._refusals.unclaimed(error, overdue)
        if isinstance(refusal, Fenced):
            self.state = State.STOPPED
        return refusal

    def _unknown(self, reason: str) -> OutcomeUnknown:
        return self._refusals.unknown(self.intended.number, reason)

    def _forgotten(self) -> OutcomeForgotten:
        return self._refusals.forgotten(self.intended.number)

    def aborted(self, reason: str, told: DeliveryFailed | None = None) -> OnceflowError:
        """What to raise when the open transaction cannot go on; the caller aborts it. See ``Refusals.aborted``."""
        return self._refusals.aborted(reason, told)

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


def _may_be_a_fence(error: KafkaError) -> bool:
    """Of another writer's; or the id was forgotten, and may be another's by now."""
    return (error.fatal() and not is_denied(error)) or error.code() in EXPIRED
