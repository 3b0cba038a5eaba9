"""Whatever form a handler has: it has run when its event is booked, or the event is not booked. On a real store."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

import onceflow
from onceflow.errors import ConfigurationError, ReaderError, StoreUnavailable
from onceflow.reader.claims import Claims
from onceflow.reader.event import Event
from onceflow.reader.fence import Fence
from onceflow.reader.handling import Failed, Handler
from onceflow.reader.inbox import Inbox
from onceflow.reader.lane import Lane
from onceflow.reader.leases import Leases
from onceflow.reader.stores.blame import causes
from onceflow.reader.stores.interface import EventKey, Retention
from onceflow.reader.stores.sqlite import SqliteStore
from onceflow.reader.tally import Tally


def event(offset: int) -> Event:
    return Event(Message(topic="t", partition=0, offset=offset), EventKey(offset, "s", str(offset)))


class Bench:
    """One partition with three events, a store in a file and a ledger in it."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "store.db"
        with closing(sqlite3.connect(self.file)) as connection:
            connection.execute("CREATE TABLE ledger (event INTEGER)")
        self.store = SqliteStore(self.file)
        self.store.open("group", Retention())
        self.lane = Lane(self.store.take("t", [0], "tests")[0], None)
        self.lane.pending = [event(number) for number in range(3)]
        self.seen: list[int] = []

    def run(self, function: Callable[..., Any], *, batch: bool = False) -> None:
        """In the mode that the function asks for."""
        handler = Handler(function, batch=batch)
        leases = Leases(self.store, 60)
        mode: Inbox | Claims
        if handler.takes_transaction:
            mode = Inbox(self.store, handler, lambda step: None, Tally())
        else:
            mode = Claims(self.store, handler, lambda step: None, leases, Tally(), Fence(self.store))
        # The runner makes its loop when something is to run; the leases' end is that of their thread.
        with leases, closing(asyncio.Runner()) as runner:
            handler.run_coroutine = runner.run
            mode.handle(self.lane, list(self.lane.pending))

    def effects(self) -> list[int]:
        with closing(sqlite3.connect(self.file)) as connection:
            return [row[0] for row in connection.execute("SELECT event FROM ledger")]

    def position(self) -> int | None:
        """As the next owner finds it, with a connection of its own: a handler that was given up may still have this one."""
        with closing(SqliteStore(self.file)) as store:
            store.open("group", Retention())
            return store.take("t", [0], "next")[0].next_offset

    def insert(self, events: Event | list[Event], tx: Any) -> None:
        for each in events if isinstance(events, list) else [events]:
            tx.execute("INSERT INTO ledger VALUES (?)", (each.offset,))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """An ordinary decorator, which knows nothing of asyncio."""

    @functools.wraps(function)
    def timed(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return timed


def forms_in_the_inbox(bench: Bench) -> dict[str, Callable[..., Any]]:
    async def plain(events: Any, tx: Any) -> None:
        await asyncio.sleep(0)
        bench.insert(events, tx)

    class Called:
        async def __call__(self, events: Any, tx: Any) -> None:
            await plain(events, tx)

        async def method(self, events: Any, tx: Any) -> None:
            await plain(events, tx)

    async def of_three(_: str, events: Any, tx: Any) -> None:
        await plain(events, tx)

    async def forgets_to_await(events: Any, tx: Any) -> Any:
        return plain(events, tx)

    def runs_it_itself(events: Any, tx: Any) -> None:
        asyncio.run(plain(events, tx))

    def by_keyword(events: Any, *, tx: Any) -> None:
        bench.insert(events, tx)

    async def async_by_keyword(events: Any, *, tx: Any) -> None:
        await plain(events, tx)

    def gives_a_cursor(events: Any, tx: Any) -> sqlite3.Cursor:
        bench.insert(events, tx)
        cursor: sqlite3.Cursor = tx.execute("SELECT 1")
        return cursor

    return {
        "async def": plain,
        "decorated": decorated(plain),
        "decorated twice": decorated(decorated(plain)),
        "async object": Called(),
        "async method": Called().method,
        "partial": functools.partial(of_three, "bound"),
        "partial of an object": functools.partial(Called()),
        "lambda": lambda events, tx, /: plain(events, tx=tx),
        "coroutine of a coroutine": forgets_to_await,
        "wraps and runs": functools.wraps(plain)(runs_it_itself),
        "keyword": by_keyword,
        "async keyword": async_by_keyword,
        "decorated keyword": decorated(async_by_keyword),
        "cursor": gives_a_cursor,
    }


FORMS = sorted(forms_in_the_inbox(None))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [False, True], ids=["event", "batch"])
@pytest.mark.parametrize("form", FORMS)
def test_a_handler_of_any_form_has_run_for_what_is_booked(bench: Bench, form: str, batch: bool) -> None:
    bench.run(forms_in_the_inbox(bench)[form], batch=batch)
    assert bench.effects() == [0, 1, 2]
    assert bench.position() == 3


@pytest.mark.parametrize("form", ["decorated", "lambda", "future"])
def test_so_has_one_with_effects_elsewhere(bench: Bench, form: str) -> None:
    async def plain(each: Event) -> None:
        await asyncio.sleep(0)
        bench.seen.append(each.offset)

    async def later(each: Event) -> asyncio.Task[None]:
        return asyncio.create_task(plain(each))

    bench.run(
        {"decorated": decorated(plain), "lambda": lambda each: (bench.seen, plain(each))[1], "future": later}[form]
    )
    assert bench.seen == [0, 1, 2]
    assert bench.position() == 3


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "asyncio"])
@pytest.mark.parametrize(("count", "blamed"), [(3, None), (1, 0)])
def test_a_batch_that_its_handler_empties_fails_as_any_other(
    bench: Bench, is_async: bool, count: int, blamed: int | None
) -> None:
    """Of three the second fails, and the third is left: it is not that one's failure. One alone is known, though none is left."""
    del bench.lane.pending[count:]

    def work(events: list[Event], tx: Any) -> None:
        while events:
            if events.pop(0).offset == count // 2:
                raise ValueError("no account")

    async def later(events: list[Event], tx: Any) -> None:
        work(events, tx)

    with pytest.raises(Failed) as raised:
        bench.run(later if is_async else work, batch=True)
    assert (raised.value.event and raised.value.event.offset) == blamed
    assert len(bench.lane.pending) == count


def test_a_failure_behind_a_decorator_is_that_of_its_event(bench: Bench) -> None:
    @decorated
    async def book(each: Event, tx: Any) -> None:
        bench.insert(each, tx)
        if each.offset == 1:
            raise ValueError("poison")

    with pytest.raises(Failed, match="ValueError: poison") as raised:
        bench.run(book)
    assert raised.value.event is bench.lane.pending[1]
    assert (bench.effects(), bench.position()) == ([], None)


def a_generator(each: Any, tx: Any) -> Iterator[None]:
    yield tx.execute("INSERT INTO ledger VALUES (0)")


async def an_async_generator(each: Any, tx: Any) -> AsyncIterator[None]:
    yield tx.execute("INSERT INTO ledger VALUES (0)")


async def returns_a_generator(each: Any, tx: Any) -> Any:
    return a_generator(each, tx)


LAZY: dict[str, Callable[..., Any]] = {
    "generator": decorated(a_generator),
    "async generator": decorated(an_async_generator),
    "of a coroutine": returns_a_generator,
    "map": lambda each, tx: map(tx.execute, ["INSERT INTO ledger VALUES (0)"]),
    "future": lambda each, tx: concurrent.futures.Future[None](),
}


@pytest.mark.parametrize("form", LAZY)
def test_what_is_not_done_by_the_call_is_refused_and_not_booked(bench: Bench, form: str) -> None:
    with pytest.raises(ConfigurationError, match="its work is not done"):
        bench.run(LAZY[form])
    assert (bench.effects(), bench.position()) == ([], None)


@pytest.mark.filterwarnings("error")  # a coroutine that is dropped unseen
@pytest.mark.parametrize("form", ["async def", "lambda"])
def test_inside_of_a_running_loop_nothing_is_booked_and_no_event_fails(bench: Bench, form: str) -> None:
    function = forms_in_the_inbox(bench)[form]

    async def service() -> None:
        bench.run(function)

    with pytest.raises(ConfigurationError, match=r"await reader.run_async"):
        asyncio.run(service())
    assert (bench.effects(), bench.position()) == ([], None)


def test_a_handler_that_stops_the_loop_has_not_handled_its_event(bench: Bench) -> None:
    async def book(each: Event, tx: Any) -> None:
        bench.insert(each, tx)
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    with pytest.raises(ReaderError, match="none was booked"):
        bench.run(book)
    assert (bench.effects(), bench.position()) == ([], None)


class Iterates:
    def __call__(self, each: Event) -> Iterator[Event]:
        yield each


def needs_a_database(each: Event, *, db: object) -> None: ...


def three_with_a_keyword(each: Event, other: object, *, tx: object) -> None: ...


def only_a_keyword(*, tx: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (a_generator, "generator function"),
        (an_async_generator, "generator function"),
        (Iterates(), "generator function"),
        (functools.partial(Iterates()), "generator function"),
        (needs_a_database, "keyword argument 'db'"),
        (three_with_a_keyword, "it takes 3 parameters"),
        (only_a_keyword, "it takes 1 parameters"),
        (5, "parameters cannot be seen"),
    ],
)
def test_a_handler_that_cannot_be_served_is_refused_when_it_is_given(function: Any, what: str) -> None:
    reader = onceflow.Reader("t", group="g", store="memory:")
    with pytest.raises(ConfigurationError, match=what):
        reader.handler(function)


async def fails(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def fail_in_a_group(error: Exception) -> None:
    """While the group waits for its children: Python 3.11 leaves a cancellation counted on the task."""
    async with asyncio.TaskGroup() as group:
        group.create_task(fails(error))


def test_a_failure_in_a_task_group_is_that_of_its_event(bench: Bench) -> None:
    async def book(each: Event, tx: Any) -> None:
        bench.insert(each, tx)
        if each.offset == 1:
            await fail_in_a_group(ValueError("poison"))

    with pytest.raises(Failed, match=r"TaskGroup.*: ValueError: poison") as raised:
        bench.run(book)
    assert raised.value.event is bench.lane.pending[1]
    assert bench.position() is None


def test_a_group_that_was_caught_leaves_nothing_on_the_next_events(bench: Bench) -> None:
    """Each asks whether it is being cancelled, as a library for timeouts does."""

    async def book(each: Event, tx: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        try:
            await fail_in_a_group(ValueError("caught"))
        except* ValueError:
            bench.insert(each, tx)

    bench.run(book)
    assert bench.effects() == [0, 1, 2]


def test_a_later_failure_behind_a_group_that_was_caught_is_that_of_its_event(bench: Bench) -> None:
    async def book(each: Event, tx: Any) -> None:
        try:
            await fail_in_a_group(ValueError("caught"))
        except* ValueError:
            pass
        raise KeyError("another")

    with pytest.raises(Failed, match="another"):
        bench.run(book)


@pytest.mark.parametrize("in_a_group", [False, True])
def test_a_full_disk_is_waited_for_also_where_a_task_group_tells_of_it(bench: Bench, in_a_group: bool) -> None:
    """A real one: SQLite may not have another page."""

    async def fill(each: Event, tx: Any) -> None:
        tx.execute("PRAGMA max_page_count = 1")
        tx.execute("INSERT INTO ledger VALUES (zeroblob(1000000))")

    async def book(each: Event, tx: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fill(each, tx))

    with pytest.raises(StoreUnavailable, match="full"):
        bench.run(book if in_a_group else fill)


@pytest.mark.parametrize("others", [[], [ValueError("poison")]], ids=["alone", "beside another failure"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_store_error_anywhere_in_a_group_is_the_store_s(
    bench: Bench, is_async: bool, others: list[Exception]
) -> None:
    """Whether the event is guilty of the other one is seen when the store is back."""
    origin = ValueError("what the driver said")
    away = StoreUnavailable("nobody answers")
    away.__cause__ = origin

    def plain(each: Event, tx: Any) -> None:
        raise ExceptionGroup("several", [*others, ExceptionGroup("inner", [*others, away])])

    async def book(each: Event, tx: Any) -> None:
        plain(each, tx)

    with pytest.raises(StoreUnavailable) as raised:
        bench.run(book if is_async else plain)
    assert raised.value is away
    assert away.__cause__ is origin


def test_a_group_of_other_failures_is_the_event_s(bench: Bench) -> None:
    def book(each: Event, tx: Any) -> None:
        raise ExceptionGroup("several", [KeyError("no such column"), ValueError("poison")])

    with pytest.raises(Failed, match=r"no such column.*poison"):
        bench.run(book)


def test_all_that_is_in_a_group_is_looked_at() -> None:
    first, second = ValueError(), KeyError()
    second.__cause__ = first
    group = ExceptionGroup("several", [TypeError(), ExceptionGroup("inner", [second])])
    assert first in causes(group)


class Silent(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_exception_that_cannot_be_told_is_a_failure_as_any_other(bench: Bench) -> None:
    def book(each: Event, tx: Any) -> None:
        raise Silent

    with pytest.raises(Failed, match=r"Silent: .*ZeroDivisionError") as raised:
        bench.run(book)
    assert "Silent" in str(raised.value.cause)
