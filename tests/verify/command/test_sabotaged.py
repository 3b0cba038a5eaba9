"""An engine that lacks a defence, through the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.verify.command.support import TIMEOUT_S, users_plan, verify

SABOTAGED = Path(__file__).parents[1] / "running" / "sabotaged.py"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("defence", "fault", "found", "rows"),
    [
        ("skip", "lose-commit-log", "duplicated", 6),
        pytest.param("unity", "none", "torn_progress", 8, marks=pytest.mark.long),
        pytest.param("refusal", "lose-offsets", "duplicated", 6, marks=pytest.mark.long),
        pytest.param("commit", "none", "unseen", 3, marks=pytest.mark.long),
        pytest.param("isolation", "none", "phantom", 2, marks=pytest.mark.long),
        pytest.param("end", "none", "hung_transaction", 2, marks=pytest.mark.long),
        pytest.param("input", "none", "hung_transaction", 2, marks=pytest.mark.long),
        pytest.param("progress", "none", "stuck_progress", 6, marks=pytest.mark.long),
    ],
)
def test_an_engine_without_one_of_its_defences_is_found_out(
    tmp_path: Path, defence: str, fault: str, found: str, rows: int
) -> None:
    """The positive control of the whole chain: what is broken is named, and shown by a history that anyone can check.

    Batches are lost of a plan without state alone, and the built-in one keeps some.
    """
    engine = f"{sys.executable} {SABOTAGED} {defence}"
    plan = [users_plan(tmp_path, port=9)] if fault == "lose-offsets" else []
    # Readers would wait for what stands behind a transaction that nobody ends.
    readers = ["--readers", "0"] if defence == "end" else []
    what = ["--for", "5s", "--rate", "100", "--seed", "4", "--faults", fault, "--engine", engine]
    done = verify(tmp_path, *plan, *readers, *what)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found in done.stdout
    assert "--seed 4" in done.stdout
    assert (tmp_path / "report" / "history.parquet").exists()
    (smallest,) = (tmp_path / "report").glob(f"history-*{found}*")
    checked = subprocess.run(
        [sys.executable, "-m", "onceflow.verify.checker", str(smallest), "--json"],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert checked.returncode == 1, checked.stderr
    shown = json.loads(checked.stdout)
    assert {name for name, count in shown["counts"].items() if count} == {found}
    assert shown["rows"] <= rows
