"""``run_async`` on a loop that goes away: nobody has handled the events, so none of them fails by that, and none is buried."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.reader.support import TIMEOUT_S, Place, eventually, insert

from onceflow.errors import ConfigurationError, HandlerFailed, ReaderError
from onceflow.reader import on_loop
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader
from onceflow.stop_flag import StopFlag

EVENTS = [str(number) for number in range(20)]


@pytest.fixture(autouse=True)
def _leftovers_are_gone_with_the_test() -> Iterator[None]:
    """A task whose loop is gone is told of when the collector finds it: with a traceback, for which Python 3.11 parses source.

    Found while another module's source is parsed, that parser, which is not reentrant, ends with a SystemError.
    """
    yield
    gc.collect()


def check_nothing_was_booked(place: Place) -> None:
    """No effect and no letter, and all of it is there for the next one."""
    assert place.effects() == []
    assert f"{place.topic}.dead-letter" not in place.admin.list_topics(timeout=TIMEOUT_S).topics
    place.book_all()
    assert place.effects() == EVENTS


def close(loop: asyncio.AbstractEventLoop) -> None:
    loop.close()


def leave(loop: asyncio.AbstractEventLoop) -> None:
    """It is neither closed nor does it run."""


async def others_end() -> None:
    """What the loop was given before has taken all its steps; none of it waits for anything."""
    for _ in range(100):
        if len(asyncio.all_tasks()) == 1:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"still there: {asyncio.all_tasks()}")


def heard_by_a_handler(reader: Reader, *, inbox: bool) -> list[Event]:
    """Gives the reader a handler; what that is called for."""
    called: list[Event] = []

    async def in_the_inbox(event: Event, tx: Any) -> None:
        called.append(event)

    async def elsewhere(event: Event) -> None:
        called.append(event)

    reader.handler(in_the_inbox if inbox else elsewhere)
    return called


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("inbox", [True, False], ids=["inbox", "claims"])
@pytest.mark.parametrize("end", [close, leave])
def test_a_loop_that_is_closed_or_left_while_a_handler_waits_on_it(
    place: Place,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[asyncio.AbstractEventLoop], None],
    inbox: bool,
) -> None:
    monkeypatch.setattr(on_loop, "_PAUSE_S", 0.2)
    place.send(EVENTS)
    reader = place.reader(retries=1)
    loop = asyncio.new_event_loop()

    async def work(event: Event) -> None:
        loop.stop()
        await asyncio.Event().wait()

    async def in_the_inbox(event: Event, tx: Any) -> None:
        insert(tx, event)
        await work(event)

    reader.handler(in_the_inbox if inbox else work)
    task = loop.create_task(reader.run_async(until_end=True))
    loop.run_forever()
    end(loop)
    eventually(reader._running.locked, (False).__eq__, "the reader has ended")
    assert any("event loop of the handlers" in record.getMessage() for record in caplog.records)
    if end is leave:
        with pytest.raises(ReaderError, match="none was booked"):
            loop.run_until_complete(task)
        loop.close()
    check_nothing_was_booked(place)


@pytest.mark.parametrize("inbox", [True, False], ids=["inbox", "claims"])
def test_a_loop_that_was_closed_before_a_handler_is_to_run(place: Place, inbox: bool) -> None:
    place.send(EVENTS)
    reader = place.reader(retries=1)
    called = heard_by_a_handler(reader, inbox=inbox)
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(ReaderError, match="none was booked"):
        reader._run(on_loop.OnLoop(loop), StopFlag(), until_end=True, progress=False)
    assert called == []
    check_nothing_was_booked(place)


@pytest.mark.parametrize("inbox", [True, False], ids=["inbox", "claims"])
def test_a_handler_that_had_not_begun_on_a_loop_that_was_left_does_not_begin_when_the_loop_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, inbox: bool
) -> None:
    """The reader has said by then that nothing was booked: an effect would be one that nobody knows of."""
    monkeypatch.setattr(on_loop, "_PAUSE_S", 0.2)
    place.send(EVENTS)
    reader = place.reader(retries=1)
    called = heard_by_a_handler(reader, inbox=inbox)
    loop = asyncio.new_event_loop()
    with pytest.raises(ReaderError, match="none was booked"):
        reader._run(on_loop.OnLoop(loop), StopFlag(), until_end=True, progress=False)
    loop.run_until_complete(others_end())
    loop.close()
    assert called == []
    check_nothing_was_booked(place)


def test_somebody_cancels_all_tasks_of_the_loop(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """What ``asyncio.run`` does at its end; without retries the event would be buried at once."""
    place.send(EVENTS)
    reader = place.reader(retries=0)

    @reader.handler
    async def book(event: Event, tx: Any) -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.Event().wait()

    with pytest.raises(ReaderError, match="none was booked"):
        asyncio.run(reader.run_async(until_end=True))
    assert "event loop of the handlers" in caplog.text
    check_nothing_was_booked(place)


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_whoever_cancels_all_tasks_still_waits_for_the_thread_and_hears_of_its_error(place: Place, fails: bool) -> None:
    """As a service does when it is shut down: the thread has the store and the partitions until it has ended."""
    place.send(["1"])
    reader = place.reader(retries=0, dead_letters=None)
    go_on = threading.Event()

    async def service() -> None:
        loop, working = asyncio.get_running_loop(), asyncio.Event()

        @reader.handler
        def book(event: Event, tx: Any) -> None:
            loop.call_soon_threadsafe(working.set)
            assert go_on.wait(TIMEOUT_S)
            if fails:
                raise ValueError("no account")
            insert(tx, event)

        task = asyncio.create_task(reader.run_async())
        await asyncio.wait_for(working.wait(), TIMEOUT_S)
        for _ in range(3):
            for each in asyncio.all_tasks() - {asyncio.current_task()}:
                each.cancel()
            await asyncio.wait([task], timeout=0)
            await asyncio.sleep(0)
        was_done = task.done()
        go_on.set()
        with pytest.raises(HandlerFailed if fails else asyncio.CancelledError):
            await task
        assert not was_done
        assert not reader._running.locked()

    asyncio.run(service())
    assert place.effects() == ([] if fails else ["1"])


def test_a_reader_takes_none_of_the_loop_s_own_threads(place: Place) -> None:
    """A handler that waits for one of them (a host's name, ``asyncio.to_thread``) would wait for the reader, and that for it."""
    place.send(["1"])
    reader = place.reader(retries=0, dead_letters=None)
    taken: list[object] = []

    class Threads(ThreadPoolExecutor):
        def submit(self, *given: Any, **named: Any) -> Future[Any]:
            taken.append(given)
            return super().submit(*given, **named)

    @reader.handler
    async def book(event: Event, tx: Any) -> None:
        assert not taken
        await asyncio.to_thread(insert, tx, event)

    async def service() -> bool:
        asyncio.get_running_loop().set_default_executor(Threads(1))
        return await reader.run_async(until_end=True)

    assert asyncio.run(service())
    assert place.effects() == ["1"]


def test_what_a_handler_itself_cancels_or_limits_is_its_failure(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.send(EVENTS)
    reader: Reader = place.reader(retries=0, dead_letters="{topic}.limited")

    @reader.handler
    async def book(event: Event, tx: Any) -> None:
        insert(tx, event)
        if event.value == b"3":
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        if event.value == b"5":
            waits = asyncio.ensure_future(asyncio.Event().wait())
            waits.cancel()
            await waits

    caplog.set_level(logging.ERROR)
    asyncio.run(reader.run_async(until_end=True))
    assert place.effects() == [text for text in EVENTS if text not in ("3", "5")]
    assert caplog.text.count("went to the dead letters") == 2
    assert "was cancelled" in caplog.text


# --------------------------------------------------------------------------------------- ``run`` inside of a running loop


@pytest.mark.parametrize("inbox", [True, False], ids=["inbox", "claims"])
def test_run_inside_of_a_running_loop_says_what_is_meant(place: Place, inbox: bool) -> None:
    """And nothing else: what the runner makes of the loop around it does not hide it."""
    place.send(EVENTS)
    reader = place.reader(retries=0)
    called = heard_by_a_handler(reader, inbox=inbox)

    async def service() -> None:
        reader.run(until_end=True)

    with pytest.raises(ConfigurationError, match=r"await reader.run_async"):
        asyncio.run(service())
    assert called == []
    check_nothing_was_booked(place)


def test_a_plain_handler_needs_no_loop_so_it_runs_inside_of_one_too(place: Place) -> None:
    """As in a notebook, which always has one."""
    place.send(EVENTS)

    async def notebook() -> None:
        place.book_all()

    asyncio.run(notebook())
    assert place.effects() == EVENTS
