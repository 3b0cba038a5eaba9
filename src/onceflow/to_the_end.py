"""Work of a thread that asyncio waits for to its end, however often it is told not to.

What it survives::

    a service that ends cancels all tasks that there are, again and again, or ``asyncio.run`` does at its end
    a task that only waited for the thread (``asyncio.to_thread``) would be among them, and tell its caller that all is over,
    while the thread still commits, or has the store and the partitions

So the work is the future of ``loop.run_in_executor``, which is no task, and who is cancelled goes on waiting for it.
"""

from __future__ import annotations

import asyncio
from typing import Any


async def ended(work: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Waits until ``work`` is done. Gives the newest cancellation that came meanwhile, for the caller to raise."""
    cancelled = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
