"""A thread that looks at something again and again until it is stopped, whatever becomes of the brokers meanwhile."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

import pyarrow as pa

from onceflow.errors import KafkaError, VerificationError
from onceflow.verify.recording.tables import Chunks

_END_S = 60.0


class Sampler(ABC):
    """Fills ``samples``, a table of ``schema``, in a thread of its own. ``what`` names it where it did not end."""

    def __init__(self, schema: pa.Schema, what: str, every_s: float) -> None:
        self.samples = Chunks(schema)
        self.every_s = every_s
        self.ending = threading.Event()
        self._what = what
        self._rest_s = _END_S
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"verify: {what}", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> pa.Table:
        """Ends the thread; gives the samples. Raises, once, what ended the thread before: nothing was seen from then on.

        A thread that does not end is waited for once, and told of each time.
        """
        self.ending.set()
        self._thread.join(self._rest_s)
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._thread.is_alive():
            self._rest_s = 0.0
            raise VerificationError(f"the watcher of {self._what} did not end within {_END_S:.0f} s")
        return self.table()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def table(self) -> pa.Table:
        """The samples so far."""
        return self.samples.table()

    def _run(self) -> None:
        try:
            while not self.ending.is_set():
                try:
                    self.watch()
                except KafkaError:  # a fault: a gap in the samples, and a new connection
                    self.ending.wait(self.every_s)
        except Exception as error:  # noqa: BLE001  raised by stop, on a thread that somebody looks at
            self._error = error

    @abstractmethod
    def watch(self) -> None:
        """Connects, and looks every ``every_s`` until ``ending``. Raises KafkaError; it is called again then."""
