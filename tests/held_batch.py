"""A micro-batch of a real query that is held open: what one does with it runs where Spark calls ``foreachBatch``, time and again.

A query for each test would take a second or two; what a sink does with a batch takes a tenth of that.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")
RunQuery = Callable[[Callable[["DataFrame", int], None]], object]
"""Runs a query with this ``foreachBatch`` function to its end."""

_PATIENCE_S = 300.0


class HeldBatch:
    """Call it with what is to be done with the batch ``number``; it gives the result, or raises. Other batches are passed over.

    ``checkpoint`` is that of its query.
    """

    def __init__(self, number: int, checkpoint: Path) -> None:
        self.number = number
        self.checkpoint = checkpoint
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[DataFrame], Any]] | None] = queue.SimpleQueue()
        self._began: Future[None] = Future()

    def __call__(self, action: Callable[[DataFrame], T]) -> T:
        done: Future[T] = Future()
        self._jobs.put((done, action))
        return done.result(_PATIENCE_S)

    def run(self, run_query: RunQuery) -> None:
        """The query, on a thread of its own; a batch that never comes is told to whoever waits for it."""
        try:
            run_query(self._write)
        except BaseException as error:
            if self._began.done():
                raise
            self._began.set_exception(error)
        else:
            if not self._began.done():
                self._began.set_exception(AssertionError(f"the query has no batch {self.number}"))

    def await_begin(self) -> None:
        """Until Spark has given it."""
        self._began.result(_PATIENCE_S)

    def let_go(self) -> None:
        """Lets the query go on."""
        self._jobs.put(None)

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id != self.number:
            return
        self._began.set_result(None)
        while (job := self._jobs.get()) is not None:
            done, action = job
            try:
                done.set_result(action(frame))
            except BaseException as error:  # noqa: BLE001  the test's to judge
                done.set_exception(error)


@contextmanager
def held_batch(run_query: RunQuery, checkpoint: Path, number: int = 0) -> Iterator[HeldBatch]:
    """The batch ``number`` of the query that ``run_query`` runs with this checkpoint, until the end of the block."""
    held = HeldBatch(number, checkpoint)
    query = threading.Thread(target=held.run, args=(run_query,), name=f"query held at batch {number}")
    query.start()
    try:
        held.await_begin()
        yield held
    finally:
        held.let_go()
        query.join()
