"""Rules of a bad network, as data: which requests or answers they meet, and what becomes of those.

Rules are added and removed while connections run; the first rule that meets a frame decides.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Protocol

from onceflow.errors import ConfigurationError
from onceflow.verify.wire import apis


class Direction(StrEnum):
    """From the client to the broker, or back."""

    REQUEST = "request"
    ANSWER = "answer"


class Do(StrEnum):
    """What becomes of a frame that a rule meets."""

    DELAY = "delay"  # it, and what follows on its connection, comes ``delay_s`` later
    HOLD = "hold"  # it comes when the rule is released or removed; a client whose request is held sees its connection break
    DROP = "drop"  # it and all that follows in that direction of the connection vanish, and the connection stays open
    DUPLICATE = "duplicate"  # a request is sent twice, and the client gets the first answer
    CUT = "cut"  # the connection ends before it: a request that did not arrive, an answer that is lost
    RESET = "reset"  # the same, torn (RST) instead of closed
    FAIL = "fail"  # the client is told ``error``: of a request that did not arrive, or of one that was done (an answer)


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a frame: the API key, and the client id that the client gave itself."""

    api: int
    version: int
    correlation: int
    client_id: str


@dataclass(frozen=True, slots=True)
class Rule:
    """Meets frames of ``apis`` (None: all) in one direction: of those, the ones numbered ``first`` to ``first + count - 1``
    (counted over all connections, None: all that follow), each with ``probability``.

    ``nodes`` (None: all) are the brokers' ids, ``client`` a regular expression that is looked for in the client id. ``error`` is
    a code of Kafka's protocol, for FAIL, which only EndTxn can. ``then`` is called before the frame is treated, on the
    connection's thread. Raises ConfigurationError for what makes no sense.
    """

    do: Do
    apis: frozenset[int] | None = None
    direction: Direction = Direction.REQUEST
    first: int = 0
    count: int | None = None
    probability: float = 1.0
    delay_s: float = 0.0
    nodes: frozenset[int] | None = None
    client: str = ""
    error: int = 0
    then: Callable[[], object] = field(default=lambda: None, compare=False)

    def __post_init__(self) -> None:
        mistakes = []
        if self.do is Do.DUPLICATE and self.direction is Direction.ANSWER:
            mistakes.append("an answer cannot be duplicated")
        if (self.do is Do.DELAY) != (self.delay_s > 0):
            mistakes.append(f"delay_s = {self.delay_s:g} does not go with {self.do}")
        if (self.do is Do.FAIL) != (self.error != 0):
            mistakes.append(f"error = {self.error} does not go with {self.do}")
        if self.do is Do.FAIL and self.apis != frozenset({apis.END_TXN}):
            mistakes.append("of END_TXN alone the wire knows how an answer looks that fails")
        if not 0 < self.probability <= 1:
            mistakes.append(f"probability = {self.probability:g} is not above 0 and at most 1")
        try:
            re.compile(self.client)
        except re.error as error:
            mistakes.append(f"client = {self.client!r} is no regular expression: {error}")
        if mistakes:
            raise ConfigurationError.of("a rule of the wire", mistakes)

    def fits(self, head: Head, direction: Direction, node: int) -> bool:
        """Whether it is meant for frames of this kind."""
        return (
            direction is self.direction
            and (self.apis is None or head.api in self.apis)
            and (self.nodes is None or node in self.nodes)
            and re.search(self.client, head.client_id) is not None
        )


class Severed(Protocol):
    """A connection that a rule has silenced."""

    def close(self) -> None: ...


class ActiveRule:
    """A rule in force: how often it met a frame (``applied``), of how many that fit (``seen``)."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.seen = 0
        self.applied = 0
        self._released = threading.Event()
        self._answered = threading.Event()
        self._discarded = False
        self._changed = threading.Condition()
        self._silenced: list[Severed] = []
        self._ended = False

    def release(self) -> None:
        """What is held goes on, and what would be held from now on too."""
        self._released.set()

    def discard(self) -> None:
        """What is held, or would be from now on, does not arrive at all: its connection ends without it."""
        self._discarded = True
        self._released.set()

    @property
    def is_discarded(self) -> bool:
        return self._discarded

    @property
    def is_released(self) -> bool:
        return self._released.is_set()

    def wait_released(self, timeout_s: float) -> bool:
        """Wait until it is released; False if it was not in time."""
        return self._released.wait(timeout_s)

    def was_answered(self) -> None:
        """The broker has answered a request that was held."""
        self._answered.set()

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    def wait_applied(self, times: int = 1, timeout_s: float = 60.0) -> bool:
        """Wait until it met so many frames; False if it did not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.applied >= times, timeout_s)

    def silences(self, link: Severed) -> None:
        """Remember a connection that is silent because of it, to be ended with it; at once where it has ended meanwhile."""
        with self._changed:
            if not self._ended:
                self._silenced.append(link)
                return
        link.close()

    def meets(self, random: Random) -> bool:
        """Count a frame that fits; whether the rule takes it."""
        with self._changed:
            number, self.seen = self.seen, self.seen + 1
            last = self.rule.count is not None and number >= self.rule.first + self.rule.count
            if number < self.rule.first or last or random.random() >= self.rule.probability:
                return False
            self.applied += 1
            self._changed.notify_all()
            return True

    def ends(self) -> None:
        """Let go of what it holds, and end the connections that it silenced: they would stay silent for ever."""
        self.release()
        with self._changed:
            self._ended = True
            silenced, self._silenced = self._silenced, []
        for link in silenced:
            link.close()


class Rules:
    """The rules in force for one or several wires, and the seeded random that they draw from. Thread-safe."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)  # noqa: S311  repeatable on purpose
        self._lock = threading.Lock()
        self._active: tuple[ActiveRule, ...] = ()

    def seed(self, number: int) -> None:
        """Draw anew, from this seed."""
        with self._lock:
            self._random.seed(number)

    def add(self, rule: Rule) -> ActiveRule:
        """From now on."""
        active = ActiveRule(rule)
        with self._lock:
            self._active = (*self._active, active)
        return active

    def remove(self, active: ActiveRule) -> None:
        """It meets nothing more, what it holds goes on, and connections that it silenced end."""
        with self._lock:
            self._active = tuple(each for each in self._active if each is not active)
        active.ends()

    def clear(self) -> None:
        """Remove all."""
        for active in self._active:
            self.remove(active)

    @contextmanager
    def during(self, *rules: Rule) -> Iterator[tuple[ActiveRule, ...]]:
        """The rules are in force within the ``with`` block."""
        active = tuple(self.add(rule) for rule in rules)
        try:
            yield active
        finally:
            for each in active:
                self.remove(each)

    def verdict(self, head: Head, direction: Direction, node: int) -> ActiveRule | None:
        """The first rule that takes this frame."""
        for active in self._active:
            if active.rule.fits(head, direction, node):
                with self._lock:
                    taken = active.meets(self._random)
                if taken:
                    return active
        return None
