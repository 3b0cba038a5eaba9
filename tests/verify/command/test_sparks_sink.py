"""Spark's own sink, through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.verify.command.support import verify

ONE_KILL = 18  # the seed whose first fault comes after a second, between Spark's write and its commit log, and no other for 6 s
MANY = "500"  # records a second: of some hundred in a batch not all are in transactions that are aborted, and a repetition shows


@pytest.mark.long
@pytest.mark.faults
def test_sparks_own_sink_repeats_the_batch_that_a_kill_came_behind_and_is_reported_and_not_judged(
    tmp_path: Path,
) -> None:
    """The same workload and checker, and nobody's code but Spark's: what is written, and not yet noted, it writes again."""
    done = verify(
        tmp_path, "--for", "5s", "--rate", MANY, "--seed", str(ONE_KILL), "--faults", "kill-driver-at-step",
        "--engine", "spark", "--json",
    )  # fmt: skip
    assert done.returncode == 2, "a control alone proves nothing of ours\n" + done.stdout + done.stderr
    document = json.loads(done.stdout)
    (run,) = document["runs"]
    assert (run["standing"], run["judged"], run["failures"]) == ("control", False, [])
    assert [(each["fault"], each["step"], each["met"]) for each in run["encounters"]] == [
        ("kill-driver-at-step", "WRITTEN", True)
    ]
    assert {check["anomaly"] for check in run["checks"] if check["found"]} == {"duplicated", "effect_repeated"}
    assert "duplicated" in document["controls"]
