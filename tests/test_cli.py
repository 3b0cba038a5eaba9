"""The command line as its users have it: processes, signals, exit codes, lines."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.command_line import Running, Slow, onceflow_says
from tests.faults.support import eventually
from tests.open_transaction import OpenTransaction

import onceflow
from onceflow.broker import EmbeddedBroker
from onceflow.kafka.client import KafkaClient
from onceflow.pipeline.last_driver import LOCK, DriverLock

if TYPE_CHECKING:
    from tests.conftest import TopicFactory


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts pipelines; what still runs at the end of the test is killed."""
    started: list[Running] = []

    def begin(directory: Path, *arguments: str) -> Running:
        started.append(Running(directory, *arguments))
        return started[-1]

    yield begin
    for running in started:
        running.kill()


@pytest.fixture
def slow(tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory) -> Slow:
    return Slow(tmp_path, broker, topic)


# --------------------------------------------------------------------------------------------------- from nothing to data


def test_the_example_plan_runs_as_it_is(tmp_path: Path, start: Callable[..., Running]) -> None:
    assert "onceflow run pipeline.toml" in onceflow_says(tmp_path, "init")
    assert "is there already" in onceflow_says(tmp_path, "init", code=2)
    running = start(tmp_path)
    try:
        assert running.wait_for("broker_ready")["started"] is True
        running.wait_for("started")
        order = '{"id": "a-1", "country": "France", "amount": 12.50}\n'
        assert onceflow_says(tmp_path, "broker", "send", "orders", given=order) == "1 record sent to orders\n"
        running.wait_for("batch_committed", lambda batch: batch["records"] == 2)
        revenue = json.loads(onceflow_says(tmp_path, "broker", "read", "revenue", "--json"))
        assert json.loads(revenue["value"]) == {"country": "France", "revenue": 12.50, "orders": 1}
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 0
        assert [event["event"] for event in running.events[-3:]] == ["stopping", "finished", "note"]
        note = running.events[-1]["text"]
        assert "the embedded broker goes on running at 127.0.0.1:" in note
        _check_status(tmp_path)
        assert "runs since" in onceflow_says(tmp_path, "broker", "status")
        command = shlex.split(note.partition("to stop it: ")[2])
        assert onceflow_says(Path("/"), *command[1:]) == "stopped\n"
    finally:
        onceflow_says(tmp_path, "broker", "stop")
    assert "no broker runs" in onceflow_says(tmp_path, "broker", "status", code=1)
    assert "no broker runs" in onceflow_says(tmp_path, "status", code=1)


def _check_status(directory: Path) -> None:
    found = json.loads(onceflow_says(directory, "status", "orders", "--json"))
    assert found["progress"]["next_batch"] == len(found["batches"])
    assert all(batch["committed"] and batch["in_checkpoint"] for batch in found["batches"])
    assert [partition["lag"] for partition in found["partitions"]] == [0] * 4
    words = onceflow_says(directory, "status")
    assert f"next batch {found['progress']['next_batch']}" in words
    assert found["progress"]["instance"] in words


def test_broker_start_is_repeatable(tmp_path: Path) -> None:
    try:
        assert "started" in onceflow_says(tmp_path, "broker", "start", "-d", "here")
        assert "runs already" in onceflow_says(tmp_path, "broker", "start", "-d", "here")
        assert json.loads(onceflow_says(tmp_path, "broker", "status", "-d", "here", "--json"))["running"] is True
        create = ("broker", "create", "-d", "here", "--partitions")
        assert onceflow_says(tmp_path, *create, "2", "orders").strip() == "orders: created with 2 partitions"
        said = onceflow_says(tmp_path, *create, "1", "orders", "sales").splitlines()
        assert said == ["orders: is there already, with 2 partitions", "sales: created with 1 partition"]
        assert "1 record sent" in onceflow_says(tmp_path, "broker", "send", "-d", "here", "orders", given="a")
    finally:
        onceflow_says(tmp_path, "broker", "stop", "-d", "here")
    assert "no broker runs" in onceflow_says(tmp_path, "broker", "stop", "-d", "here")


# ----------------------------------------------------------------------------------------------------------- the end of it


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGTERM, os.kill), (signal.SIGTERM, os.killpg), (signal.SIGINT, os.killpg)]
)
def test_a_signal_in_the_middle_of_a_batch_ends_after_it(
    slow: Slow, start: Callable[..., Running], number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    sent = slow.send(20)
    running = start(slow.directory)
    slow.wait_until_under_way(running)
    send(running.process.pid, number)  # a terminal's Ctrl-C goes to Spark's Java process too, and a service's SIGTERM
    assert running.end() == 0
    slow.check_written(sent)
    assert running.events[-1]["event"] == "finished"
    assert running.events[-1]["reason"] == number.name
    checkpoint = next((slow.directory / ".onceflow" / "checkpoints").iterdir())
    assert (checkpoint / "commits" / "0").exists()


def test_a_second_signal_ends_at_once_and_the_next_run_finishes(slow: Slow, start: Callable[..., Running]) -> None:
    sent = slow.send(2000)  # five minutes, which the second signal cuts short
    running = start(slow.directory)
    slow.wait_until_under_way(running)
    running.process.send_signal(signal.SIGTERM)
    running.wait_for("stopping")
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 128 + signal.SIGTERM
    assert slow.written() == []
    plan = slow.directory / "pipeline.toml"
    plan.write_text(plan.read_text().replace(f"{Slow.ROW_MS}L", "0L"))
    again = start(slow.directory)
    again.wait_for("batch_committed")
    again.process.send_signal(signal.SIGINT)
    assert again.end() == 0
    slow.check_written(sent)


def test_a_killed_run_is_finished_by_the_next(slow: Slow, start: Callable[..., Running]) -> None:
    sent = slow.send(20)
    running = start(slow.directory)
    slow.wait_until_under_way(running)
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    again = start(slow.directory)
    again.wait_for("batch_committed")
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 0
    slow.check_written(sent)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No Spark starts before this file is there; ``asked`` beside it tells that one is about to."""
    found, settings = tmp_path / "gate", tmp_path / "conf"
    settings.mkdir()
    (settings / "spark-env.sh").write_text(BEFORE_SPARK.format(gate=found, asked=found.with_name("asked")))
    monkeypatch.setenv("SPARK_CONF_DIR", str(settings))
    yield found
    found.touch()


BEFORE_SPARK = """
touch {asked}
tries=0
while [ ! -e {gate} ] && [ $tries -lt 4000 ]; do sleep 0.1; tries=$((tries + 1)); done
"""


@pytest.fixture
def client(slow: Slow) -> Iterator[KafkaClient]:
    with KafkaClient(slow.settings.for_protocol()) as found:
        yield found


def test_what_a_killed_run_left_open_is_ended_before_the_next_one_has_spark(
    slow: Slow, start: Callable[..., Running], gate: Path, client: KafkaClient
) -> None:
    gate.touch()
    sent = slow.send(20)
    running = start(slow.directory)
    slow.wait_until_under_way(running)
    checkpoint = next((slow.directory / ".onceflow" / "checkpoints").iterdir())
    eventually((checkpoint / LOCK).read_bytes, bool, "the lock")
    running.process.kill()
    assert running.end() == -signal.SIGKILL
    gate.unlink()
    left = OpenTransaction(client, f"slow-{slow.lines}")
    again = start(slow.directory)
    eventually(left.is_open, lambda is_open: not is_open, "it is ended")
    gate.touch()
    again.wait_for("batch_committed")
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 0
    slow.check_written(sent)
    assert (checkpoint / LOCK).read_bytes() == b"", "it has left nothing open"


def test_beside_a_run_that_lives_the_next_one_fences_when_it_has_spark(
    slow: Slow, start: Callable[..., Running], gate: Path, client: KafkaClient
) -> None:
    """It may come to nothing."""
    checkpoint = slow.directory / ".onceflow" / "checkpoints" / f"slow-{slow.lines}"
    checkpoint.mkdir(parents=True)
    lock = DriverLock(checkpoint, f"slow-{slow.lines} {slow.settings.bootstrap_servers}")
    with lock:
        lock.take()
        left = OpenTransaction(client, f"slow-{slow.lines}")
        eventually((checkpoint / LOCK).read_bytes, bool, "the lock")
        try:
            start(slow.directory)
            eventually(gate.with_name("asked").exists, bool, "Spark is to start")
            assert left.is_open()
        finally:
            left.commit()  # others share the broker, and read these offsets when they are stable


def test_a_jvm_that_is_killed_is_told_and_no_traceback(slow: Slow, start: Callable[..., Running]) -> None:
    """As for lack of memory. What was to be cleaned up in it raised, and that was all that one saw."""
    running = start(slow.directory)
    running.wait_for("started")
    for child in psutil.Process(running.process.pid).children():
        child.kill()
    assert running.end() == 1
    told = running.events[-1]
    assert (told["event"], told["code"]) == ("error", "QUERY_FAILED")
    assert "JVM has died" in told["message"]


# ---------------------------------------------------------------------------------------------------------------- mistakes


def test_a_plan_with_mistakes_gives_exit_code_2_and_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text('nam = "x"\n[[source]]\nname = "s"\n')
    said = onceflow_says(tmp_path, "run", code=2)
    assert "mistakes in pipeline.toml" in said
    assert "pipeline.toml:1: nam: unknown setting, did you mean name?" in said
    assert "Traceback" not in said


def test_an_error_is_one_json_line_for_machines(tmp_path: Path) -> None:
    error = json.loads(onceflow_says(tmp_path, "run", "absent.toml", "--json", code=2))
    assert (error["event"], error["code"], error["retriable"]) == ("error", "CONFIGURATION", False)
    assert "onceflow init" in error["action"]


def test_a_cluster_that_is_not_there_gives_exit_code_1(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9")
    said = onceflow_says(slow.directory, "run", code=1)
    assert "BROKER_UNREACHABLE" in said
    assert "what to do: check bootstrap_servers" in said
    assert "\tat " not in said, "no Java stack traces"


def test_resume_and_restart_exclude_each_other(tmp_path: Path) -> None:
    assert "choose one" in onceflow_says(tmp_path, "run", "--resume", "--restart", code=2)


def test_secrets_are_hidden_in_the_shown_plan(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEFLOW_KAFKA__SASL__PASSWORD", "s3cr3t")
    monkeypatch.setenv("ONCEFLOW_KAFKA__SASL__USERNAME", "alice")
    monkeypatch.setenv("ONCEFLOW_KAFKA__SASL__MECHANISM", "PLAIN")
    monkeypatch.setenv("ONCEFLOW_KAFKA__SECURITY__PROTOCOL", "SASL_PLAINTEXT")
    shown = onceflow_says(slow.directory, "run", "--show-config")
    assert "s3cr3t" not in shown
    assert 'kafka.sasl.username = "alice"' in shown
    assert "# ONCEFLOW_KAFKA__SASL__PASSWORD" in shown


def test_status_of_a_name_that_never_ran(slow: Slow) -> None:
    assert "nothing is committed" in onceflow_says(slow.directory, "status", "never-ran")


def test_version() -> None:
    assert onceflow_says(Path.cwd(), "--version") == f"onceflow {onceflow.__version__}\n"
