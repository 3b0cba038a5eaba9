"""Talks: what is asked of a cluster, step by step, how often and until when. No I/O, no clock.

A talk is a generator. It yields what is to be done next (a ``Turn``); whoever holds it does that, and sends in the answer or
throws in the error. ``performing.py`` does so on a real cluster, ``verify/simulator`` in simulated time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from onceflow.errors import BrokerUnreachable
from onceflow.kafka.client import MAX_RETRY_PAUSE_S, RETRY_PAUSE_S, Again

_GROWTH = 1.5

T = TypeVar("T")

# --------------------------------------------------------------------------------------------------------------- turns


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """Ask the coordinator of ``kind``, once: the answer, or Again when the connection failed (and it is looked up anew then)."""

    kind: int
    request: Any


@dataclass(frozen=True, slots=True)
class ToLeader:
    """Ask a node, once: the answer, or Again when the connection failed."""

    node: int
    request: Any


@dataclass(frozen=True, slots=True)
class Leaders:
    """Say who leads the partitions of some topics: name to ``Topic``. ``refresh``: not from memory."""

    topics: frozenset[str]
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    """Look the coordinator of ``kind`` up again before the next question to it."""

    kind: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Do nothing for a while."""

    pause: float


Turn = ToCoordinator | ToLeader | Leaders | Forget | Rest

Talk = Generator[Any, Any, T]


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast, and for how long, things are repeated; all in the unit of ``now``."""

    now: Callable[[], float]
    patience: float
    first_pause: float
    longest_pause: float

    @classmethod
    def real(cls, patience_s: float) -> Self:
        """On a real cluster, in seconds."""
        return cls(time.monotonic, patience_s, RETRY_PAUSE_S, MAX_RETRY_PAUSE_S)

    def longer(self, pause: float) -> float:
        """The pause after this one."""
        return min(pause * _GROWTH, self.longest_pause)


def repeated(once: Callable[[], Talk[T]], what: str, pace: Pace) -> Talk[T]:
    """Until ``once`` does not raise Again. Raises BrokerUnreachable, or what Again says, at the deadline.

    The deadline is looked at after an answer and not after a pause, so what is asked at all is asked once more at the deadline.
    """
    deadline, pause = pace.now() + pace.patience, pace.first_pause
    while True:
        try:
            return (yield from once())
        except Again as again:
            rest = deadline - pace.now()
            if rest <= 0:
                raise again.final or BrokerUnreachable(
                    f"{what}: no usable answer in time, last: {again}",
                    action="check that the brokers run and are reachable; then start again",
                ) from again
        yield Rest(min(pause, rest))
        pause = pace.longer(pause)
