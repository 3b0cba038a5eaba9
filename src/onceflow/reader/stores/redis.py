"""The store in Redis: effects in the same Redis are exactly-once, because one script checks and writes all of it.

A unit reads what it needs, and collects what it would write; leaving it runs one script, in which nothing else can come between::

    A admits offsets 10 to 19 and is stopped; B takes the partition and handles them; A goes on and leaves its unit
    the script compares the position that A has read (epoch and offset) with what is there: refused, nothing written

    owners of two partitions admit the same id at once
    the script finds the id there although it was not when the second one read: refused as a conflict, and its events come again

What Redis cannot do is roll back: a command of a handler that Redis itself refuses (a list command on a string) leaves the others
of the unit done and its events booked; the unit's exit says so with EffectRefused. A Redis that loses its newest writes loses
effects, ids and positions alike, so they agree; whether it may is its configuration's affair (``appendonly``, ``appendfsync``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from redis.commands.core import CoreCommands

from onceflow.errors import StoreUnavailable
from onceflow.reader.stores import rules
from onceflow.reader.stores.interface import Capabilities, EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.redis_session import Session, check_url
from onceflow.reader.stores.redis_tables import Conflict, RedisTables
from onceflow.reader.stores.tables import storable

_ATTEMPTS = 20
_MOST_WORDS = 5000  # Lua unpacks them to its stack
Result = TypeVar("Result")


class RedisStore:
    """Keeps one group in the Redis (6.2 or later) at ``url``; not in a cluster.

    ``capabilities`` are known after ``open``: durable is what the server's configuration says. Raises ConfigurationError.
    """

    def __init__(self, url: str) -> None:
        check_url(url)
        self._session = Session(url)
        self._group = ""
        self._retention = Retention()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(transactional=True, durable=self._session.is_durable, shared=True)

    def open(self, group: str, retention: Retention) -> None:
        self._group = group
        self._retention = retention
        self._session.open(group)

    def close(self) -> None:
        self._session.close()

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:
        return [self._session.take(topic, partition, owner) for partition in partitions]

    @contextmanager
    def unit(self) -> Iterator[RedisUnit]:
        unit = RedisUnit(RedisTables(self._session))
        yield unit
        unit.commit()

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        return self._atomically(lambda tables: rules.claim(tables, ownership, storable(keys), lease_s))

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        self._atomically(lambda tables: rules.confirm(tables, ownership, storable(keys)))

    def forget_expired(self) -> int:
        return self._session.forget_expired(self._retention)

    def _atomically(self, call: Callable[[RedisTables], Result]) -> Result:
        """Reads, decides, and writes if nothing changed meanwhile; otherwise again."""
        for _ in range(_ATTEMPTS):
            tables = RedisTables(self._session)
            try:
                result = call(tables)
                tables.commit()
            except Conflict:
                continue
            return result
        raise StoreUnavailable(f"other readers changed the same claims {_ATTEMPTS} times in a row; try again")


class NoAnswer:
    """What a command gives that runs only when the unit commits. Whoever asks it anything is told so: it would be true always.

    Only ``is None`` cannot be told, and ``repr`` is for those who look for the mistake.
    """

    def __repr__(self) -> str:
        return "<no answer yet: the command runs when its events are booked>"

    def __str__(self) -> str:
        raise _no_answer()

    def __format__(self, _: str) -> str:
        raise _no_answer()

    def __bool__(self) -> bool:
        raise _no_answer()

    def __iter__(self) -> Iterator[Any]:
        raise _no_answer()

    def __eq__(self, other: object) -> bool:
        raise _no_answer()

    __hash__ = None  # type: ignore[assignment]


def _no_answer() -> TypeError:
    return TypeError(
        "a Redis command of a handler runs when its events are booked, so there is no answer to look at: read with a client of "
        "your own"
    )


class RedisCommands(CoreCommands):
    """Redis commands that run when the unit commits: every method of redis-py that writes. What they answer is not to be had.

    What only reads is refused: ``if tx.get(key) is None`` would never be so, and the effect be left out.
    """

    _event_dispatcher: Any = None  # what redis-py asks of a synchronous client
    _is_async_client: Literal[False] = False

    def __init__(self, encoded: Callable[[Sequence[Any]], Sequence[bytes]]) -> None:
        self._encoded = encoded
        self.buffered: list[Sequence[bytes]] = []

    def execute_command(self, *arguments: Any, **_: Any) -> NoAnswer:
        """Adds one command, given as Redis writes it: ``execute_command("INCRBY", "balance", 5)``.

        Raises at once what can be told already, redis-py's DataError for a value that cannot be sent, and ValueError for a
        command that no script can run, or that only reads: it is the failure of the event in hand, and nothing is done.
        """
        if len(arguments) > _MOST_WORDS:
            raise ValueError(f"a command of {len(arguments)} words: a script can run up to {_MOST_WORDS}, so split it")
        self.buffered.append(self._encoded(arguments))
        return NoAnswer()


class RedisUnit:
    """One transaction. ``handle`` collects the commands of the handlers."""

    def __init__(self, tables: RedisTables) -> None:
        self._tables = tables
        self._commands = RedisCommands(tables.encoded)

    @property
    def handle(self) -> RedisCommands:
        return self._commands

    def admit(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
        return rules.admit(self._tables, ownership, storable(keys))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        before = len(self._commands.buffered)
        try:
            yield
        except BaseException:
            del self._commands.buffered[before:]
            raise

    def commit(self) -> None:
        """Runs everything in one script."""
        try:
            self._tables.commit(self._commands.buffered)
        except Conflict as error:
            raise StoreUnavailable("another reader booked one of the same events meanwhile; they come again") from error
