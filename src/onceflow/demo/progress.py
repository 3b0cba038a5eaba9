"""How the demo tells where it is: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from onceflow.demo.faults import Fault, Target


class Progress:
    """Tells the story in plain lines, each with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def step(self, text: str) -> None:
        """The next step of the story begins."""
        self._line(text)

    def begin(self, name: str, batches: int) -> None:
        """A pipeline begins; it will have about so many batches."""

    def batches(self, done: int) -> None:
        """So many batches are done."""

    def kill(self, fault: Fault, hidden: int) -> None:
        """Something is killed now, while ``hidden`` records of its batch are on the broker, uncommitted."""
        seen = f" ({hidden} records on the broker, no reader sees them)" if hidden else ""
        self._line(f"  {kill_text(fault)}{seen}")

    def end(self, batches: int) -> None:
        """The pipeline has processed everything."""
        self._line(f"  all is processed, in {batches} micro-batches")

    def _line(self, text: str) -> None:
        self._console.print(f"{self.seconds:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


class LiveProgress(Progress):
    """The same lines, and below them a bar for the pipeline that runs."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} batches, {task.fields[kills]} kills"),
            TimeElapsedColumn(),
        )
        self._bars = Bars(*columns, console=console, transient=True)
        self._task = TaskID(0)
        self._kills = 0

    def begin(self, name: str, batches: int) -> None:
        self._kills = 0
        self._task = self._bars.add_task(name, total=batches, kills=0)

    def batches(self, done: int) -> None:
        self._bars.update(self._task, completed=done)

    def kill(self, fault: Fault, hidden: int) -> None:
        super().kill(fault, hidden)
        self._kills += 1
        self._bars.update(self._task, kills=self._kills)

    def end(self, batches: int) -> None:
        self._bars.remove_task(self._task)
        super().end(batches)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()


def progress_on(console: Console) -> Progress:
    """The way that fits where ``console`` writes to."""
    return LiveProgress(console) if console.is_terminal else Progress(console)


def kill_text(fault: Fault) -> str:
    """One kill in words."""
    target = "driver" if fault.target is Target.DRIVER else "broker"
    batch = f", batch {fault.hold.batch}" if fault.hold.batch >= 0 else ""
    return f"SIGKILL to the {target}: {fault.text}{batch}"
