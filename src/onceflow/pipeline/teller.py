"""Tells events on a thread of its own, so that whoever takes none of them holds nothing up but the telling.

::

    the terminal is stopped (Ctrl-S), ``| less`` waits at its first page, or whatever ships the log hangs: standard output is full
    the supervisor waits to write a line; the driver is killed, and nobody looks; SIGTERM comes, and nobody hears it
    it has a warm standby all the time

At the end all is told, however long that takes: all processes have ended by then, and a second signal ends that as well.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from onceflow.pipeline.events import BatchCommitted, Event, Listener, Note

MOST = 100_000  # that wait; of batches alone there may be millions, if nobody ever reads on


class Teller:
    """Passes events on to a listener; what that raises goes to ``failed``, and nothing more is told. A context, to its end.

    ``tell`` is for one thread.
    """

    def __init__(self, to: Listener, failed: Callable[[BaseException], None]) -> None:
        self._to = to
        self._failed = failed
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._left_out = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="onceflow-tell", daemon=True)

    def tell(self, event: Event) -> None:
        """Does not wait."""
        if isinstance(event, BatchCommitted) and self._waiting.qsize() >= MOST:
            self._left_out += 1
            return
        if self._left_out:
            self._waiting.put(
                Note(f"{self._left_out} batches were committed and are not told of: nobody took the output")
            )
            self._left_out = 0
        self._waiting.put(event)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._waiting.put(None)
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while (event := self._waiting.get()) is not None:
                self._to(event)
        except BaseException as error:  # noqa: BLE001  a pipe whose other end is closed, a full disk
            self._error = error
            self._failed(error)
