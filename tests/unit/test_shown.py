"""What cannot be shown ends nothing, and the exit status stays what it was to be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 60.0

SHOWING = """
import sys, threading
from pathlib import Path
from onceflow.cli.shown import console_of, told_json
from onceflow.verify.running.progress import Progress

console = console_of(as_json=sys.argv[1] == "json")
progress = Progress(console)
print("ready", file=sys.stdout if sys.argv[1] == "json" else sys.stderr, flush=True)
sys.stdin.readline()

def supervise():
    for number in range(1000):
        progress.line(f"a driver ends – {number}" * 100)
    Path(sys.argv[2]).write_text("supervised to the end")

thread = threading.Thread(target=supervise)
thread.start()
thread.join()
console.print("shown")
if sys.argv[1] == "json":
    assert told_json(Path(sys.argv[2]))
raise SystemExit(3)
"""


def showing(how: str, file: Path, **environment: str) -> subprocess.Popen[str]:
    words, pipe = [sys.executable, "-c", SHOWING, how, str(file)], subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment})


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_nobody_reads_the_standard_output_any_more(tmp_path: Path) -> None:
    """As behind ``| head``: neither the thread that tells nor the process ends of it, nor does Python when it ends."""
    file = tmp_path / "file"
    with showing("lines", file) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.stdout.close()
        go_on(process)
        assert process.wait(PATIENCE_S) == 3
        assert file.read_text() == "supervised to the end"
        assert process.stderr.read() == ""


def test_nobody_reads_the_standard_error_and_the_json_is_told_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with showing("json", file) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.stderr.close()
        go_on(process)
        assert process.stdout.read() == "supervised to the end\n"
        assert process.wait(PATIENCE_S) == 3


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_any_encoding_carries_what_is_shown(tmp_path: Path, encoding: str) -> None:
    with showing("lines", tmp_path / "file", PYTHONIOENCODING=encoding) as process:
        told, errors = process.communicate("\n", timeout=PATIENCE_S)
        assert process.returncode == 3, errors
    assert "a driver ends \\u2013 999" in told
    assert told.endswith("shown\n")
