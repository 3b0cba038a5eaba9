"""The pipeline that is verified when none is given."""

from __future__ import annotations

from pathlib import Path


def builtin_plan() -> Path:
    """The plan's file: two input topics, a copy of each record with its id and origin, and totals per key."""
    return Path(__file__).with_name("data") / "pipeline.toml"
