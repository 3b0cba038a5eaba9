"""What Python's garbage collector does to events by the thousand: much work for nothing, so it is asked to come less often."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # the collector itself may end one, in the middle of this
_wishes: list[int] = []  # of those that ask for it now, for the threshold is the whole process's
_found: list[int] = []  # before the first of them began


@contextmanager
def seldom(objects: int) -> Iterator[None]:
    """The collector comes when so many more ``objects`` were made than freed, instead of after some hundreds.

    Reference counting frees an event when it is done with; there are no cycles in it. With the collector's own threshold it
    took 40 % of a reader's time, and more of a writer's with many events on their way. A threshold that is higher already,
    or zero (off), stays. The last one to end puts it back.
    """
    with _lock:
        if not _wishes:
            _found[:] = gc.get_threshold()
        _wishes.append(objects)
        _set()
    try:
        yield
    finally:
        with _lock:
            _wishes.remove(objects)
            _set()


def _set() -> None:
    first, *rest = _found
    gc.set_threshold(max([first, *_wishes]) if first else 0, *rest)
