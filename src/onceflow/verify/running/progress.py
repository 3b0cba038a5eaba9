"""How a verification tells where it is: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bars

from onceflow.verify.running.schedule import Gauge

Counts = Callable[[], str]
_EVERY_S = 0.5
_TELL_EVERY_S = 60.0


class Progress:
    """Plain lines, each with the seconds since the beginning."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def line(self, text: str) -> None:
        """Something happened. May be called from any thread."""
        seconds = time.monotonic() - self._began
        self._console.print(f"{seconds:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    def begin(self, name: str, gauge: Gauge, counts: Counts) -> None:
        """Work begins; ``gauge`` says how far it is, ``counts`` what was done in it."""

    def end(self) -> None:
        """That work is over."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


class LiveProgress(Progress):
    """The same lines, and below them a bar for what is left and what was done."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} {task.fields[unit]}, {task.fields[counts]}"),
        )
        self._bars = Bars(*columns, console=console, transient=True)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, name: str, gauge: Gauge, counts: Counts) -> None:
        task = self._bars.add_task(name, total=gauge.total, unit=gauge.unit, counts="")
        self._ending.clear()

        def draw() -> None:
            while not self._ending.wait(_EVERY_S):
                self._bars.update(task, completed=min(gauge.done(), gauge.total), counts=counts())
            self._bars.remove_task(task)

        self._bars.start()
        self._thread = threading.Thread(target=draw, name="onceflow-progress", daemon=True)
        self._thread.start()

    def end(self) -> None:
        if self._thread is not None:
            self._ending.set()
            self._thread.join()
            self._thread = None
            self._bars.stop()


def seldom(progress: Progress, text: str) -> Callable[[int, int], None]:
    """Is told how far something is (done, total), and says so once a minute; ``text`` has a place for each of the two."""
    told_at = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TELL_EVERY_S:
            told_at = time.monotonic()
            progress.line("  " + text.format(f"{done:,}", f"{total:,}"))

    return tell


def progress_on(console: Console) -> Progress:
    """The way that fits where ``console`` writes to."""
    return LiveProgress(console) if console.is_terminal else Progress(console)
