"""Workers started ahead: while one runs, the next brings up its Spark, as a fast failover would have it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from onceflow.demo.process import Worker


class Standby:
    """Gives ``count`` workers one after the other, the next one always in the making. At the end it kills all."""

    def __init__(self, count: int, scratch: Path, logs: Path) -> None:
        self._left = count
        self._scratch = scratch
        self._logs = logs
        self._workers: list[Worker] = []
        self._next = self._started()

    def take(self) -> Worker:
        """The worker that is ready or will be soon."""
        worker = self._next
        assert worker is not None, "more workers are asked for than the plan needs"
        self._next = self._started()
        return worker

    def _started(self) -> Worker | None:
        if not self._left:
            return None
        self._left -= 1
        number = len(self._workers) + 1
        worker = Worker(self._scratch / f"w{number}", self._logs / f"worker-{number}.log")
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """Kill what still runs."""
        for worker in self._workers:
            worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
