"""Model of a Kafka cluster as one pipeline sees it: a transaction coordinator, a group coordinator, partition leaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from onceflow.kafka import codes
from onceflow.kafka.client import GROUP as GROUP_KIND
from onceflow.kafka.client import TRANSACTION
from onceflow.transaction.messages import Identity
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.group import Group
from onceflow.verify.simulator.outdated import Outdated
from onceflow.verify.simulator.partition import Partition
from onceflow.verify.simulator.requests import (
    CONCURRENT_TRANSACTIONS,
    GROUP,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_TRANSACTION_TIMEOUT,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    OK,
    PRODUCER_FENCED,
    Answer,
    CommitOffsets,
    DescribeProducer,
    FetchOffsets,
    InitProducerId,
    ListOffset,
    Misdirected,
    Produce,
    Replaced,
    Request,
    Together,
)
from onceflow.verify.simulator.scheduler import Scheduler
from onceflow.verify.simulator.standing import Standing
from onceflow.verify.simulator.transactions import Transactions

TRANSACTION_TIMEOUT = 100
MARKER_DELAYS = (1, 20, 80, 260)
AWAY = 30
BY_HAND = 60


@dataclass(frozen=True, slots=True)
class Old:
    """A coordinator that others have replaced, and that has not heard of it. ``knows``: what it had then."""

    home: int
    knows: Group | Outdated


class Broker:
    """Answers requests at the moment at which they arrive; what comes later by itself is planned with the scheduler."""

    def __init__(
        self, scheduler: Scheduler, choices: Choices, version: int, partitions: int = 2, first_epoch: int = 0
    ) -> None:
        self.version = version
        self.restarts_leaders = False  # a leader moves to a broker that was restarted, and not to one that has followed
        self.verifies = (
            True  # partition leaders ask the coordinator before they append; of version 1, they may be told not to
        )
        self.transactions = Transactions(version, first_epoch, self._write_markers, self._start_timer)
        self.partitions = [Partition() for _ in range(partitions)]
        self.group = Group()
        self.homes = {GROUP_KIND: 0, TRANSACTION: 0}  # which node coordinates
        self.leaders = [0] * partitions
        self.standing = Standing()
        self._scheduler = scheduler
        self._choices = choices
        self._markers_missing = 0
        self._coordinator_back = 0
        self._group_back = 0
        self._old: dict[int, Old] = {}
        self._shorter_until = 0  # transaction.max.timeout.ms is below what the pipeline asks for

    def begin_with(self, records: int, silent: frozenset[int]) -> None:
        """At least once has written so many records before the run, and committed their offset, without progress."""
        for number, partition in enumerate(self.partitions):
            partition.begin_with(tuple(v for v in range(number, records, len(self.partitions)) if v not in silent))
        self.group.begin_with(records)

    def ask(self, request: Request) -> Answer:
        """The answer, after the request has had its effect."""
        match request:
            case Together(requests):
                return Answer(parts=tuple(self.ask(each) for each in requests))
            case Misdirected(answer):
                return answer
            case Produce():
                return self._produce(request)
            case DescribeProducer():
                return Answer(producers=self.partitions[request.partition].producers)
            case CommitOffsets() | FetchOffsets():
                return self._ask_group(request)
            case ListOffset():
                return Answer(offset=self.partitions[request.partition].last_stable_offset)
            case _:
                return self._ask_coordinator(request)

    # ---------------------------------------------------------------------------------------------------- coordinators

    def _ask_coordinator(self, request: Request) -> Answer:
        if self._scheduler.now < self._coordinator_back:
            return NOT_COORDINATOR
        return self._initialise(request) if isinstance(request, InitProducerId) else self.transactions.ask(request)

    def _initialise(self, request: InitProducerId) -> Answer:
        if self._scheduler.now < self._shorter_until:
            return INVALID_TRANSACTION_TIMEOUT
        knows = self.transactions.metadata is not None
        answer = self.transactions.initialise(request)
        if answer.identity is None:
            return answer
        self.standing.was_given(answer.identity, request.by)
        if request.expected is None:
            self._note_fenced(request.by, blind=self.standing.is_blind(request.by))
        elif not knows:  # it compares nothing
            self._note_fenced(request.by, blind=True)
        return answer

    def _note_fenced(self, driver: int, *, blind: bool) -> None:
        self.standing.has_fenced(driver, self.group.committed, blind=blind)
        self.transactions.in_doubt = self.transactions.in_doubt or blind

    def fenced_late(self) -> None:
        """A fence arrived when nobody waited for it any more."""
        self.transactions.in_doubt = True

    def _ask_group(self, request: CommitOffsets | FetchOffsets) -> Answer:
        if self._scheduler.now < self._group_back:
            return NOT_COORDINATOR
        if isinstance(request, FetchOffsets):
            return self.group.fetch(request)
        sources = zip(request.sources, request.refused, strict=True)
        if not self.group.has_topic and all(offset is None or refused for offset, refused in sources):
            return self.group.told(request, OK)  # nothing is left to ask the coordinator for
        return self.group.told(request, self._commit(request))

    def _commit(self, request: CommitOffsets) -> Answer:
        if self.group.is_fenced(request.identity):
            reach("group: offsets of a fenced epoch are refused")
            return INVALID_PRODUCER_EPOCH
        joined = self._joined(request.identity, GROUP, is_open=self.group.is_open(request.identity))
        return self.group.commit(request) if joined.code == codes.NONE else joined

    def move_coordinator(self, away: int = AWAY) -> None:
        """Another broker takes the transaction coordinator over; until it has loaded it, nobody answers."""
        reach("broker: the transaction coordinator moves")
        self.transactions.move()
        self.homes[TRANSACTION] += 1
        self._coordinator_back = self._scheduler.now + away

    def move_group(self, away: int = AWAY) -> None:
        """Another broker takes the group coordinator over; until it has loaded it, nobody answers."""
        reach("broker: the group coordinator moves")
        self.homes[GROUP_KIND] += 1
        self._group_back = self._scheduler.now + away

    # ---------------------------------------------------------------------- coordinators that do not hear that they are none

    def replace_group(self, ticks: int) -> None:
        """The others cannot reach the group coordinator, and another one takes over; for so many ticks it does not hear of it."""
        if GROUP_KIND not in self._old:
            reach("broker: the group coordinator is replaced, and does not hear of it")
            self._replace(GROUP_KIND, self.group.as_of_now(), ticks)
            self.move_group()

    def replace_coordinator(self, ticks: int) -> None:
        """The same of the transaction coordinator."""
        if TRANSACTION not in self._old:
            reach("broker: the transaction coordinator is replaced, and does not hear of it")
            self._replace(TRANSACTION, Outdated(self.transactions, self._scheduler, TRANSACTION_TIMEOUT), ticks)
            self.move_coordinator()

    def _replace(self, kind: int, knows: Group | Outdated, ticks: int) -> None:
        self._old[kind] = Old(self.homes[kind], knows)
        self._scheduler.after(ticks, partial(self._reached_again, kind))

    def _reached_again(self, kind: int) -> None:
        del self._old[kind]

    def is_old(self, kind: int, node: int) -> bool:
        """Whether the node still takes itself for the coordinator."""
        return kind in self._old and self._old[kind].home == node

    def ask_replaced(self, asked: Replaced) -> Answer | None:
        """What it takes has to be with replicas that do not follow it any more, so that is never answered."""
        old = self._old.get(asked.kind)
        if old is None:
            return NOT_COORDINATOR
        answer = old.knows.tell(asked.request)
        if answer is None:
            return None
        if isinstance(old.knows, Group):
            known, committed = old.knows.committed, self.group.committed
            return replace(answer, misleads=known != committed, tells_older_claim=known.claim != committed.claim)
        self.transactions.in_doubt = self.transactions.in_doubt or old.knows.in_doubt
        return replace(answer, misleads=old.knows.shown != self.transactions.describe())

    def names_replaced(self, kind: int) -> bool:
        """Whether who looks for the coordinator is told the one that was replaced."""
        if kind not in self._old or not self._choices.pick("named", 2):
            return False
        reach("network: who was replaced is named as the coordinator")
        return True

    def look_up(self, kind: int) -> int:
        """The node that is named as the coordinator."""
        return self._old[kind].home if self.names_replaced(kind) else self.homes[kind]

    def look_up_group(self) -> Group:
        """What whoever is named as the coordinator knows."""
        knows = self._old[GROUP_KIND].knows if self.names_replaced(GROUP_KIND) else self.group
        assert isinstance(knows, Group)
        return knows

    def was_told_of_an_older_claim(self, driver: int) -> bool:
        """Where nothing that it was told since proves that no claim came between."""
        return self.standing.was_told_of_an_older_claim(driver, proves_nothing=self.transactions.proves_nothing)

    # ------------------------------------------------------------------------------------------------ partition leaders

    def move_leader(self, partition: int) -> None:
        """Another replica leads a partition: it has the log, and what that says of the producers."""
        reach("broker: a partition's leader moves")
        self.leaders[partition] += 1
        if self.restarts_leaders:
            self.partitions[partition].restart()
        else:
            self.partitions[partition].move()

    def expire_producers(self) -> None:
        """All leaders forget the producers that have nothing open.

        Not where none of them asks the coordinator: there a request that was under way for longer than an idle producer is
        remembered (``producer.id.expiration.ms``, a day) would be one of a new producer, and nobody could tell.
        """
        if not self.verifies:
            return
        reach("broker: producer ids expire")
        for partition in self.partitions:
            partition.expire()
        self.group.expire()

    def refuse(self, request: Request, refusal: Answer) -> Answer:
        """Leaders that would append refuse to. They ask the coordinator first: on version 2 the partition has joined by then."""
        before = [partition.refuses for partition in self.partitions]
        for partition in self.partitions:
            partition.refuses = refusal
        try:
            return self.ask(request)
        finally:
            for partition, kept in zip(self.partitions, before, strict=True):
                partition.refuses = kept

    def _produce(self, request: Produce) -> Answer:
        leader = self.partitions[request.partition]
        if leader.is_fenced(request.identity):
            reach("partition: a write of a fenced epoch is refused")
            return INVALID_PRODUCER_EPOCH
        opened = not self.verifies or leader.is_open(request.identity)
        if not opened:
            leader.verifying(request)
        joined = self._joined(request.identity, request.partition, is_open=opened)
        if joined.code != codes.NONE:
            return self._renamed(joined)
        if leader.refuses is not None:
            reach("partition: a leader that has asked the coordinator refuses to append")
            return leader.refuses
        end = leader.end
        strict = self.version >= 2
        answer = leader.append(request, strict=strict)
        lossy = leader.end > end and leader.may_lose_tail(request.identity, strict=strict)
        if lossy and self._choices.pick("tail", 2):
            reach("partition: an acknowledged batch is lost")
            leader.lose_tail(request.identity)
        return answer

    def _renamed(self, joined: Answer) -> Answer:
        """ReplicaManager.handleProduceAppend: older producers know what to do about it."""
        unknown = (NOT_COORDINATOR, CONCURRENT_TRANSACTIONS) if self.version == 1 else (NOT_COORDINATOR,)
        return NOT_ENOUGH_REPLICAS if joined in unknown else joined

    def _joined(self, identity: Identity, partition: int, *, is_open: bool) -> Answer:
        """A leader asks the coordinator before the first batch of a transaction (KIP-890), and renames one refusal."""
        if is_open:
            return Answer()
        if self._scheduler.now < self._coordinator_back:
            return NOT_COORDINATOR
        known = self.transactions.add if self.version >= 2 else self.transactions.verify
        answer = known(identity, partition)
        return INVALID_PRODUCER_EPOCH if answer is PRODUCER_FENCED else answer

    # ------------------------------------------------------------------------------------------------ by people, for a while

    def rewrite_progress(self, foreign: str) -> None:
        """Somebody resets the group's offsets with a tool of Kafka's, and finds out."""
        reach("people: what is committed is not ours")
        self.group.rewrite(foreign)
        self._scheduler.after(BY_HAND, partial(self.group.rewrite, None))

    def shorten_transactions(self) -> None:
        """``transaction.max.timeout.ms`` is set below what the pipeline asks for."""
        reach("people: transactions may not last as long as is asked for")
        self._shorter_until = self._scheduler.now + BY_HAND

    def compact(self) -> None:
        """The topic is made a compacted one, which takes no record without a key."""
        reach("people: leaders refuse the records as they are")
        self._set_refusal(INVALID_RECORD)
        self._scheduler.after(BY_HAND, partial(self._set_refusal, None))

    def _set_refusal(self, refusal: Answer | None) -> None:
        for partition in self.partitions:
            partition.refuses = refusal

    # --------------------------------------------------------------------------------------------- by the broker itself

    def _start_timer(self, begun: int) -> None:
        self._scheduler.after(TRANSACTION_TIMEOUT, partial(self.transactions.expire, begun))

    def _write_markers(self, partitions: frozenset[int], identity: Identity, commit: bool) -> None:
        self._markers_missing = len(partitions)
        for partition in sorted(partitions):
            delay = MARKER_DELAYS[self._choices.pick("marker", len(MARKER_DELAYS))]
            if delay > TRANSACTION_TIMEOUT:
                reach("broker: a marker takes longer than a transaction may")
            self._scheduler.after(delay, partial(self._write_marker, self._marked(partition), identity, commit))
        if not partitions:
            self.transactions.complete()

    def _marked(self, partition: int) -> Callable[[Identity, bool], None]:
        return self.group.mark if partition == GROUP else self.partitions[partition].mark

    def _write_marker(self, mark: Callable[[Identity, bool], None], identity: Identity, commit: bool) -> None:
        mark(identity, commit)
        self._markers_missing -= 1
        if self._markers_missing == 0:
            self.transactions.complete()
