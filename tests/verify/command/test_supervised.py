"""The supervisor of users, through the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.verify.command.support import users_plan, verify


@pytest.mark.long
@pytest.mark.faults
def test_a_driver_that_is_killed_is_followed_by_the_supervisor_of_users_and_how_soon_is_measured(
    tmp_path: Path,
) -> None:
    """Nobody but that code: its standby takes over, and a reader of the output says when."""
    done = verify(
        tmp_path, users_plan(tmp_path, port=9), "--for", "5s", "--rate", "100", "--seed", "4", "--json", "--one-by-one",
        "--engine", "supervised", "--faults", "kill-driver-at-step", "--keep", "--goals",
    )  # fmt: skip
    document = json.loads(done.stdout)
    (run,) = document["runs"]
    is_late = any(goal["state"] == "missed" for goal in document["goals"])
    assert done.returncode == (3 if is_late else 0), done.stdout + done.stderr
    assert run["standing"] == "good"
    assert run["held_to_goals"]
    met = [each for each in run["encounters"] if each["met"]]
    assert met
    assert run["recoveries"]
    assert {each["lost"] for each in run["recoveries"]} == {"driver"}
    assert all(each["seconds"] > 0 for each in run["recoveries"])
    assert run["counts"]["drivers"] == 1 + len(run["encounters"])
    log = (tmp_path / "report" / "files" / "onceflow" / "logs" / "driver-1.log").read_text()
    killed = [int(pid) for pid in re.findall(r"DriverLost\(pid=(\d+), reason='was killed by SIGKILL'", log)]
    lives = [int(each["detail"].split()[1].rstrip(",")) for each in run["happenings"] if each["lane"] == "driver"]
    assert killed == lives[:-1], "each but the last one, as its own supervisor saw it"
    assert not (tmp_path / "report" / "files" / "onceflow" / "logs" / "driver-2.log").exists()
