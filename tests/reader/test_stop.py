"""Which run ``stop()`` ends, and that a store object is used by one run at a time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from onceflow.errors import ConfigurationError, TopicMissing
from onceflow.reader.reader import Reader
from onceflow.reader.stores.memory import MemoryStore
from onceflow.stop_flag import StopFlag


class Runs(Reader):
    """A reader whose runs need no cluster: each notes whether it is to end at once, and then does as the test says."""

    def __init__(self, **options: Any) -> None:
        super().__init__("t", **{"group": "g", "store": "memory:", **options})
        self.handler(lambda event: None)
        self.ended_at_once: list[bool] = []
        self.meanwhile: Any = lambda: None
        self.stop_of_the_run = StopFlag()

    def _run_alone(self, *given: Any, **_: Any) -> bool:
        self.stop_of_the_run = given[2]
        self.ended_at_once.append(self.stop_of_the_run.is_set())
        self.meanwhile()
        return False


def test_a_stop_that_comes_behind_the_end_of_a_run_is_not_for_the_next_one() -> None:
    """``run(until_end=True)`` would return at once, with nothing handled."""
    reader = Runs()
    for _ in range(3):
        reader.run()
        reader.stop()
    assert reader.ended_at_once == [False] * 3


def test_a_stop_ends_the_run_that_is_going_on_and_no_other() -> None:
    reader = Runs()
    reader.meanwhile = reader.stop
    reader.run()
    assert reader.stop_of_the_run.is_set()
    reader.meanwhile = lambda: None
    reader.run()
    assert reader.ended_at_once == [False, False]


def test_a_stop_before_the_first_run_ends_that_one() -> None:
    """A service that is shut down while it starts: its thread has not got to ``run`` yet."""
    reader = Runs()
    reader.stop()
    reader.run()
    reader.run()
    assert reader.ended_at_once == [True, False]


def test_a_second_run_that_is_refused_takes_nothing_from_the_first() -> None:
    reader = Runs()

    def meanwhile() -> None:
        with pytest.raises(ConfigurationError, match="runs already"):
            reader.run()
        reader.stop()

    reader.meanwhile = meanwhile
    reader.run()
    assert reader.stop_of_the_run.is_set()
    assert reader.ended_at_once == [False]


def test_a_task_that_is_cancelled_when_its_run_has_ended_does_not_end_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has not heard yet that the run has ended."""
    reader = Runs()
    ended: list[Callable[[], object]] = []

    def at_once(_: object, run: Callable[..., None], *arguments: Any) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        work = loop.create_future()

        def end() -> None:
            run(*arguments)
            ended.pop()()
            work.set_result(None)

        loop.call_soon(end)
        return work

    async def service() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", at_once)
        task = asyncio.ensure_future(reader.run_async())
        ended.append(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        ended.append(list)
        await reader.run_async()

    asyncio.run(service())
    assert reader.ended_at_once == [False, False]


def test_the_signals_of_a_host_that_is_written_in_c_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot put such a handler back."""
    installed: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda number, _: installed.append(number))
    reader = Runs()
    reader.run()
    assert (reader.ended_at_once, installed) == ([False], [])


def test_two_readers_with_one_store_object_do_not_run_at_once() -> None:
    """The second group would make it its own store, and each event would be handled by one of the groups alone."""
    store = MemoryStore()
    first, second = Runs(store=store), Runs(store=store, group="another")
    other = Runs(store=MemoryStore())

    def meanwhile() -> None:
        with pytest.raises(ConfigurationError, match="the same store object"):
            second.run()
        other.run()

    first.meanwhile = meanwhile
    first.run()
    second.run()
    assert [len(each.ended_at_once) for each in (first, second, other)] == [1, 1, 1]


def test_a_run_that_failed_leaves_the_store_object_to_others() -> None:
    store = MemoryStore()
    first, second = Runs(store=store), Runs(store=store, group="another")

    def fail() -> None:
        raise TopicMissing("tests")

    first.meanwhile = fail
    with pytest.raises(TopicMissing):
        first.run()
    second.run()
    assert second.ended_at_once == [False]
