"""What a part of the program leaves to the garbage collector, whose warning would come in the middle of something else."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_open() -> Iterator[list[str]]:
    """Holds, behind the block, what was left open in it: the texts of the ``ResourceWarning`` of each."""
    texts: list[str] = []
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield texts
        gc.collect()
    texts.extend(str(each.message) for each in caught if issubclass(each.category, ResourceWarning))
