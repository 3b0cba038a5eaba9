"""What Python's garbage collector does to batches: much work for nothing, so it is asked to come less often."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS_PER_EVENT = 20  # message, headers, identity, and as many again of the store's


_lock = threading.Lock()
_wishes: list[int] = []  # of the readers that run, for the threshold is the whole process's
_found: list[int] = []  # before the first of them began


@contextmanager
def seldom(batch_size: int) -> Iterator[None]:
    """The collector comes when more objects were made than a batch has, instead of many times within each.

    Reference counting frees a batch when it is handled; there are no cycles in it. With the collector's own threshold it took
    40 % of a reader's time. A threshold that is higher already, or zero (off), stays. The last reader to end puts it back.
    """
    wish = batch_size * _OBJECTS_PER_EVENT
    with _lock:
        if not _wishes:
            _found[:] = gc.get_threshold()
        _wishes.append(wish)
        _set()
    try:
        yield
    finally:
        with _lock:
            _wishes.remove(wish)
            _set()


def _set() -> None:
    first, *rest = _found
    gc.set_threshold(max([first, *_wishes]) if first else 0, *rest)
