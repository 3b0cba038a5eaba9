"""A thread that looks at something again and again until it is stopped, whatever becomes of the brokers meanwhile."""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from onceflow.errors import KafkaError
from onceflow.verify.recording.beside import Beside
from onceflow.verify.recording.tables import Chunks

_END_S = 60.0


class Sampler(Beside):
    """Fills ``samples``, a table of ``schema``, in a thread of its own. ``what`` it watches names it where it did not end."""

    def __init__(self, schema: pa.Schema, what: str, every_s: float) -> None:
        super().__init__(f"verify: {what}", f"the watcher of {what}", _END_S)
        self.samples = Chunks(schema)
        self.every_s = every_s

    def table(self) -> pa.Table:
        """The samples so far."""
        return self.samples.table()

    def _work(self) -> None:
        while not self.ending.is_set():
            try:
                self.watch()
            except KafkaError:  # a fault: a gap in the samples, and a new connection
                self.ending.wait(self.every_s)

    @abstractmethod
    def watch(self) -> None:
        """Connects, and looks every ``every_s`` until ``ending``. Raises KafkaError; it is called again then."""
