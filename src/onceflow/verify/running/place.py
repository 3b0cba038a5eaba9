"""Where a run's files are, and that nothing of it stays unless it is asked for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one run."""

    directory: Path
    logs: Path

    @property
    def kafka(self) -> Path:
        return self.directory / "kafka"

    @property
    def spark(self) -> Path:
        return self.directory / "spark"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def purged(self) -> Path:
        return self.directory / "purged"

    @property
    def plan(self) -> Path:
        return self.directory / "pipeline.toml"

    @property
    def oracle(self) -> Path:
        return self.directory / "oracle"

    @property
    def effects(self) -> Path:
        return self.directory / "effects"

    def scratch(self, number: int) -> Path:
        """Short, because sockets are made in it."""
        return self.directory / f"d{number}"

    def log(self, number: int) -> Path:
        return self.logs / f"driver-{number}.log"


@contextmanager
def place(directory: Path | None, name: str) -> Iterator[Place]:
    """The directories of the run ``name``: below ``directory``, where they stay, or temporary ones."""
    home = Path(tempfile.mkdtemp(prefix="onceflow-v-")) if directory is None else directory.absolute() / name
    made = Place(home, home / "logs")
    try:
        made.logs.mkdir(parents=True)
        made.oracle.mkdir()
        yield made
    finally:
        if directory is None:
            _remove(home)


def _remove(directory: Path) -> None:
    """All of it, whatever interrupts that.

    ::

        run      has ended, and what it leaves is removed, which takes seconds
        Ctrl-C   the handler raises SystemExit out of that: no error of the system, to be ignored as those are
    """
    try:
        shutil.rmtree(directory, ignore_errors=True)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
