"""Spark's JVM dies under a pipeline that goes on: what py4j raises then, and what is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import PATIENCE_S, Slow
from tests.conftest import TopicFactory

from onceflow.broker import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.faults]

LOSING = """
import json, queue, sys, threading
from pathlib import Path
import psutil
from onceflow.config import load
from onceflow.errors import OnceflowError
from onceflow.pipeline import Control, run
from onceflow.pipeline.control import Ended
from onceflow.transaction.sink import KafkaSink

plan, moment = sys.argv[1:]

def lose(name, batch=-1):
    if name == moment:
        (jvm,) = psutil.Process().children()
        jvm.kill()
        jvm.wait()

class Sink(KafkaSink):
    def __init__(self, **options):
        lose("start")
        super().__init__(on_step=lose, **options)

    def __call__(self, batch, batch_id):
        try:
            super().__call__(batch, batch_id)
        except Exception as error:
            told["batch"] = f"{type(error).__name__}: {error}"
            failed.set()
            raise

class Inbox(queue.SimpleQueue):
    def put(self, message):
        if isinstance(message, Ended):
            failed.wait(300)  # the run hears of the end of its query behind that of the batch, which is the harder case
        super().put(message)

told, failed, control = {}, threading.Event(), Control()
control.inbox = Inbox()
try:
    run(load(Path(plan), {}), tell=lambda event: None, control=control, make_sink=Sink)
except OnceflowError as error:
    told |= {"code": error.code, "message": error.message}
print(json.dumps(told))
"""


def told_when_lost(directory: Path, broker: EmbeddedBroker, topic: TopicFactory, moment: str) -> dict[str, str]:
    slow = Slow(directory, broker, topic)
    slow.send(3)
    command = [sys.executable, "-c", LOSING, str(directory / "pipeline.toml"), moment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert told["code"] == "QUERY_FAILED"
    assert told["message"].startswith("Spark's JVM has died or does not answer: ")
    assert slow.written() == []
    return told


def test_a_jvm_that_dies_before_the_query_starts_is_told(
    tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory
) -> None:
    """It was a bare ConnectionRefusedError."""
    assert "batch" not in told_when_lost(tmp_path, broker, topic, "start")


def test_a_jvm_that_dies_in_a_batch_is_told_and_not_what_the_batch_raised_for_want_of_it(
    tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory
) -> None:
    told = told_when_lost(tmp_path, broker, topic, "WRITE")
    assert told["batch"].startswith("Py4JError: ")
    assert "has died" not in told["batch"]
