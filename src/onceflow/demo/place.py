"""Where the demo lives on disk, and that nothing of it stays unless it is asked for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onceflow.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Place:
    """The demo's directories. ``scratch`` belongs to the workers, and holds nothing that is missed."""

    directory: Path
    scratch: Path

    @property
    def broker(self) -> Path:
        return self.directory / "broker"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def checkpoint(self, name: str) -> Path:
        return self.directory / "checkpoints" / name


@contextmanager
def place(directory: Path | None, *, keep: bool) -> Iterator[Place]:
    """A directory for the demo, removed at the end unless ``keep``.

    Raises ConfigurationError if ``directory`` holds something already or cannot be made.
    """
    scratch = Path(tempfile.mkdtemp(prefix="onceflow-"))
    try:
        made = Place(_home(directory), scratch)
        try:
            made.logs.mkdir()
            yield made
        finally:
            if not keep:
                shutil.rmtree(made.directory, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _home(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="onceflow-demo-"))
    home = directory.absolute()
    try:
        home.mkdir(parents=True, exist_ok=True)
        occupied = any(home.iterdir())
    except OSError as error:
        raise ConfigurationError.of("the options", [f"--directory {directory}: {error.strerror}"]) from None
    if occupied:
        raise ConfigurationError.of("the options", [f"--directory {directory}: it is not empty"])
    return home
