"""The production requests (``transaction/requests.py``, ``transaction/producer.py``) in simulated time.

What an error code means is taken from production (``kafka/codes.py``); what an effect sends is written again, as generators.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from onceflow.kafka import codes
from onceflow.transaction.messages import (
    Audit,
    Audited,
    Coordinated,
    Describe,
    Described,
    Effect,
    End,
    Ended,
    Event,
    Identity,
    Initialise,
    Initialised,
    ProgressRead,
    ReadProgress,
    Refused,
    Store,
    Stored,
    Unreachable,
    WriteFailed,
)
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.requests import (
    GROUP,
    AddPartitions,
    Answer,
    CommitOffsets,
    DescribeProducer,
    DescribeTransaction,
    EndTransaction,
    FetchOffsets,
    InitProducerId,
    Request,
)
from onceflow.verify.simulator.scheduler import Scheduler, Wait, sleep

PATIENCE = 200
PAUSE = 3
TOPIC = "out"

Asking = Generator[Wait, Any, Event]


@dataclass(frozen=True, slots=True)
class Denied(Unreachable):
    """An answer that no repetition changes; what the machine hears of it depends on its state (``coordinator.py``)."""


class Client:
    """One driver's requests. ``source`` is the source end offset of the batch under way."""

    def __init__(self, scheduler: Scheduler, network: Network, version: int, order: int) -> None:
        self._scheduler = scheduler
        self._network = network
        self._version = version
        self._order = order
        self.source = 0
        self.committed_source = 0  # what the last OffsetFetch found

    def perform(self, effect: Effect) -> Asking:
        """The event that an effect ends with. Writing is not for here."""
        match effect:
            case Describe(settle):
                return self._describe(settle=settle)
            case Initialise(expected):
                return self.ask(InitProducerId(expected, self._order), _initialised)
            case ReadProgress():
                return self.ask(FetchOffsets(), self._progress_read)
            case Audit(identity, counts):
                return self._audit(identity, sorted(counts))
            case Store():
                return self._store(effect)
            case End(identity, commit):
                return self.ask(EndTransaction(identity, commit), self._ended)
        raise AssertionError(effect)

    def ask(self, request: Request, read: Callable[[Answer], Event | None]) -> Asking:
        """Repeats until an answer can be read; None from ``read`` asks again. After ``PATIENCE``: Unreachable."""
        deadline = self._scheduler.now + PATIENCE
        while True:
            answer = yield self._network.ask(request)
            event = None if answer is None else _read(answer, read)
            if event is not None:
                return event
            if self._scheduler.now >= deadline:
                reach("client: patience ends")
                return Unreachable("no answer in time")
            yield sleep(PAUSE)

    def _describe(self, *, settle: bool) -> Asking:
        def read(answer: Answer) -> Event | None:
            assert answer.snapshot is not None
            unsettled = settle and answer.snapshot.state is Coordinated.COMPLETING
            return None if unsettled else Described(answer.snapshot)

        return self.ask(DescribeTransaction(), read)

    def _progress_read(self, answer: Answer) -> Event:
        assert answer.committed is not None
        self.committed_source = answer.committed.source
        return ProgressRead(answer.committed.progress)

    def _audit(self, identity: Identity, targets: list[tuple[str, int]]) -> Asking:
        held: dict[tuple[str, int], int] = {}
        for topic, partition in targets:
            event = yield from self.ask(DescribeProducer(identity, partition), lambda a: Audited({(TOPIC, 0): a.held}))
            if not isinstance(event, Audited):
                return event
            held[topic, partition] = event.held[TOPIC, 0]
        return Audited(held)

    def _store(self, effect: Store) -> Asking:
        if self._version < 2:
            added = yield from self.ask(AddPartitions(effect.identity, GROUP), lambda answer: Stored())
            if not isinstance(added, Stored):
                return added
        source = None if effect.batch is None else self.source
        request = CommitOffsets(effect.identity, effect.progress, source)
        return (yield from self.ask(request, lambda answer: Stored()))

    def _ended(self, answer: Answer) -> Event:
        return Ended(answer.identity)


def _initialised(answer: Answer) -> Event:
    assert answer.identity is not None
    return Initialised(answer.identity)


def _read(answer: Answer, read: Callable[[Answer], Event | None]) -> Event | None:
    """As ``Requests._check`` and ``_ended`` do."""
    if answer.code == codes.NONE:
        return read(answer)
    if answer.code in codes.RETRIABLE:
        return None
    if answer.code in codes.REFUSED:
        return Refused(codes.name_of(answer.code))
    if answer.code in codes.ABORTABLE:
        reach("client: the broker asks to abort")
        return WriteFailed(terminal=False, reason=codes.name_of(answer.code))
    return Denied(codes.name_of(answer.code))
