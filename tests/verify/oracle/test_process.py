"""What the process that waits for a replay tells of it."""

from __future__ import annotations

from pathlib import Path

from onceflow.verify.oracle.how_far import note, noted, progress_beside
from onceflow.verify.oracle.process import _failed


def test_the_reason_is_shown_though_spark_puts_the_whole_plan_behind_it(tmp_path: Path) -> None:
    log = tmp_path / "oracle.log"
    plan = [f"   +- Project {number}" for number in range(60)]
    log.write_text("\n".join(["Traceback", "  Caused by: java.lang.OutOfMemoryError: Java heap space", *plan]))
    said = str(_failed("the replay ended with exit status 1", log))
    assert "OutOfMemoryError: Java heap space" in said
    assert "Project 59" in said
    assert "Project 3\n" not in said


def test_how_far_it_is_is_told_beside_its_result(tmp_path: Path) -> None:
    file = progress_beside(tmp_path / "expected")
    assert noted(file) == (0, 0)
    note(file, 3, 1020)
    assert noted(file) == (3, 1020)
    assert list(tmp_path.iterdir()) == [file]
