"""A thread beside a run: what ends it is raised where it is stopped, and never in the place of what goes wrong in the run itself.

::

    writer   ends of an IndexError at its first record, for there is no value that fits the schema
    driver   ends with Spark's own words for that schema, which say what is wrong with it: the run breaks off with these
    run      stops the writer on its way out, which raises the IndexError: that is all that anybody gets to see
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import pyarrow as pa

from onceflow.errors import VerificationError

_LEAVES_S = 5.0


class Beside(ABC):
    """Works in a thread of its own from ``start`` until ``stop``, which waits for ``end_s``, and fills a table.

    ``what`` names it where it does not end. Where its block is left with an exception, or behind ``stop``, it raises nothing, and
    is not waited for as long: brokers may be away for which it waits, and whoever has pressed Ctrl-C waits for us. The thread is
    a daemon.
    """

    def __init__(self, name: str, what: str, end_s: float) -> None:
        self.ending = threading.Event()
        self._what = what
        self._rest_s = end_s
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> pa.Table:
        """Ends the thread; gives the table. Raises, once, what ended the thread before: nothing was done from then on.

        A thread that does not end is waited for once, and told of each time.
        """
        self.ending.set()
        rest_s, self._rest_s = self._rest_s, 0.0
        return self._ended(rest_s)

    def _ended(self, patience_s: float) -> pa.Table:
        self._thread.join(patience_s)
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._thread.is_alive():
            raise VerificationError(f"{self._what} did not end in time")
        return self.table()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and not self.ending.is_set():
            self.stop()
        else:  # whoever has stopped it has heard of it
            self._leave()

    def _leave(self) -> None:
        """Ends the thread as far as it ends soon, whatever becomes of it."""
        self.ending.set()
        self._thread.join(_LEAVES_S)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  raised by stop, on a thread that somebody looks at
            self._error = error

    @abstractmethod
    def table(self) -> pa.Table:
        """What it has so far."""

    @abstractmethod
    def _work(self) -> None:
        """All that it does until ``ending``."""
