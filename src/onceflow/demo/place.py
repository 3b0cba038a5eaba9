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
    """A directory for the demo, removed at the end unless ``keep``. Raises ConfigurationError if something is in it."""
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigurationError.of(
            "the options", [f"--directory {directory}: it exists and is not an empty directory"]
        )
    home = Path(tempfile.mkdtemp(prefix="onceflow-demo-")) if directory is None else directory.absolute()
    scratch = Path(tempfile.mkdtemp(prefix="onceflow-"))
    try:
        home.mkdir(parents=True, exist_ok=True)
        made = Place(home, scratch)
        made.logs.mkdir()
        yield made
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if not keep:
            shutil.rmtree(home, ignore_errors=True)
