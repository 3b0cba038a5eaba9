"""What the kit is given, and the small tools that its checks share."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Protocol, Self

from onceflow.errors import StoreError
from onceflow.reader.stores.interface import EventKey, Ownership, Retention, Standing, Store

PATIENCE_S = 60.0
LEASE_S = 3600.0
TOPIC, OTHER_TOPIC = "orders", "payments"
LARGE_OFFSET = 2**48 - 1  # a reader books at such a one which topic it reads
NEW, DUPLICATE, HELD = Standing.NEW, Standing.DUPLICATE, Standing.HELD

_PAUSE_S = 0.01
_run = secrets.token_hex(4)  # storage that outlives a test run holds the groups of earlier ones
_numbers = itertools.count()


class Effects(Protocol):
    """Effects in the store itself, to be seen from outside of the unit that writes them."""

    def write(self, handle: Any, text: str) -> None:
        """Adds one line through a unit's handle."""

    def read(self) -> Sequence[str]:
        """All committed lines, each as often as it was added, read over another connection."""


@dataclass(frozen=True, slots=True)
class StoreSubject:
    """A store under test: ``make`` gives another object on the same storage, not opened; ``effects`` if it is transactional."""

    make: Callable[[], Store]
    effects: Effects | None = None


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """One check: call it with a subject. It raises AssertionError, or the store's own error."""

    function: Callable[[Lab], None]

    def __str__(self) -> str:
        return f"{self.function.__module__.rpartition('.')[2]}-{self.function.__name__}"

    def __call__(self, subject: StoreSubject) -> None:
        with Lab(subject) as lab:
            self.function(lab)


class Lab:
    """Opens stores for one check, each check in groups of its own, and closes them."""

    def __init__(self, subject: StoreSubject) -> None:
        self._subject = subject
        self._stack = ExitStack()
        self.group = self.new_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def new_group(self) -> str:
        """A name that no other check uses."""
        return f"conformance-{_run}-{next(_numbers)}"

    def store(self, retention: Retention | None = None, group: str | None = None) -> Store:
        """A store on the subject's storage, open."""
        store = self._stack.enter_context(closing(self._subject.make()))
        store.open(group or self.group, retention or Retention())
        return store

    def second(self, first: Store) -> Store:
        """What another reader uses: an object of its own where the store is shared, else the same."""
        return self.store() if first.capabilities.shared else first

    def effects(self) -> Effects:
        """The subject's effects, which a transactional store must have."""
        assert self._subject.effects is not None, "a transactional store needs StoreSubject(effects=…)"
        return self._subject.effects

    def written(self) -> list[str]:
        """The lines of this check, sorted."""
        return sorted(line for line in self.effects().read() if line.startswith(self.group))

    def modes(self, retention: Retention | None = None) -> Iterator[tuple[Store, Handle]]:
        """A store in a new group for each way to book events as handled that it has."""
        first = self.store(retention, self.new_group())
        yield first, claim_and_confirm
        if first.capabilities.transactional:
            yield self.store(retention, self.new_group()), admit


Handle = Callable[[Store, Ownership, Sequence[EventKey]], list[Standing]]


def admit(store: Store, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
    """Books events in a unit of their own."""
    with store.unit() as unit:
        return unit.admit(ownership, keys)


def claim_and_confirm(store: Store, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
    """Books events by claim and confirm."""
    standings = store.claim(ownership, keys, LEASE_S)
    store.confirm(ownership, keys)
    return standings


def take(store: Store, partition: int = 0, owner: str = "reader", topic: str = TOPIC) -> Ownership:
    """Takes one partition."""
    (ownership,) = store.take(topic, [partition], owner)
    return ownership


def keys(*offsets: int, source: str = "shop", prefix: str = "event") -> list[EventKey]:
    """Events whose id is made of their offset."""
    return [EventKey(offset, source, f"{prefix}-{offset}") for offset in offsets]


def numbered(*pairs: tuple[int, int], source: str = "shop") -> list[EventKey]:
    """Events with a sequence, from (offset, sequence)."""
    return [EventKey(offset, source, str(sequence), sequence) for offset, sequence in pairs]


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Asks again until it holds."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(_PAUSE_S)


def refused(call: Callable[[], object], *errors: type[StoreError]) -> StoreError:
    """The error that the call must raise."""
    try:
        call()
    except errors as error:
        return error
    names = " or ".join(error.__name__ for error in errors)
    raise AssertionError(f"{names} was not raised")
