"""A store object is used by one run at a time, whichever reader's that is.

What it survives::

    two readers of different groups are given one store object, and run in two threads
    the second one's ``open`` would make it a store of its group for both: the first would book its events there, and each event
    would be handled by one group instead of by both. Its connection's transaction would be that of both as well
"""

from __future__ import annotations

import threading

from onceflow.reader.stores.interface import Store


class OneAtATime:
    """As a lock, of all that are made of the same store object."""

    _turn = threading.Lock()
    _in_use: set[int] = set()  # noqa: RUF012 (of all of them)

    def __init__(self, store: Store) -> None:
        self._store = store  # kept alive: its identity is its own as long as it lives

    def acquire(self) -> bool:
        """Whether nobody else uses it."""
        with self._turn:
            if self.locked():
                return False
            self._in_use.add(id(self._store))
            return True

    def release(self) -> None:
        self._in_use.discard(id(self._store))

    def locked(self) -> bool:
        return id(self._store) in self._in_use
