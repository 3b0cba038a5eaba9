"""Events wait for whoever takes them, and nobody waits for that."""

from __future__ import annotations

import errno
import threading

import pytest

from onceflow.pipeline import teller
from onceflow.pipeline.events import BatchCommitted, Event, Note, Stopping
from onceflow.pipeline.teller import Teller

PATIENCE_S = 60.0


def batch(number: int) -> BatchCommitted:
    return BatchCommitted(number, True, 1, 1, 0, 1, 1)


def test_who_cannot_tell_the_last_event_does_not_end_as_if_all_were_told() -> None:
    """There is nobody any more who looks whether it has failed."""

    def tell(_: Event) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    failures: list[BaseException] = []
    with pytest.raises(OSError, match="No space left") as raised, Teller(tell, failures.append) as one:
        one.tell(Stopping("test"))
    assert failures == [raised.value]


def test_of_batches_that_nobody_takes_no_more_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teller, "MOST", 3)
    takes, reads_on = threading.Event(), threading.Event()
    told: list[Event] = []
    failures: list[BaseException] = []

    def tell(event: Event) -> None:
        told.append(event)
        takes.set()
        assert reads_on.wait(PATIENCE_S)

    with Teller(tell, failures.append) as one:
        one.tell(batch(0))
        assert takes.wait(PATIENCE_S)
        for number in range(1, 11):
            one.tell(batch(number))
        one.tell(Stopping("test"))
        reads_on.set()
    assert failures == []
    left_out = Note("7 batches were committed and are not told of: nobody took the output")
    assert told == [*(batch(number) for number in range(4)), left_out, Stopping("test")]
