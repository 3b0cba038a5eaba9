"""Arguments of a verification that the command itself refuses, before it looks at the others."""

from __future__ import annotations

from typer.testing import CliRunner

from onceflow.cli.main import app


def test_a_seed_below_nothing_is_refused() -> None:
    """It would be another seed than it looks: the faults' own random numbers do not know of the sign."""
    done = CliRunner().invoke(app, ["verify", "--seed", "-1", "--faults", "no such fault"])
    assert done.exit_code == 2
    assert "'--seed'" in done.output
    assert "no such fault" not in done.output
