"""The whole way into a real broker: killed at every step, stopped, two at once, started by hand."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import create_topic, read_topic
from tests.ingest.ingesting import Job
from tests.ingest.support import DAY, files

from onceflow.broker import EmbeddedBroker
from onceflow.errors import Fenced, ProgressConflict
from onceflow.events import identity_of
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.files import FileSource, Format
from onceflow.ingest.runner import Ingest
from onceflow.kafka.settings import ClusterSettings

if TYPE_CHECKING:
    from confluent_kafka import Message
    from tests.conftest import Reader, TopicFactory

pytestmark = pytest.mark.faults

ROWS = 50
TIMEOUT_S = 120.0
START = ("INSPECT", "FENCE", "READ", "CONFIRM", "CLAIM_STORE", "CLAIM_COMMIT")
BATCH = ("WRITE", "HALF", "AUDIT", "STORE", "COMMIT", "DONE")
POINTS = [*((step, -1) for step in START), *((step, batch) for batch in range(3) for step in BATCH)]
ONLY_ON_VERSION_1 = {("REFRESH", batch) for batch in range(3)}


@dataclass(frozen=True)
class Ended:
    """How an ingest ended: the signal that killed it (0: none), its error code, the rows it wrote, its steps."""

    signal: int
    error: str
    text: str
    rows: int
    steps: tuple[tuple[str, int], ...]


class Ingests:
    """Ingests in processes of their own, from the fork server of ``ingesting.py``."""

    def __init__(self, broker: EmbeddedBroker, topic: TopicFactory, directory: Path) -> None:
        self._broker = broker
        self._topic = topic
        self._directory = directory
        self._numbers = itertools.count()
        self._reports: dict[int, Path] = {}
        program = str(Path(__file__).with_name("ingesting.py"))
        self._server = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(TIMEOUT_S)
        self._server.stdout.close()

    def job(self, **options: Any) -> Job:
        number = next(self._numbers)
        path = self._directory / f"rows-{number}.jsonl"
        path.write_text("".join(f'{{"n":{row}}}\n' for row in range(ROWS)))
        return Job(self._broker.bootstrap_servers, f"killed-{number}", self._topic(2), str(path), **options)

    def start(self, job: Job) -> int:
        report = self._directory / f"report-{next(self._numbers)}"
        pid: int = self._ask(do="start", job=asdict(job), report=str(report))["pid"]
        self._reports[pid] = report
        return pid

    def wait(self, pid: int) -> Ended:
        status = self._ask(do="wait", pid=pid, stopped=False)
        report = self._reports.pop(pid)
        told = json.loads(report.read_text()) if report.exists() else {}
        steps = tuple((step, batch) for step, batch in told.get("steps", ()))
        return Ended(status["signal"], told.get("error", ""), told.get("text", ""), told.get("rows", 0), steps)

    def wait_until_stopped(self, pid: int) -> None:
        assert self._ask(do="wait", pid=pid, stopped=True)["stopped"]

    def run(self, job: Job) -> Ended:
        ended = self.wait(self.start(job))
        assert ended.error == "", ended.text
        return ended

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        told: dict[str, Any] = json.loads(self._server.stdout.readline())
        return told


@pytest.fixture(scope="module")
def ingests(broker: EmbeddedBroker, topic: TopicFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingests]:
    running = Ingests(broker, topic, tmp_path_factory.mktemp("ingests"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker to be killed."""
    with EmbeddedBroker(tmp_path_factory.mktemp("mortal"), heap_mb=256) as running:
        yield running


def numbers(messages: list[Message]) -> list[int]:
    """What arrived, by the sequence that each event carries."""
    found = []
    for message in messages:
        identity = identity_of(message.headers())
        assert identity is not None
        assert identity.sequence == int(identity.id)
        assert json.loads(message.value() or b"") == {"n": identity.sequence - 1}
        found.append(identity.sequence - 1)
    return found


def killed_at(ingests: Ingests, job: Job, point: tuple[str, int]) -> bool:
    return ingests.run(replace(job, interrupt=(*point, int(signal.SIGKILL)))).signal == signal.SIGKILL


def test_the_steps_are_those_of_a_whole_run(ingests: Ingests, read: Reader) -> None:
    """So that no step is forgotten below; and a second run writes nothing."""
    job = ingests.job()
    ended = ingests.run(job)
    assert ended.rows == ROWS
    assert set(ended.steps) - ONLY_ON_VERSION_1 == set(POINTS)
    again = ingests.run(job)
    assert (again.rows, {batch for _, batch in again.steps}) == (0, {-1})
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))


def test_killed_at_every_step(ingests: Ingests, read: Reader) -> None:
    for point in POINTS:
        job = ingests.job()
        assert killed_at(ingests, job, point), f"it did not come to {point}"
        assert ingests.run(job).signal == 0
        assert sorted(numbers(read(job.topic))) == list(range(ROWS)), f"killed at {point}"


def test_killed_in_one_life_after_the_other(ingests: Ingests, read: Reader) -> None:
    """Each life gets one step further than the last."""
    job = ingests.job()
    for point in [
        ("HALF", 0),
        ("COMMIT", 0),
        ("CLAIM_COMMIT", -1),
        ("STORE", 1),
        ("DONE", 1),
        ("HALF", 2),
        ("READ", -1),
    ]:
        killed_at(ingests, job, point)
    ingests.run(job)
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))


def test_positions_apart_from_the_rows_would_repeat(ingests: Ingests, read: Reader) -> None:
    """The control: rows in one transaction, the position in the next. Killed in between, the rows come twice."""
    job = ingests.job(apart=True)
    assert killed_at(ingests, job, ("COMMIT", 1)), "batch 1 holds the positions of batch 0"
    ingests.run(job)
    arrived = numbers(read(job.topic))
    assert set(arrived) == set(range(ROWS))
    assert len(arrived) > ROWS


@pytest.mark.parametrize("step", ["WRITE", "HALF", "STORE", "COMMIT"])
def test_a_stopped_ingest_is_fenced_by_the_next(ingests: Ingests, read: Reader, step: str) -> None:
    """SIGSTOP looks like death. When it wakes, its transaction is gone and it may not begin another."""
    job = ingests.job()
    sleeping = ingests.start(replace(job, interrupt=(step, 1, int(signal.SIGSTOP))))
    ingests.wait_until_stopped(sleeping)
    assert ingests.run(job).signal == 0
    os.kill(sleeping, signal.SIGCONT)
    ended = ingests.wait(sleeping)
    assert ended.error == "FENCED", ended.text
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))


def committer(broker: EmbeddedBroker, name: str) -> SourceCommitter:
    return SourceCommitter(name, ClusterSettings.of(broker.bootstrap_servers))


def test_a_second_instance_fences_the_first(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> None:
    path, target = tmp_path / "a.jsonl", topic()
    path.write_text("1\n")
    with committer(broker, "twice") as first, committer(broker, "twice") as second:
        Ingest("twice", target, files(path, Format.JSONL)).run(first)
        with path.open("a") as file:
            file.write("2\n")
        assert Ingest("twice", target, files(path, Format.JSONL)).run(second) == 1
        with path.open("a") as file:
            file.write("3\n")
        positions = {"any": "position"}
        with pytest.raises(Fenced):
            first.commit([], positions)


@pytest.mark.parametrize("step", ["HALF", "COMMIT"])
def test_a_broker_killed_in_the_middle(ingests: Ingests, mortal: EmbeddedBroker, step: str) -> None:
    """Between two requests of a write, and before the commit is sent: the ingest waits for the broker and goes on."""
    job = replace(ingests.job(interrupt=(step, 1, int(signal.SIGSTOP))), servers=mortal.bootstrap_servers)
    create_topic(mortal, job.topic, 2)
    waiting = ingests.start(job)
    ingests.wait_until_stopped(waiting)
    mortal.kill()
    mortal.start()
    os.kill(waiting, signal.SIGCONT)
    ended = ingests.wait(waiting)
    assert (ended.error, ended.rows) == ("", ROWS), ended.text
    assert sorted(numbers(read_topic(mortal, job.topic))) == list(range(ROWS))


def test_positions_that_are_gone_are_refused(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> None:
    """A positions topic that was made anew would read everything again."""
    from confluent_kafka.admin import AdminClient

    path, target = tmp_path / "a.jsonl", topic()
    path.write_text("1\n")
    with committer(broker, "lost") as first:
        Ingest("lost", target, files(path, Format.JSONL)).run(first)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    [(_, gone)] = admin.delete_topics(["onceflow-positions-ingest-lost"], operation_timeout=TIMEOUT_S).items()
    gone.result(TIMEOUT_S)
    with committer(broker, "lost") as second, pytest.raises(ProgressConflict):
        Ingest("lost", target, files(path, Format.JSONL)).run(second)


def test_the_order_of_each_key(broker: EmbeddedBroker, topic: TopicFactory, read: Reader) -> None:
    """The day in many transactions over four partitions: each key in one of them, in the order of the file."""
    target = topic(4)
    source = FileSource(replace(files(DAY, key="InvoiceNo")._options, block_bytes=20_000))
    with committer(broker, "day") as day:
        Ingest("day", target, source, transaction_rows=500).run(day)
    by_key: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for message in read(target):
        key = (message.key() or b"").decode() if isinstance(message.key(), bytes) else str(message.key())
        by_key.setdefault(key, []).append((message.partition() or 0, json.loads(message.value() or b"")))
    with DAY.open(encoding="utf-8", newline="") as file:
        expected: dict[str, list[dict[str, str]]] = {}
        for row in csv.DictReader(file):
            expected.setdefault(row["InvoiceNo"], []).append(row)
    assert {key: [row for _, row in rows] for key, rows in by_key.items()} == expected
    assert all(len({partition for partition, _ in rows}) == 1 for rows in by_key.values())


class Command:
    """``onceflow ingest --json`` in a process of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "onceflow.cli", "ingest", *arguments, "--json"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def next(self, name: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
        raise AssertionError(f"no {name}: {self.end()}")

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, errors


def test_the_command_follows_a_rotated_log(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, tmp_path: Path
) -> None:
    target, log = topic(), tmp_path / "app.jsonl"
    servers = ("--bootstrap-servers", broker.bootstrap_servers)
    log.write_text('{"n":0}\n{"n":1}\n')
    command = Command(tmp_path, "log", "--topic", target, "--file", "app.jsonl", "--follow", *servers)
    assert command.next("started")["resumed"] is False
    assert command.next("committed")["rows"] == 2
    with log.open("a") as file:
        file.write('{"n":2}\n{"n":')
        file.flush()
        assert command.next("committed")["rows"] == 1
        log.rename(tmp_path / "app.jsonl.1")
        log.write_text('{"n":4}\n')
        command.next("committed")
        file.write("3}\n")
    command.next("committed")
    command.process.send_signal(signal.SIGTERM)
    assert command.next("finished")["reason"] == "stopped"
    assert command.end()[0] == 0
    assert sorted(json.loads(message.value() or b"")["n"] for message in read(target)) == [0, 1, 2, 3, 4]
    again = Command(tmp_path, "log", "--topic", target, "--file", "app.jsonl", *servers)
    assert again.next("started")["resumed"] is True
    assert again.next("finished")["rows"] == 0
    assert again.end()[0] == 0


def test_the_command_names_every_mistake(tmp_path: Path) -> None:
    wrong = ("--file", "a.txt", "--changed", "maybe", "--kafka", "acks", "--finished", "--follow")
    command = Command(tmp_path, "x", "--topic", "t", *wrong)
    event = command.next("error")
    assert event["code"] == "CONFIGURATION"
    for said in ("--format is needed", "--changed maybe", "--kafka acks", "--finished says"):
        assert said in event["message"]
    assert command.end()[0] == 2
