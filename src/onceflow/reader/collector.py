"""What Python's garbage collector does to batches: much work for nothing, so it is asked to come less often."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS_PER_EVENT = 20  # message, headers, identity, and as many again of the store's


@contextmanager
def seldom(batch_size: int) -> Iterator[None]:
    """The collector comes when more objects were made than a batch has, instead of many times within each.

    Reference counting frees a batch when it is handled; there are no cycles in it. With the collector's own threshold it took
    40 % of a reader's time. A threshold that is higher already, or zero (off), stays.
    """
    before = gc.get_threshold()
    enough = batch_size * _OBJECTS_PER_EVENT
    if 0 < before[0] < enough:
        gc.set_threshold(enough, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
