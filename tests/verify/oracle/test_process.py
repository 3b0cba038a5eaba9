"""What the process that waits for a replay tells of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from onceflow.verify.oracle import process
from onceflow.verify.oracle.how_far import note, noted, progress_beside
from onceflow.verify.oracle.process import _failed, _wait


def test_the_reason_is_shown_though_spark_puts_the_whole_plan_behind_it(tmp_path: Path) -> None:
    log = tmp_path / "oracle.log"
    plan = [f"   +- Project {number}" for number in range(60)]
    log.write_text("\n".join(["Traceback", "  Caused by: java.lang.OutOfMemoryError: Java heap space", *plan]))
    said = str(_failed("the replay ended with exit status 1", log))
    assert "OutOfMemoryError: Java heap space" in said
    assert "Project 59" in said
    assert "Project 3\n" not in said


def test_a_cause_is_shown_though_each_caller_tells_of_the_failure_again(tmp_path: Path) -> None:
    log = tmp_path / "oracle.log"
    callers = [
        f"py4j.protocol.Py4JJavaError: An error occurred while calling o{number}.getResult." for number in range(9)
    ]
    plan = [f"   +- Project {number}" for number in range(60)]
    log.write_text("\n".join(["Caused by: java.io.UTFDataFormatException: encoded string too long", *callers, *plan]))
    assert "UTFDataFormatException" in str(_failed("the replay ended with exit status 1", log))


def test_how_far_it_is_is_told_beside_its_result(tmp_path: Path) -> None:
    file = progress_beside(tmp_path / "expected")
    assert noted(file) == (0, 0)
    note(file, 3, 1020)
    assert noted(file) == (3, 1020)
    assert list(tmp_path.iterdir()) == [file]


ASKED = """
import sys
from pathlib import Path
from onceflow.verify.oracle.how_far import note

for line in sys.stdin:
    note(Path(sys.argv[1]), int(line), 9)
"""
"""A replay that does a batch whenever it is told to."""


def test_a_replay_may_take_as_long_as_batches_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of nine comes 100 s behind the one before; it is given up where none comes for 150 s."""
    told: list[int] = []
    progress = progress_beside(tmp_path / "expected")
    monkeypatch.setattr(process, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: 100.0 * len(told)))
    with subprocess.Popen([sys.executable, "-c", ASKED, str(progress)], stdin=subprocess.PIPE) as replay:
        assert replay.stdin is not None

        def say(number: int) -> None:
            assert replay.stdin is not None
            replay.stdin.write(b"%d\n" % number)
            replay.stdin.flush()

        def go_on(done: int, total: int) -> None:
            assert total == 9
            assert replay.stdin is not None
            told.append(done)
            if done < total:
                say(done + 1)
            else:
                replay.stdin.close()

        say(1)
        assert _wait(replay, progress, go_on, 150) == 0
    assert told == list(range(1, 10))
