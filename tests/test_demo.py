"""``onceflow demo`` as a user runs it: a real broker, real Spark, real kills. The longest tests there are."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from confluent_kafka import Producer

from onceflow.broker import EmbeddedBroker
from onceflow.demo.assignment import Pipeline, Told
from onceflow.demo.faults import PLANS, Target
from onceflow.demo.look_around import leave_running
from onceflow.demo.place import place
from onceflow.demo.topics import create_topics

SALES = 3108 - 26  # rows of the file, without the cancellations
DEMO_TIMEOUT_S = 1100  # four minutes alone on a slow machine, and others work beside it
END_TIMEOUT_S = 180
DEMO = ("onceflow.cli", "demo")


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """A directory that the demo takes for the system's temporary one; nothing of it may be left, nor a process in it."""
    directory = tmp_path / "t"
    directory.mkdir()
    yield directory
    for process in processes_in(directory):
        process.kill()


@contextmanager
def started(temporary: Path, *command: str, timeout_s: float = DEMO_TIMEOUT_S) -> Iterator[subprocess.Popen[str]]:
    """A process of a session of its own, killed after an error or ``timeout_s``: then its output ends, too."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    watchdog = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    with process:
        try:
            yield process
            process.wait(timeout_s)
        finally:
            watchdog.cancel()
            process.kill()


def processes_in(directory: Path) -> list[psutil.Process]:
    """The processes that have ``directory`` in their command, as all of the demo's have: broker, its guard, workers, JVMs."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(directory) in argument for argument in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_nothing_is_left(temporary: Path) -> None:
    _, alive = psutil.wait_procs(processes_in(temporary), timeout=END_TIMEOUT_S)
    assert alive == []
    assert list(temporary.iterdir()) == []


def read_until(stream: IO[str] | None, text: str) -> None:
    """Read lines until one has ``text``."""
    assert stream is not None
    said = []
    for line in stream:
        said.append(line)
        if text in line:
            return
    pytest.fail(f"{text!r} was not said, but:\n{''.join(said)}")


@pytest.mark.slow
@pytest.mark.faults
def test_the_demo_proves_exactly_once(temporary: Path) -> None:
    with started(temporary, *DEMO, "--json") as process:
        stdout, stderr = process.communicate()

    assert process.returncode == 0, stderr
    document = json.loads(stdout)
    assert document["proved"] is True
    assert document["events"] == 3108
    assert_exactly_once(document["pipelines"]["onceflow"]["proof"])
    assert_repeats(document["pipelines"]["built-in"]["proof"])
    for pipeline in Pipeline:
        assert_killed_as_planned(pipeline, document["pipelines"][pipeline]["kills"])
    assert_half_written(document["pipelines"]["onceflow"]["kills"])
    assert stderr.count("SIGKILL to the driver") == 10
    assert_nothing_is_left(temporary)


def assert_exactly_once(proof: dict[str, Any]) -> None:
    sales, revenue = proof["sales"], proof["revenue"]
    assert proof["holds"] is True
    assert proof["uncommitted_offsets"] == 0
    assert sales["read"] == sales["expected"] == SALES
    for wrong in ("missing", "duplicated", "unexpected", "out_of_order", "wrong_countries"):
        assert sales[wrong] == []
    for wrong in ("duplicated", "unexpected", "out_of_order", "wrong_totals"):
        assert revenue[wrong] == []
    assert sales["amount_read"] == sales["amount_expected"] == "58960.79"


def assert_repeats(proof: dict[str, Any]) -> None:
    """Spark's own sink loses nothing either; but two batches were written as a whole and then again."""
    sales = proof["sales"]
    assert proof["holds"] is False
    assert sales["missing"] == sales["unexpected"] == []
    assert len(sales["duplicated"]) > 200
    assert sales["read"] == SALES + len(sales["duplicated"])


def assert_killed_as_planned(pipeline: Pipeline, kills: list[dict[str, Any]]) -> None:
    plan = PLANS[pipeline]
    assert [(kill["step"], kill["batch"], kill["target"]) for kill in kills] == [
        (fault.hold.moment, fault.hold.batch, fault.target) for fault in plan
    ]
    drivers = [kill for kill in kills if kill["target"] == Target.DRIVER]
    assert [kill["exit_code"] for kill in drivers] == [-signal.SIGKILL] * 5
    assert len({kill["pid"] for kill in kills}) == len(kills)


def assert_half_written(kills: list[dict[str, Any]]) -> None:
    """In the write a part is on the broker, before the commit all; nobody sees it. Otherwise nothing is in doubt."""
    hidden = {(kill["step"], kill["target"]): kill["uncommitted_records"] for kill in kills}
    assert 0 < hidden["PRODUCE", "driver"] < hidden["COMMIT", "driver"]
    assert hidden["PRODUCE", "broker"] > 0
    assert hidden["WRITE", "driver"] == hidden["CLAIM_COMMIT", "driver"] == hidden["COMMITTED", "driver"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.in_turn(2)
def test_an_interrupted_demo_leaves_nothing(temporary: Path, number: signal.Signals) -> None:
    with started(temporary, *DEMO, "--json") as process:
        read_until(process.stderr, "SIGKILL to the driver")
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=END_TIMEOUT_S)

    assert process.returncode == 128 + number
    assert stdout == ""
    assert "cleaning up" in stderr
    assert "Traceback" not in stderr
    assert_nothing_is_left(temporary)


@pytest.mark.slow
@pytest.mark.faults
def test_no_process_outlives_a_killed_demo(temporary: Path) -> None:
    with started(temporary, *DEMO) as process:
        read_until(process.stdout, "real events are in Kafka")
        children = processes_in(temporary)
        process.kill()

    assert len(children) >= 3, "the broker, its guard and a worker"
    _, alive = psutil.wait_procs(children, timeout=END_TIMEOUT_S)
    assert alive == []


@pytest.mark.slow
def test_a_worker_and_its_jvm_end_with_their_input(temporary: Path) -> None:
    """Nobody closes it but the end of the demo; that its output breaks too would not reach a worker that waits."""
    with started(temporary, "onceflow.demo.worker", str(temporary)) as worker:
        read_until(worker.stdout, Told.READY)
        children = psutil.Process(worker.pid).children(recursive=True)
        assert "java" in [child.name() for child in children]
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(END_TIMEOUT_S) == -signal.SIGKILL

    _, alive = psutil.wait_procs(children, timeout=END_TIMEOUT_S)
    assert alive == []


@pytest.mark.slow
def test_the_kept_broker_can_be_read_and_stopped(tmp_path: Path) -> None:
    with place(tmp_path / "a b", keep=True) as at:
        with EmbeddedBroker(at.broker) as broker:
            create_topics(broker.bootstrap_servers)
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
            producer.produce("sales", key="536365", value="a sale")
            assert producer.flush(END_TIMEOUT_S) == 0
        kept = leave_running(at)
    try:
        read = [*shlex.split(kept.read), "--max-messages", "1"]
        said = subprocess.run(read, capture_output=True, text=True, timeout=END_TIMEOUT_S, check=True)
        assert said.stdout == "536365\ta sale\n"
    finally:
        stop = shlex.split(kept.stop)
        assert stop[0] == "onceflow"
        subprocess.run([sys.executable, "-m", "onceflow.cli", *stop[1:]], timeout=END_TIMEOUT_S, check=True)
    assert not broker.is_running
