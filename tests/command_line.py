"""``onceflow`` as tests run it: commands in processes of their own, and a plan whose batches take a while."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient
from tests.log_ends import left_unstable

from onceflow.broker import EmbeddedBroker
from onceflow.cli.records import partitions_of, read_committed, send_lines
from onceflow.kafka.settings import ClusterSettings

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

COMMAND = [sys.executable, "-m", "onceflow.cli"]
PATIENCE_S = 400.0
_MARKERS_S = 30.0


def onceflow_says(directory: Path, *arguments: str, given: str = "", code: int = 0) -> str:
    """Runs a command to its end and gives its output; the exit code must be the expected one."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=directory,
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stdout + done.stderr


def await_markers(settings: ClusterSettings, topic: str) -> None:
    """Until a topic is stable up to its ends; not for long: somebody may have left a transaction open."""
    admin = AdminClient({**settings.for_librdkafka(), "log_level": 0})
    left_unstable(admin, topic, partitions_of(settings, topic), _MARKERS_S)


class Running:
    """``onceflow run --json`` in a process of its own; its events are read as they come. ``environment``: variables over ours."""

    def __init__(self, directory: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "run", "--json", *arguments],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, name: str, fits: Callable[[Mapping[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The next event of a name."""
        while (event := self._next()) is not None:
            if event["event"] == name and fits(event):
                return event
        raise AssertionError(f"no {name}, but {self.events}")

    def end(self) -> int:
        """The exit code, once all events are read."""
        while self._next() is not None:
            pass
        return self.process.wait(PATIENCE_S)

    def _next(self) -> dict[str, Any] | None:
        line = self._lines.get(timeout=PATIENCE_S)
        if line is None:
            return None
        self.events.append(json.loads(line))
        return self.events[-1]

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)


class Slow:
    """A plan whose batches take a while, and which shows by a symbolic link that one is under way."""

    ROW_MS = 150

    def __init__(self, directory: Path, broker: EmbeddedBroker, topic: TopicFactory) -> None:
        self.directory = directory
        self.settings = ClusterSettings.of(broker.bootstrap_servers)
        self.lines, self.out = topic(1), topic(1)
        self.link = directory / "under-way"
        plan = f"""
name = "slow-{self.lines}"
[trigger]
processing_time = "100 ms"
[kafka]
bootstrap_servers = "{broker.bootstrap_servers}"
[[source]]
name = "lines"
topics = ["{self.lines}"]
format = "raw"
[[transform]]
name = "slowly"
sql = '''
SELECT value,
  reflect('org.apache.hadoop.fs.FileUtil', 'symLink', 'target', '{self.link}') AS shown,
  reflect('java.lang.Thread', 'sleep', {self.ROW_MS}L) AS slept
FROM lines'''
[[sink]]
from = "slowly"
topic = "{self.out}"
value = "concat(substring(value, 1), substring(concat(coalesce(shown, ''), coalesce(slept, '')), 0, 0))"
"""
        (directory / "pipeline.toml").write_text(plan)

    def send(self, count: int) -> list[str]:
        values = [str(i) for i in range(count)]
        send_lines(self.settings, self.lines, values, key=None)
        return values

    def wait_until_under_way(self, running: Running) -> None:
        """Until a batch is, and the command has heard that the query runs: before that a signal ends it at once."""
        if not any(event["event"] == "started" for event in running.events):
            running.wait_for("started")
        deadline = time.monotonic() + PATIENCE_S
        while not self.link.is_symlink():
            assert running.process.poll() is None, "the pipeline ended"
            assert time.monotonic() < deadline, "no batch began"
            time.sleep(0.01)

    def check_written(self, sent: list[str]) -> None:
        """Each once, in order. A run ends when its last commit was answered, and the markers are written a moment later."""
        await_markers(self.settings, self.out)
        assert self.written() == sent

    def written(self) -> list[str | None]:
        return [record.value for record in read_committed(self.settings, self.out)]
