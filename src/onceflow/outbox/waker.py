"""Ends a wait from a signal handler or from another thread."""

from __future__ import annotations

import os
import select
from typing import Self


class Waker:
    """A pipe that a wait listens to beside what it waits for. Woken once, every later wait returns at once.

    Not an Event: a signal handler runs in the thread that waits, between any two of its instructions, and could find the
    Event's lock held by that very thread.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.woken = False

    def wake(self) -> None:
        """Safe in a signal handler."""
        if not self.woken:
            self.woken = True
            os.write(self._write, b"x")

    def wait(self, timeout_s: float, *files: int) -> None:
        """Returns when woken, when one of the files can be read, or after ``timeout_s``."""
        select.select([self._read, *files], [], [], timeout_s)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
