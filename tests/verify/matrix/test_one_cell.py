"""One cell of the matrix as a user runs it, with fewer messages: three brokers, real Spark, real kills, and the judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

MESSAGES = 2000
TIMEOUT_S = 800
PARTITIONS = {"matrix-input-0", "matrix-input-1", "matrix-output-0", "matrix-output-1", "matrix-output-2"}
"""Of which every broker has a replica."""


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.long
def test_hard_bounces_of_the_client_lose_and_repeat_nothing(tmp_path: Path) -> None:
    report, temporary = tmp_path / "report", tmp_path / "t"
    temporary.mkdir()
    given = ("--matrix", "--messages", str(MESSAGES), "--cells", "hard-clients-2", "--seed", "5", "--json", "--keep")
    done = subprocess.run(
        [sys.executable, "-m", "onceflow.cli", "verify", *given, "--out", str(report)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "TMPDIR": str(temporary)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    assert (cell["standing"], cell["messages"], cell["copies"]) == ("good", MESSAGES, MESSAGES)
    assert (cell["bounces"], cell["duplicates"], cell["missing"], cell["out_of_order"]) == (3, 0, 0, 0)
    assert cell["messages_aborted"] > 0
    assert cell["attempts_aborted"] > 0
    assert cell["transactions"] >= 20
    (run,) = json.loads((report / "hard-clients-2" / "report.json").read_text())["runs"]
    assert run["counts"]["drivers"] == 4
    assert "hard-clients-2/report.html" in (report / "matrix.html").read_text()
    kept = report / "files" / "hard-clients-2" / "onceflow" / "kafka"
    for node in (1, 2, 3):
        assert {path.name for path in (kept / f"node-{node}" / "data").glob("matrix-*")} == PARTITIONS
    assert not list(temporary.iterdir())
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if str(temporary) in " ".join(each.info["cmdline"] or ())
    ]
