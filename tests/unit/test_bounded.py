"""A call that is waited for no longer than a limit."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

import pytest

from onceflow.bounded import returned_within

PATIENCE_S = 60.0


def nobody(text: str) -> None:
    raise AssertionError(text)


def fails() -> NoReturn:
    raise KeyError("broken")


def test_what_returns_in_time_has_returned_and_what_raises_raises() -> None:
    threads: list[threading.Thread] = []
    assert returned_within(PATIENCE_S, lambda: threads.append(threading.current_thread()), "a-call", nobody)
    (thread,) = threads
    assert (thread.name, thread.daemon) == ("a-call", True)
    with pytest.raises(KeyError, match="broken"):
        returned_within(PATIENCE_S, fails, "a-call", nobody)


@pytest.mark.parametrize(("end", "said"), [(lambda: None, "a-call has ended after all"), (fails, "KeyError('broken')")])
def test_what_is_late_is_abandoned_and_says_when_it_ends(end: Any, said: str) -> None:
    go, told, texts = threading.Event(), threading.Event(), []

    def late(text: str) -> None:
        texts.append(text)
        told.set()

    def call() -> None:
        assert go.wait(PATIENCE_S)
        end()

    assert not returned_within(0.0, call, "a-call", late)
    assert not told.is_set()
    go.set()
    assert told.wait(PATIENCE_S)
    assert said in texts[0]


def test_where_no_thread_can_be_started_it_is_called_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 refuses to, while the interpreter ends."""

    def refuse(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    called: list[int] = []
    assert returned_within(PATIENCE_S, lambda: called.append(1), "a-call", nobody)
    assert called == [1]
    with pytest.raises(KeyError):
        returned_within(PATIENCE_S, fails, "a-call", nobody)
