"""Model of Kafka's transaction coordinator for one transactional id: KIP-98, KIP-360, KIP-890 (versions 1 and 2).

Follows ``TransactionCoordinator`` and ``TransactionMetadata`` of Kafka, whose names it uses. A request is atomic; what
takes time is the markers: the coordinator stays in ``PREPARE_…`` until every partition has its marker.

All that time the next state is pending, and the answer is CONCURRENT_TRANSACTIONS, whatever the direction of an EndTxn. Who hears
it depends on what is looked at first::

    InitProducerId, AddPartitionsToTxn, EndTxn of version 2   whether something is pending: everybody, fenced or unknown too
    EndTxn of version 1, a leader's question (version 1)      the identity: only who has the current one, others are refused

Of Kafka 4.2 or 4.3 (``follows_next``), which differ when the epochs are used up::

    the coordinator aborts a transaction of the last epoch   version 2: 4.2 goes on with epoch 32767, which is none to write
                                                             under, as what is opened there never ends (KAFKA-20090)
    the coordinator moves                                    4.2 has written down neither which producer id comes next, so
                                                             that nobody knows the one that EndTxn has given (version 2),
                                                             nor which one came before, whose holder may ask again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from onceflow.transaction.messages import Coordinated, Identity, Snapshot
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.requests import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    OK,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_SERVER_ERROR,
    AddPartitions,
    Answer,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Request,
    Together,
)

EXHAUSTED = 32766  # TransactionMetadata.isEpochExhausted
GREATEST = 32767  # Short.MAX_VALUE
NONE = -1


class Phase(Enum):
    """TransactionState."""

    EMPTY = auto()
    ONGOING = auto()
    PREPARE_COMMIT = auto()
    PREPARE_ABORT = auto()
    COMPLETE_COMMIT = auto()
    COMPLETE_ABORT = auto()


PREPARE = (Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT)
_SHOWN = {
    Phase.EMPTY: Coordinated.EMPTY,
    Phase.ONGOING: Coordinated.ONGOING,
    Phase.PREPARE_COMMIT: Coordinated.COMPLETING,
    Phase.PREPARE_ABORT: Coordinated.COMPLETING,
    Phase.COMPLETE_COMMIT: Coordinated.COMMITTED,
    Phase.COMPLETE_ABORT: Coordinated.ABORTED,
}

OnPrepared = Callable[[frozenset[int], Identity, bool], None]
"""Told to write markers: the partitions, the marker's identity, commit or abort."""


@dataclass(slots=True)
class Metadata:
    """TransactionMetadata. ``last_epoch``: whose repeated InitProducerId is answered with the current epoch."""

    pid: int
    epoch: int = NONE
    last_epoch: int = NONE
    previous_pid: int = NONE
    next_pid: int = NONE
    phase: Phase = Phase.EMPTY
    partitions: set[int] = field(default_factory=set)
    begun: int = 0  # counts transactions, so that a timer knows its own

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.epoch)

    @property
    def following(self) -> Identity:
        """The identity once the markers are written."""
        return Identity(self.next_pid, 0) if self.next_pid != NONE else self.identity


class Transactions:
    """The coordinator. ``on_begin`` is told when a transaction opens (its timeout starts).

    ``in_doubt``, for the judge: whoever initialised last may not be able to know that it was they::

        the coordinator gives an epoch and nobody hears of it; it moves, and the new one does not know the last epoch
        asked the same again it refuses, as it would refuse an older driver

        the coordinator has forgotten the transactional id: it knows nobody who has it
        so it compares nothing, and gives another producer id; nobody hears of that one, or an older driver has asked for it
        the same where a driver has seen that it was forgotten, and asks for any identity, while a newer driver starts

        a fence arrives when nobody waits for it any more, and fences whoever has sent it (``network.py``)

    It lasts until the identity that was given is used, for then somebody has heard of it, or until another one is given.

    ``proves_nothing``, for the judge, and for as long: the epochs were used up, and another producer id follows the last one, by
    an InitProducerId or behind an abort that nobody asked for. Who holds that epoch cannot tell whether somebody came between.
    """

    def __init__(
        self, version: int, first_epoch: int, on_prepared: OnPrepared, on_begin: Callable[[int], None]
    ) -> None:
        self.metadata: Metadata | None = None
        self.follows_next = False
        self.version = version
        self._first_epoch = first_epoch  # as if InitProducerId had been called so often before
        self._next_pid = 1000
        self._on_prepared = on_prepared
        self._on_begin = on_begin
        self.in_doubt = False
        self.proves_nothing = False
        self._forgotten: tuple[Identity, Identity] | None = None  # when it moved: who had asked last, and for what

    # ------------------------------------------------------------------------------------------------- InitProducerId

    def initialise(self, request: InitProducerId) -> Answer:
        """InitProducerId; with an expected identity it is a compare-and-set, but only while nothing is open."""
        entry = self.metadata
        compares_nothing = entry is None and request.expected is not None
        if entry is None:
            entry = self.metadata = Metadata(self._new_pid(), epoch=self._first_epoch - 1)
            if self._first_epoch:
                reach("coordinator: epochs begin near their end")
                self._first_epoch = 0
        if entry.phase in PREPARE:
            return CONCURRENT_TRANSACTIONS
        if request.expected is not None and not self._may_be(entry, request.expected):
            return self._replaced(entry, request.expected)
        if entry.phase is Phase.ONGOING:
            reach("coordinator: InitProducerId aborts the open transaction")
            return CONCURRENT_TRANSACTIONS if self.fence() else UNKNOWN_SERVER_ERROR
        answer = self._renewed(entry, request.expected)
        self.in_doubt = self.in_doubt or compares_nothing
        return answer

    def _may_be(self, entry: Metadata, expected: Identity) -> bool:
        exhausted = expected.producer_id == entry.previous_pid and expected.epoch >= EXHAUSTED
        return entry.epoch == NONE or expected.producer_id == entry.pid or exhausted

    def _renewed(self, entry: Metadata, asked: Identity | None) -> Answer:
        expected = None if asked is None else asked.epoch
        if entry.epoch >= EXHAUSTED and expected in (None, entry.epoch):
            reach("coordinator: a new producer id, the epochs are used up")
            entry.previous_pid, entry.pid = entry.pid, self._new_pid()
            entry.last_epoch, entry.epoch = (NONE if expected is None else entry.epoch), 0
        elif entry.epoch >= EXHAUSTED:
            reach("coordinator: no epoch left and another one expected")
            return UNKNOWN_SERVER_ERROR
        elif asked is None:
            entry.epoch, entry.last_epoch = entry.epoch + 1, NONE
        elif entry.epoch in (NONE, expected):
            entry.last_epoch, entry.epoch = entry.epoch, entry.epoch + 1
        elif expected == entry.last_epoch:
            reach("coordinator: a repeated InitProducerId gets the current epoch")
        else:
            reach("coordinator: InitProducerId with an epoch that another one replaced")
            return self._replaced(entry, asked)
        entry.phase = Phase.EMPTY
        self.in_doubt = False
        self.proves_nothing = asked is not None and asked.producer_id == entry.previous_pid
        return Answer(identity=entry.identity)

    def _replaced(self, entry: Metadata, asked: Identity) -> Answer:
        self.in_doubt = self.in_doubt or self._forgotten == (asked, entry.identity)
        return PRODUCER_FENCED

    def _new_pid(self) -> int:
        self._next_pid += 1
        return self._next_pid

    # --------------------------------------------------------------------------------------------------- adding, ending

    def add(self, identity: Identity, partition: int) -> Answer:
        """AddPartitionsToTxn by a client (version 1) or by a partition leader (version 2)."""
        entry = self.metadata
        if entry is not None and entry.phase in PREPARE:
            return CONCURRENT_TRANSACTIONS
        refused = self._refused(identity)
        if entry is None or refused is not None:
            return refused or INVALID_PRODUCER_ID_MAPPING
        if entry.phase is not Phase.ONGOING:
            entry.phase = Phase.ONGOING
            entry.partitions = set()
            entry.begun += 1
            self._on_begin(entry.begun)
        entry.partitions.add(partition)
        self.in_doubt = self.proves_nothing = False
        return OK

    def verify(self, identity: Identity, partition: int) -> Answer:
        """A partition leader asks before the first batch whether the partition belongs to the transaction (version 1)."""
        entry = self.metadata
        refused = self._refused(identity)
        if entry is None or refused is not None:
            return refused or INVALID_PRODUCER_ID_MAPPING
        if entry.phase is not Phase.ONGOING or partition not in entry.partitions:
            reach("coordinator: a late write is not part of a transaction")
            return TRANSACTION_ABORTABLE
        return OK

    def _refused(self, identity: Identity) -> Answer | None:
        entry = self.metadata
        if entry is None or entry.pid != identity.producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != identity.epoch:
            return PRODUCER_FENCED
        return CONCURRENT_TRANSACTIONS if entry.phase in PREPARE else None

    def end(self, request: EndTransaction) -> Answer:
        """EndTxn of the request's version: 5 on transaction version 2, at most 4 on version 1."""
        if self.metadata is None:
            return INVALID_PRODUCER_ID_MAPPING
        ended = self._end_2 if self.version >= 2 else self._end_1
        return ended(self.metadata, request.identity, request.commit)

    def _end_1(self, entry: Metadata, identity: Identity, commit: bool) -> Answer:
        if entry.pid != identity.producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != identity.epoch:
            return PRODUCER_FENCED
        if entry.phase in PREPARE:
            return CONCURRENT_TRANSACTIONS
        if entry.phase is Phase.ONGOING:
            self._prepare(entry, commit)
            return OK
        return _repeated(entry.phase, commit)

    def _end_2(self, entry: Metadata, identity: Identity, commit: bool) -> Answer:
        if entry.phase in PREPARE:
            return CONCURRENT_TRANSACTIONS
        overflow = (entry.previous_pid, EXHAUSTED, 0) == (identity.producer_id, identity.epoch, entry.epoch)
        again = overflow or entry.epoch == identity.epoch + 1
        if entry.pid != identity.producer_id and not overflow:
            return INVALID_PRODUCER_ID_MAPPING
        if not self._may_end(entry, identity, again=again):
            return PRODUCER_FENCED
        if entry.phase is Phase.ONGOING or not (again or commit):
            if entry.epoch == GREATEST:
                return UNKNOWN_SERVER_ERROR
            self._prepare(entry, commit)
            return Answer(identity=entry.following)
        if again:
            answer = _repeated(entry.phase, commit)
            return Answer(identity=entry.identity) if answer is OK else answer
        return INVALID_TXN_STATE

    def _may_end(self, entry: Metadata, identity: Identity, *, again: bool) -> bool:
        if entry.phase in (Phase.EMPTY, Phase.ONGOING):
            return entry.epoch == identity.epoch
        return again or entry.epoch == identity.epoch

    # ------------------------------------------------------------------------------------------- what the broker does

    def fence(self) -> bool:
        """Aborts the open transaction under the next epoch: by InitProducerId, or because it timed out. False: there is none."""
        assert self.metadata is not None
        entry = self.metadata
        if entry.epoch == GREATEST:
            return False
        entry.last_epoch = entry.epoch if self.version >= 2 else NONE
        if self.version >= 2 and entry.epoch >= EXHAUSTED:
            if self.follows_next:
                reach("coordinator: it aborts in the last epoch, and gives a new producer id")
                entry.next_pid = self._new_pid()
                self.proves_nothing = True
            else:
                reach("coordinator: it aborts in the last epoch, and leaves the one behind it")
        entry.epoch += 1
        self._marked(entry, commit=False)
        return True

    def expire(self, begun: int) -> None:
        """The transaction's timeout; ``begun`` names the transaction that the timer was started for."""
        if self.metadata is not None and self.metadata.phase is Phase.ONGOING and self.metadata.begun == begun:
            reach("coordinator: a transaction times out")
            self.fence()

    def _prepare(self, entry: Metadata, commit: bool) -> None:
        if entry.phase is not Phase.ONGOING:
            reach("coordinator: an abort of nothing gives the next epoch")
            entry.partitions = set()
        if self.version >= 2:
            entry.last_epoch = entry.epoch
            if entry.epoch >= EXHAUSTED:
                reach("coordinator: EndTxn gives a new producer id")
                entry.next_pid = self._new_pid()
            entry.epoch += 1
        self._marked(entry, commit)

    def _marked(self, entry: Metadata, commit: bool) -> None:
        entry.phase = Phase.PREPARE_COMMIT if commit else Phase.PREPARE_ABORT
        self._on_prepared(frozenset(entry.partitions), entry.identity, commit)

    def complete(self) -> None:
        """Every partition has its marker."""
        assert self.metadata is not None
        entry = self.metadata
        commit = entry.phase is Phase.PREPARE_COMMIT
        entry.phase = Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT
        entry.partitions = set()
        if entry.next_pid != NONE:
            entry.previous_pid, entry.pid, entry.epoch, entry.next_pid = entry.pid, entry.next_pid, 0, NONE

    def move(self) -> None:
        """Another broker loads the coordinator's log, which does not hold the last epoch."""
        entry = self.metadata
        if entry is None:
            return
        if entry.last_epoch != NONE:
            asked = entry.previous_pid if entry.last_epoch > entry.epoch else entry.pid
            self._forgotten = (Identity(asked, entry.last_epoch), entry.identity)
            entry.last_epoch = NONE
        if not self.follows_next:
            if entry.next_pid != NONE:
                reach("coordinator: it moves, and nobody knows the producer id that it has given")
            entry.previous_pid = entry.next_pid = NONE

    def as_of_now(self) -> Transactions:
        """What a coordinator has that hears no more."""
        found = Transactions(self.version, 0, lambda *_: None, lambda _: None)
        found.metadata, found.follows_next = self.copied(), self.follows_next
        found._forgotten = self._forgotten
        return found

    def copied(self) -> Metadata | None:
        """What is known of the transactional id, so that it can be put back."""
        entry = self.metadata
        return None if entry is None else replace(entry, partitions=set(entry.partitions))

    def ask(self, request: Request) -> Answer:
        """Of any of the requests that are for this coordinator."""
        match request:
            case Together(requests):
                return Answer(parts=tuple(self.ask(each) for each in requests))
            case InitProducerId():
                return self.initialise(request)
            case AddPartitions():
                return self.add(request.identity, request.partition)
            case EndTransaction():
                return self.end(request)
            case DescribeTransaction():
                return Answer(snapshot=self.describe())
        raise AssertionError(request)

    def forget(self) -> bool:
        """``transactional.id.expiration.ms`` has passed; never while a transaction is open or being completed."""
        if self.metadata is None or self.metadata.phase in (Phase.ONGOING, *PREPARE):
            return False
        self.metadata = None
        self.in_doubt = True
        return True

    def describe(self) -> Snapshot:
        """DescribeTransactions."""
        if self.metadata is None:
            return Snapshot(Coordinated.ABSENT, None)
        return Snapshot(_SHOWN[self.metadata.phase], self.metadata.identity)


def _repeated(phase: Phase, commit: bool) -> Answer:
    """The answer to an EndTxn that is decided already."""
    if phase is (Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT):
        reach("coordinator: a repeated EndTxn succeeds")
        return OK
    return INVALID_TXN_STATE
