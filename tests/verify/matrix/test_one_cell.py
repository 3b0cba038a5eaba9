"""One cell of the matrix as a user runs it, with fewer messages: three brokers, a Spark cluster, real kills, and the judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.long]

MESSAGES = 2000
TIMEOUT_S = 1100
PARTITIONS = {"matrix-input-0", "matrix-input-1", "matrix-output-0", "matrix-output-1", "matrix-output-2"}
"""Of which every broker has a replica."""
COMMITTED_ANYWAY = Path(__file__).with_name("committed_anyway.py")


def verify(tmp_path: Path, cell: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The cell, with its files kept in ``tmp_path / "report"``. When it is over nothing of it runs or lies about."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    given = ("--matrix", "--messages", str(MESSAGES), "--cells", cell, "--seed", "5", "--json", "--keep")
    done = subprocess.run(
        [sys.executable, "-m", "onceflow.cli", "verify", *given, *arguments, "--out", str(tmp_path / "report")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "TMPDIR": str(temporary)},
        check=False,
    )
    assert not list(temporary.iterdir())
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if str(temporary) in " ".join(each.info["cmdline"] or ())
    ]
    return done


@pytest.mark.parametrize(
    ("engine", "title"), [("onceflow", "onceflow"), ("executors", "onceflow, executors write")], ids=str
)
def test_hard_bounces_of_the_client_lose_and_repeat_nothing(tmp_path: Path, engine: str, title: str) -> None:
    done = verify(tmp_path, "hard-clients-2", "--engine", engine)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["spark_workers"], document["engines"]) == (2, [title])
    (cell,) = document["cells"]
    assert (cell["standing"], cell["messages"], cell["copies"]) == ("good", MESSAGES, MESSAGES)
    assert (cell["bounces"], cell["duplicates"], cell["missing"], cell["out_of_order"]) == (3, 0, 0, 0)
    assert cell["messages_aborted"] > 0
    assert cell["attempts_aborted"] > 0
    assert cell["transactions"] >= 20
    report = tmp_path / "report"
    (run,) = json.loads((report / "hard-clients-2" / "report.json").read_text())["runs"]
    assert run["counts"]["drivers"] == 4
    assert run["engine"] == title
    assert run["versions"]["Spark"].endswith(", 2 workers")
    assert "hard-clients-2/report.html" in (report / "matrix.html").read_text()
    kept = report / "files" / "hard-clients-2" / "onceflow"
    for node in (1, 2, 3):
        assert {path.name for path in (kept / "kafka" / f"node-{node}" / "data").glob("matrix-*")} == PARTITIONS
    for worker in (0, 1):
        assert list((kept / "spark" / f"worker-{worker}").glob("app-*/*/stderr")), "each worker has had executors"


def test_what_is_aborted_on_purpose_counts_as_repeated_where_it_is_committed(tmp_path: Path) -> None:
    """Else nobody would know whether an aborted attempt of the executors had written anything, or had come at all."""
    done = verify(tmp_path, "clean-clients-1", "--engine", f"{sys.executable} {COMMITTED_ANYWAY}")
    assert done.returncode == 1, done.stdout + done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    assert cell["standing"] == "violated"
    assert cell["duplicates"] > 0
    assert cell["anomalies"] == {"duplicated": cell["copies"] - MESSAGES}
    assert cell["missing"] == 0
    assert (tmp_path / "report" / "clean-clients-1" / "history.parquet").exists()
