"""Which Kafka a node runs, and in what environment: the locked jars in our own, unless a test wants other ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onceflow import jars


@dataclass(frozen=True, slots=True)
class Installation:
    """A Kafka to be run.

    ``lock``: the file that names its jars, as ``jars.lock.json`` does. ``environment``: variables of its process, over our own.
    """

    lock: Path = jars.LOCK_FILE
    environment: Mapping[str, str] = field(default_factory=dict)

    def class_path(self) -> list[Path]:
        """Its jars, verified, those that are missing fetched first. Raises SetupError."""
        return jars.class_path("broker", self.lock)

    def whole_environment(self) -> dict[str, str]:
        """All variables of its process."""
        return {**os.environ, **self.environment}


LOCKED = Installation()
