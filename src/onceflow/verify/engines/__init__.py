"""Engines that a verification can run: each is a command line that speaks JSON lines, see ``lines`` and docs/verify.md."""

from onceflow.verify.engines.catalog import (
    ABORTING,
    ABORTING_EXECUTORS,
    ENGINES,
    EXECUTORS,
    SUPERVISED,
    Engine,
    engine_of,
)

__all__ = ["ABORTING", "ABORTING_EXECUTORS", "ENGINES", "EXECUTORS", "SUPERVISED", "Engine", "engine_of"]
