"""A join and windows behind a watermark, through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.verify.command.support import verify

JOINED = Path(__file__).parents[1] / "plans" / "joined.toml"


@pytest.mark.long
@pytest.mark.faults
def test_a_users_join_and_windows_behind_a_watermark_hold(tmp_path: Path) -> None:
    """State that drivers are killed over, and give up in the middle of a run."""
    done = verify(
        tmp_path, str(JOINED), "--for", "15s", "--rate", "100", "--seed", "4", "--json", "--keep",
        "--faults", "kill-driver-at-step,kill-jvm",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["counts"]["drivers"] > 1
    assert [each for each in run["encounters"] if each["met"]]
    history = pq.read_table(tmp_path / "report" / "history.parquet")
    written = set(pc.unique(history["key"].filter(pc.equal(history["kind"], "poll"))).to_pylist())
    for topic in ("orders", "payments", "paid-orders", "payments-by-window"):
        assert any(key.startswith(f"{topic}-") for key in written), f"nothing was read of {topic}"
