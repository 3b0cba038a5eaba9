"""Holds production's talks (``transaction/asking.py``, ``producing.py``) with the model, in simulated time.

One talker is one client: it remembers who coordinates and who leads until a talk says to look again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from math import ceil
from typing import Any, TypeVar

from onceflow.kafka.client import GROUP, TRANSACTION, Again, Topic
from onceflow.transaction.producing import Answered, Await, Send
from onceflow.transaction.talk import Forget, Leaders, Pace, Rest, Talk, ToCoordinator, ToLeader
from onceflow.verify.simulator.coverage import AGAIN, ELSEWHERE, reach, reach_talk
from onceflow.verify.simulator.network import Network
from onceflow.verify.simulator.requests import (
    NOT_COORDINATOR,
    NOT_LEADER,
    Answer,
    Misdirected,
    Replaced,
    Request,
)
from onceflow.verify.simulator.scheduler import Process, Scheduler, Wait, sleep
from onceflow.verify.simulator.wire import TOPIC, modelled, together, worded

PATIENCE = 200
PAUSE = 3
_LONGEST_PAUSE = 12
_LONGEST_WAIT = 10

T = TypeVar("T")
Simulated = Generator[Wait, Any, T]


def pace(scheduler: Scheduler) -> Pace:
    """Production's pauses and deadlines, in ticks."""
    return Pace(lambda: scheduler.now, PATIENCE, PAUSE, _LONGEST_PAUSE)


class Talker:
    """One client of the cluster. ``order``: the driver's. ``looks_again``: for a coordinator that is no longer where it was."""

    def __init__(self, scheduler: Scheduler, network: Network, order: int, *, looks_again: bool = True) -> None:
        self._scheduler = scheduler
        self._network = network
        self._order = order
        self._looks_again = looks_again
        self._homes: dict[int, int] = {}
        self._leaders: dict[int, int] | None = None

    def run(self, talk: Talk[T]) -> Simulated[T]:
        """What the talk ends with, or raises."""
        try:
            turn = next(talk)
            while True:
                try:
                    answer = yield from self.perform(turn)
                except Again as again:
                    following = talk.throw(again)
                else:
                    following = talk.send(answer)
                _note(turn, following)
                turn = following
        except StopIteration as end:
            result: T = end.value
            return result

    def perform(self, turn: Any) -> Simulated[Any]:
        """One turn; what it is answered with."""
        match turn:
            case ToCoordinator(kind, request):
                return (yield from self._ask_coordinator(kind, request))
            case ToLeader(node, request):
                return (yield from self._ask(request, self._addressed(request, node)))
            case Leaders(_, refresh):
                if refresh or self._leaders is None:
                    self._leaders = dict(enumerate(self._network.leaders))
                return {TOPIC: Topic(TOPIC, self._leaders)}
            case Forget(kind):
                self._forget(kind)
            case Rest(pause):
                yield sleep(ceil(pause))
            case _:
                raise AssertionError(turn)
        return None

    def _ask_coordinator(self, kind: int, request: Any) -> Simulated[Any]:
        if kind not in self._homes:
            self._homes[kind] = self._network.looked_up(kind)
        try:
            return (yield from self._ask(request, self._asked_at(kind, modelled(request, self._order))))
        except Again:
            self._forget(kind)
            raise

    def _asked_at(self, kind: int, asked: Request) -> Request:
        """What the node is asked that was the coordinator when it was looked up."""
        node = self._homes[kind]
        if node == self._network.home(kind):
            return asked
        if self._network.is_replaced(kind, node):
            return Replaced(kind, asked)
        return Misdirected(NOT_COORDINATOR)

    def _forget(self, kind: int) -> None:
        if self._looks_again:
            self._homes.pop(kind, None)

    def _addressed(self, request: Any, node: int) -> Request:
        """What a node is asked: it answers for the partitions that it leads."""
        return together(request).at(lambda partition: None if self._network.leaders[partition] == node else NOT_LEADER)

    def _ask(self, request: Any, asked: Request) -> Simulated[Any]:
        answer = yield self._network.ask(asked)
        if answer is None:
            raise Again("no answer", moved=True)
        self._note(answer)
        return worded(request, answer)

    def _note(self, answer: Answer) -> None:
        """For the judge: whether what a coordinator has told is so no more.

        Of the transaction that lasts until an identity is given, for a driver may take what it is shown for its own::

            it commits under the last epoch, and is given another producer id; the coordinator is replaced, and shows that epoch
            it takes that for its own, as where a coordinator has lost what followed; told the truth then, it does not know it
        """
        if answer.committed is not None:
            self._network.note_answer(GROUP, self._order, answer)
        elif answer.misleads or answer.identity is not None:
            self._network.note_answer(TRANSACTION, self._order, answer)


class Sender(Talker):
    """One client of the cluster that also writes. ``before``: what may happen before each produce request."""

    def __init__(
        self, scheduler: Scheduler, network: Network, order: int, before: Callable[[], Simulated[None]]
    ) -> None:
        super().__init__(scheduler, network, order)
        self._before = before
        self._inbox = Inbox(scheduler)

    def perform(self, turn: Any) -> Simulated[Any]:
        match turn:
            case Send():
                yield from self._before()
                Process(self._scheduler, self._sent(turn), self._inbox.put)
                return None
            case Await(until):
                ticks = _LONGEST_WAIT if until is None else min(ceil(until - self._scheduler.now), _LONGEST_WAIT)
                return (yield self._inbox.take(max(1, ticks)))
        return (yield from super().perform(turn))

    def _sent(self, turn: Send) -> Simulated[Answered]:
        try:
            answer = yield from self._ask(turn.request, self._addressed(turn.request, turn.leader))
        except Again as again:
            return Answered(turn.leader, turn.batches, again)
        return Answered(turn.leader, turn.batches, answer)


class Inbox:
    """Answers that nobody has waited for yet, and whoever waits for the next one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._answers: deque[Any] = deque()
        self._wake: Callable[[], None] | None = None

    def put(self, answer: Any) -> None:
        """One more answer."""
        self._answers.append(answer)
        if self._wake is not None:
            self._wake()

    def take(self, ticks: int) -> Wait:
        """Waits for the next answer, or for None after some ticks."""

        def begin(process: Process) -> None:
            def wake() -> None:
                if self._wake is wake:
                    self._wake = None
                    process.resume(self._answers.popleft() if self._answers else None)

            self._wake = wake
            self._scheduler.after(0 if self._answers else ticks, partial(wake))

        return begin


def _note(turn: Any, following: Any) -> None:
    """What became of a question to a coordinator or a leader, as far as the next turn tells."""
    if isinstance(turn, ToCoordinator | ToLeader):
        name = type(turn.request).__name__.removesuffix("Request")
        if isinstance(following, Rest):
            reach_talk(name, AGAIN)
        elif isinstance(following, Forget | Leaders):
            reach_talk(name, ELSEWHERE)
    if isinstance(turn, Leaders) and turn.refresh:
        reach("client: looks up who leads now")
