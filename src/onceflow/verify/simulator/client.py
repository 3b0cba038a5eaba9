"""One driver's requests in simulated time: production's questions, put to the model and repeated as ``requests.py`` does.

What is asked and what an answer means is production code (``transaction/questions.py``); written again is the loop around it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.kafka.client import Again
from onceflow.transaction.messages import (
    Audit,
    Audited,
    Counts,
    Describe,
    Effect,
    End,
    Event,
    Identity,
    Initialise,
    ReadProgress,
    Store,
    Stored,
    Unreachable,
    WriteFailed,
)
from onceflow.transaction.questions import At, Question, Questions, describe_producers, read_held
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.scheduler import Scheduler, Wait, sleep
from onceflow.verify.simulator.wire import SOURCE, TOPIC, modelled, worded

__all__ = ["PATIENCE", "PAUSE", "TOPIC", "Client", "Denied"]

PATIENCE = 200
PAUSE = 3

Asking = Generator[Wait, Any, Event]


@dataclass(frozen=True, slots=True)
class Denied(Unreachable):
    """An answer that no repetition changes; what the machine hears of it depends on its state (``coordinator.py``)."""


class Client:
    """One driver's requests. ``source`` is the source end offset of the batch under way."""

    def __init__(self, scheduler: Scheduler, network: Network, version: int, order: int) -> None:
        self._scheduler = scheduler
        self._network = network
        self._questions = Questions("simulated", version, timeout_ms=60_000)
        self._order = order
        self.source = 0

    def perform(self, effect: Effect) -> Asking:
        """The event that an effect ends with. Writing is not for here."""
        match effect:
            case Describe(settle):
                return self._ask(self._questions.describe(settle=settle))
            case Initialise(expected):
                return self._ask(self._questions.initialise(expected))
            case ReadProgress():
                return self._ask(self._questions.progress())
            case Audit(identity, counts):
                return self._audit(identity, counts)
            case Store():
                return self._store(effect)
            case End(identity, commit):
                return self._ask(self._questions.end(identity, commit=commit))
        raise AssertionError(effect)

    def _store(self, effect: Store) -> Asking:
        source = {SOURCE: self.source} if effect.batch else {}
        for question in self._questions.store(effect.identity, effect.progress, source):
            event = yield from self._ask(question)
            if not isinstance(event, Stored):
                return event
        return Stored()

    def _audit(self, identity: Identity, counts: Counts) -> Asking:
        held: dict[At, int] = {}

        def read(answer: Any) -> Event:
            read_held(answer, identity, held)
            return Audited(held)

        event: Event = Audited(held)
        for topic, partition in sorted(counts):
            event = yield from self._ask(Question(0, describe_producers({topic: [partition]}), read))
            if not isinstance(event, Audited):
                break
        return event

    def _ask(self, question: Question[Event]) -> Asking:
        """Repeats until the answer can be read. After ``PATIENCE``: Unreachable."""
        deadline = self._scheduler.now + PATIENCE
        while True:
            answer = yield self._network.ask(modelled(question.request, self._order))
            try:
                if answer is not None:
                    return _noted(question.read(worded(question.request, answer)))
            except Again:
                pass
            except OnceflowError as error:
                return Denied(error.message)
            if self._scheduler.now >= deadline:
                reach("client: patience ends")
                return Unreachable("no answer in time")
            yield sleep(PAUSE)


def _noted(event: Event) -> Event:
    if isinstance(event, WriteFailed):
        reach("client: the broker asks to abort")
    return event
