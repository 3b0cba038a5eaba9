"""Epochs rise by time, not by one.

What that survives::

    reader A takes the partition: epoch 7; the store fails over to a replica, or is restored, and knows only epoch 6
    B takes the partition; counted by one it would get 7 as well, and A, waking up, would not be fenced

So the next epoch is the time in milliseconds, or one more than the last where that is greater.
"""

from __future__ import annotations

import time


def next_epoch(last: int) -> int:
    """An epoch above ``last``, and above every epoch that was given before this moment."""
    return max(last + 1, time.time_ns() // 1_000_000)
