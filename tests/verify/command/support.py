"""``onceflow verify`` as a user runs it: in a process, with a temporary directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
from tests.faults.support import eventually

TIMEOUT_S = 1100

USERS = """
name = "orders"
checkpoint = "{directory}/users-checkpoint"
[kafka]
bootstrap_servers = "127.0.0.1:{port}"
[[source]]
name = "orders"
topics = ["orders"]
schema = "id STRING, country STRING, amount DECIMAL(12, 2)"
[[sink]]
from = "orders"
topic = "copies"
key = "country"
value = "to_json(struct(id, country, amount))"
headers = {{origin = "concat(_topic, '-', _partition, '-', _offset)"}}
[spark]
hadoop.fs.defaultFS = "hdfs://127.0.0.1:{port}"
"""


def users_plan(directory: Path, port: int) -> str:
    plan = directory / "pipeline.toml"
    plan.write_text(USERS.format(directory=directory, port=port))
    return str(plan)


def verify(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with a temporary directory of its own, of which nothing may be left."""
    temporary = directory / "t"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "onceflow.cli", "verify", "--out", str(directory / "report"), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "TMPDIR": str(temporary), **variables},
        check=False,
    )
    assert not list(temporary.iterdir())
    eventually(lambda: told_of(temporary), lambda left: not left, "the end of who was killed with it: a moment later")
    return done


def told_of(temporary: Path) -> list[str]:
    """The processes that were told of the directory."""
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    return [command for command in commands if str(temporary) in command]
