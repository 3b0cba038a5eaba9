"""The way between one driver and the broker: a request or its answer may be lost, come twice, or come late.

The connection may also be cut for a while, both ways or only from the broker to the client; and the broker may deny a request
that it would have performed (an ACL that was taken away, replicas that are gone, a smaller limit of sizes), or ask to abort
(TRANSACTION_ABORTABLE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from onceflow.kafka import codes
from onceflow.verify.simulator.broker import Broker
from onceflow.verify.simulator.choices import Choices
from onceflow.verify.simulator.coverage import reach
from onceflow.verify.simulator.requests import (
    MESSAGE_TOO_LARGE,
    NO_SOURCES,
    NOT_ENOUGH_REPLICAS,
    SOURCES,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    AddPartitions,
    Answer,
    CommitOffsets,
    InitProducerId,
    Produce,
    Replaced,
    Request,
    Together,
)
from onceflow.verify.simulator.scheduler import Process, Scheduler, Wait

REQUEST_TIMEOUT = 30
LATE = (7, 60, 150, 400)
CUT = 250  # longer than a client's patience
USUAL_TICKS = 2
"""Until a request is performed, where nothing is slow."""
PACES = 6
"""So many are there: the usual one, and each a tick slower than the one before. None of them alone lets a request time out."""
_USUAL, _LOST, _ANSWER_LOST, _TWICE = range(4)


class Network:
    """One tick each way, or a few more.

    What is not answered in ``REQUEST_TIMEOUT`` ticks is answered with None: the connection broke.
    """

    def __init__(self, scheduler: Scheduler, choices: Choices, broker: Broker) -> None:
        self._scheduler = scheduler
        self._choices = choices
        self._broker = broker
        self._dead_until = 0  # nothing gets through
        self._deaf_until = 0  # no answer gets through

    def home(self, kind: int) -> int:
        """The node that coordinates now."""
        return self._broker.homes[kind]

    def looked_up(self, kind: int) -> int:
        """The node that FindCoordinator names: it may be told by the one that was replaced."""
        return self._broker.look_up(kind)

    def is_replaced(self, kind: int, node: int) -> bool:
        """Whether the node still takes itself for the coordinator."""
        return self._broker.is_old(kind, node)

    def note_answer(self, kind: int, driver: int, answer: Answer) -> None:
        """For the judge: what a coordinator has told a driver."""
        self._broker.standing.was_told(kind, driver, answer)

    @property
    def leaders(self) -> Sequence[int]:
        """The nodes that lead the output partitions now, as Metadata says."""
        return self._broker.leaders

    def ask(self, request: Request) -> Wait:
        """Waits for the ``Answer``, or for None."""

        def begin(process: Process) -> None:
            _Exchange(self, process, request)

        return begin

    def deliver(self, request: Request, *, awaited: bool) -> Answer | None:
        """The answer, or None if request or answer do not get through."""
        now = self._scheduler.now
        self._maybe_cut(now)
        if now < self._dead_until:
            return None
        denied = _DENIALS[self._choices.pick("denied", len(_DENIALS))]
        if denied is not None and _may_be_denied(request, denied):
            reach("network: a request is denied")
            return self._broker.refuse(request, denied) if denied in _OF_RECORDS else denied
        if isinstance(request, Replaced):
            told = self._broker.ask_replaced(request)
            return None if now < self._deaf_until else told
        answer = self._broker.ask(self._partly_refused(request))
        is_fence = isinstance(request, InitProducerId) and request.expected is None
        if is_fence and answer.code == codes.NONE and not awaited:
            self._broker.fenced_late()
        return None if now < self._deaf_until else answer

    def _partly_refused(self, request: Request) -> Request:
        """Of source offsets some may be refused; the others, and the progress, are committed all the same."""
        if not isinstance(request, CommitOffsets) or request.sources == NO_SOURCES:
            return request
        match self._choices.pick("partly", 2 + SOURCES):
            case 0:
                return request
            case 1:
                reach("network: the source's topic may not be read any more")
                return replace(request, refused=(TOPIC_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED))
            case 2:
                reach("network: the broker has not heard of the source's first partition")
                return replace(request, refused=(UNKNOWN_TOPIC_OR_PARTITION, None))
        reach("network: the broker has not heard of the source's second partition")
        return replace(request, refused=(None, UNKNOWN_TOPIC_OR_PARTITION))

    def _maybe_cut(self, now: int) -> None:
        match self._choices.pick("cut", 3):
            case 1:
                reach("network: cut")
                self._dead_until = now + CUT
            case 2:
                reach("network: cut in one direction")
                self._deaf_until = now + CUT


_OF_RECORDS = (NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE)
_DENIALS = (None, TOPIC_AUTHORIZATION_FAILED, TRANSACTION_ABORTABLE, *_OF_RECORDS)


def _may_be_denied(request: Request, denial: Answer) -> bool:
    if isinstance(request, Together):
        return denial not in _OF_RECORDS or all(isinstance(each, Produce) for each in request.requests)
    return isinstance(request, AddPartitions | CommitOffsets) and denial not in _OF_RECORDS


class _Exchange:
    """One request under way. The client hears of it once."""

    def __init__(self, network: Network, process: Process, request: Request) -> None:
        self._network = network
        self._process = process
        self._request = request
        self._waiting = True
        choices, scheduler = network._choices, network._scheduler  # noqa: SLF001  one concept, two classes
        # 0 usual, 1 lost, 2 the answer lost, 3 twice, from 4 on late
        fate = choices.pick("request", 4 + len(LATE))
        usual = USUAL_TICKS + choices.pick("pace", PACES)
        if fate == _USUAL:
            scheduler.after(usual, partial(self._arrive, answered=True))
        elif fate == _LOST:
            reach("network: a request is lost")
        elif fate == _ANSWER_LOST:
            reach("network: an answer is lost")
            scheduler.after(usual, partial(self._arrive, answered=False))
        elif fate == _TWICE:
            reach("network: a request comes twice")
            scheduler.after(usual, partial(self._arrive, answered=True))
            scheduler.after(LATE[choices.pick("request", len(LATE))], partial(self._arrive, answered=False))
        else:
            scheduler.after(LATE[fate - 4], partial(self._arrive, answered=True))
        scheduler.after(REQUEST_TIMEOUT, partial(self._hear, None))

    def _arrive(self, *, answered: bool) -> None:
        if not self._waiting:
            reach("network: a request arrives when nobody waits for it")
        answer = self._network.deliver(self._request, awaited=self._waiting)
        if answered and answer is not None:
            self._hear(answer)

    def _hear(self, answer: Answer | None) -> None:
        if self._waiting:
            self._waiting = False
            self._process.resume(answer)
