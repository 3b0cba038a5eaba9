"""What ``onceflow status`` looks at."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceflow.cli.main import app
from onceflow.pipeline.local_checkpoint import local_path


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [("/data/a", "/data/a"), ("/data/a:b %20", "/data/a:b %20"), ("file:///data/a", "/data/a"), ("file:/data/a", "/data/a"),
     ("file://host/data", None), ("s3a://bucket/a", None), ("hdfs:/a", None)],
)  # fmt: skip
def test_a_checkpoint_on_this_machine_is_looked_at_however_it_is_written(checkpoint: str, expected: str | None) -> None:
    """A file: URI was not, and nobody was warned of it."""
    assert local_path(checkpoint) == (expected and Path(expected))


def test_a_plan_and_another_cluster_are_a_contradiction() -> None:
    """The plan was passed over."""
    done = CliRunner().invoke(app, ["status", "--plan", "a.toml", "--bootstrap-servers", "b:9092"])
    assert done.exit_code != 0
    assert "--plan names a cluster" in done.output
