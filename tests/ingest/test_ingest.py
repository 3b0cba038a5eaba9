"""The whole way into a real broker: killed at every step, stopped, two at once, started by hand.

================  ================================  ====================  ========================================
step              SIGKILL                           SIGSTOP, another one  the broker, or the database
================  ================================  ====================  ========================================
start (6 steps)   file, PostgreSQL, SQLite          all of these          broker down, answer lost (progress)
WRITE, HALF       file, PostgreSQL, SQLite,         file, PostgreSQL,     broker killed, down, answer lost;
                  with a tiebreak, version 1        SQLite, version 1     database killed between two pages
AUDIT             file, PostgreSQL, SQLite          all of these
STORE             file, PostgreSQL, SQLite          all of these          broker down, answer lost
COMMIT, DONE      all of these, also in the first   all of these          broker killed, down, answer lost
                  transaction of a table
ABORT, LOOK,      file, PostgreSQL, SQLite          all of these          broker down
CHECK_CLAIM,
RETAKE
================  ================================  ====================  ========================================

Who is stopped before its own fence is the newer one when it wakes: it fences, and goes on where the other one was.
The control: positions apart from the rows, which repeat.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from tests.conftest import create_topic, read_topic
from tests.faults.support import delete_topic, eventually
from tests.forkserver import Ended, ForkServer
from tests.ingest.ingesting import Job
from tests.ingest.support import DAY, files
from tests.postgresql import is_gone
from tests.undefended import abort_commits_without_an_answer

from onceflow.broker import EmbeddedBroker
from onceflow.errors import Fenced, InputError, ProgressConflict, RecordTooLarge
from onceflow.events import identity_of
from onceflow.ingest import committer as committer_module
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.files import FileSource, Format
from onceflow.ingest.runner import Ingest
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction import catalog
from onceflow.verify.wire import Direction, Do, Rule, Wire, apis

if TYPE_CHECKING:
    from confluent_kafka import Message
    from tests.conftest import Reader, TopicFactory

pytestmark = pytest.mark.faults

ROWS = 50
TRANSACTION_ROWS = 20
TIMEOUT_S = 120.0
START = ("INSPECT", "FENCE", "READ", "CONFIRM", "CLAIM_STORE", "CLAIM_COMMIT")
BATCH = ("WRITE", "HALF", "AUDIT", "STORE", "COMMIT", "DONE")
STOP = int(signal.SIGSTOP)
REPAIRS = [("fails", "ABORT"), ("hijacked", "LOOK"), ("hijacked", "CHECK_CLAIM"), ("hijacked", "RETAKE")]
POINTS = [*((step, -1) for step in START), *((step, batch) for batch in range(3) for step in BATCH)]


class Ingests(ForkServer):
    """Ingests in processes of their own, from the fork server of ``ingesting.py``."""

    def __init__(self, broker: EmbeddedBroker, topic: TopicFactory, directory: Path) -> None:
        super().__init__("tests.ingest.ingesting", directory)
        self._broker = broker
        self._topic = topic
        self._directory = directory
        self._names = itertools.count()

    def job(self, *, on: EmbeddedBroker | None = None, **options: Any) -> Job:
        """Of a file of its own."""
        number = next(self._names)
        path = self._directory / f"rows-{number}.jsonl"
        path.write_text("".join(f'{{"n":{row}}}\n' for row in range(ROWS)))
        servers, topic = (on or self._broker).bootstrap_servers, self._topic(2, on=on)
        return Job(servers, f"killed-{number}", topic, str(path), **options)

    def of_table(self, url: str, **options: Any) -> Job:
        """Of a table of its own, whose numbers begin at 1; its times of change are the same for two rows."""
        job = self.job(**options)
        table = f"rows_{next(self._names)}"
        is_sqlite = url.startswith("sqlite")
        column = "integer primary key autoincrement" if is_sqlite else "bigint generated always as identity primary key"
        connection: Any = sqlite3.connect(url[10:]) if is_sqlite else psycopg.connect(url)
        with closing(connection):
            connection.execute(f"create table {table} (n {column}, changed integer not null)")
            values = ", ".join(f"({row // 2})" for row in range(ROWS))
            connection.execute(f"insert into {table} (changed) values {values}")
            connection.commit()
        return replace(job, path=url, table=table)

    def finish(self, job: Job) -> Ended:
        ended = self.run(job)
        assert (ended.signal, ended.error) == (0, ""), ended.text
        return ended


@pytest.fixture(scope="module")
def ingests(broker: EmbeddedBroker, topic: TopicFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingests]:
    with Ingests(broker, topic, tmp_path_factory.mktemp("ingests")) as running:
        yield running


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


def rows_of(messages: list[Message]) -> list[int]:
    """What arrived of a table."""
    return [json.loads(message.value() or b"")["n"] - 1 for message in messages]


def address_of(database: str, request: pytest.FixtureRequest, directory: Path) -> str:
    """Of a SQLite file of its own, or of the suite's PostgreSQL."""
    return f"sqlite:///{directory}/rows.db" if database == "sqlite" else request.getfixturevalue("postgresql")


def killed_at(ingests: Ingests, job: Job, point: tuple[str, int]) -> bool:
    ended = ingests.run(replace(job, interrupt=(*point, int(signal.SIGKILL))))
    assert ended.error == "", ended.text
    return ended.signal == signal.SIGKILL


def test_the_steps_are_those_of_a_whole_run(ingests: Ingests, read: Reader) -> None:
    """So that no step is forgotten below; and a second run writes nothing."""
    job = ingests.job()
    ended = ingests.finish(job)
    assert ended.told["rows"] == ROWS
    assert set(ended.steps) == set(POINTS)
    again = ingests.finish(job)
    assert (again.told["rows"], {batch for _, batch in again.steps}) == (0, {-1})
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))


def test_killed_at_every_step(ingests: Ingests, read: Reader) -> None:
    for point in [(step, batch) for step, batch in POINTS if batch < 2]:
        job = ingests.job()
        assert killed_at(ingests, job, point), f"it did not come to {point}"
        ingests.finish(job)
        assert sorted(numbers(read(job.topic))) == list(range(ROWS)), f"killed at {point}"


@pytest.mark.parametrize("point", [("REFRESH", 1), ("HALF", 1), ("COMMIT", 1), ("DONE", 1)])
def test_killed_on_transaction_version_1(
    broker_v1: EmbeddedBroker, ingests: Ingests, read: Reader, point: tuple[str, int]
) -> None:
    job = ingests.job(on=broker_v1)
    assert killed_at(ingests, job, point), f"it did not come to {point}"
    ingests.finish(job)
    assert sorted(numbers(read(job.topic, on=broker_v1))) == list(range(ROWS))


IN_A_START = [*((step, -1) for step in START), ("COMMIT", 0), ("DONE", 0)]
IN_A_BATCH = [(step, 1) for step in BATCH]


@pytest.mark.parametrize(
    ("database", "tiebreak", "points"),
    [
        ("postgresql", False, IN_A_START),
        ("sqlite", False, IN_A_START),
        ("postgresql", False, IN_A_BATCH),
        ("sqlite", False, IN_A_BATCH),
        ("postgresql", True, [("HALF", 1), ("COMMIT", 1), ("DONE", 1)]),
        ("sqlite", True, [("HALF", 1), ("COMMIT", 1), ("DONE", 1)]),
    ],
)
@pytest.mark.in_turn(3)
def test_killed_at_every_step_of_a_table(
    request: pytest.FixtureRequest,
    ingests: Ingests,
    read: Reader,
    tmp_path: Path,
    database: str,
    tiebreak: bool,
    points: list[tuple[str, int]],
) -> None:
    """With a tiebreak each page and each transaction ends between two rows of the same value."""
    url = address_of(database, request, tmp_path)
    order = {"rising": "changed", "tiebreak": "n"} if tiebreak else {}
    for point in points:
        job = ingests.of_table(url, **order)
        assert killed_at(ingests, job, point), f"it did not come to {point}"
        ingests.finish(job)
        assert sorted(rows_of(read(job.topic))) == list(range(ROWS)), f"killed at {point}"


BEFORE_THE_FENCE = [("INSPECT", -1), ("FENCE", -1)]


def named(point: tuple[str, int]) -> str:
    step, batch = point
    return step if batch < 0 else f"{step} of {batch}"


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
@pytest.mark.parametrize("point", [*((step, -1) for step in START), *IN_A_BATCH], ids=named)
@pytest.mark.in_turn(3)
def test_a_stopped_ingest_of_a_table_is_fenced_by_the_next(
    request: pytest.FixtureRequest,
    ingests: Ingests,
    read: Reader,
    tmp_path: Path,
    database: str,
    point: tuple[str, int],
) -> None:
    """One that was stopped before its own fence is the newer one, and finds that all is done."""
    job = ingests.of_table(address_of(database, request, tmp_path))
    sleeping = ingests.start_stopped(replace(job, interrupt=(*point, STOP)))
    ingests.finish(job)
    ended = ingests.wake(sleeping)
    expected = ("", 0) if point in BEFORE_THE_FENCE else ("FENCED", None)
    assert (ended.error, ended.told.get("rows")) == expected, ended.text
    assert sorted(rows_of(read(job.topic))) == list(range(ROWS))


def test_the_database_is_killed_between_two_pages(ingests: Ingests, read: Reader, postgresql: str) -> None:
    """A server process that is killed takes all others with it; the server recovers by itself."""
    job = ingests.of_table(postgresql)
    waiting = ingests.start_stopped(replace(job, interrupt=("DONE", 0, STOP)))
    with closing(psycopg.connect(postgresql, autocommit=True)) as connection:  # a transaction looks once
        query = "select pid from pg_stat_activity where application_name = 'onceflow ingest'"

        def processes() -> list[tuple[int]]:
            return connection.execute(query).fetchall()

        # The server process of an ingest that a test before has killed ends when it finds its connection broken.
        [(process,)] = eventually(processes, lambda found: len(found) == 1, "the server process of this ingest alone")
        os.kill(process, signal.SIGKILL)
        assert ingests.wake(waiting).error == "SOURCE_UNAVAILABLE"
        # The server notices a little later that one of its processes was killed; until then it answers.
        eventually(lambda: is_gone(connection), bool, "the crash of the server")
    eventually(lambda: answers(postgresql), bool, "the server is back")
    ingests.finish(job)
    assert sorted(rows_of(read(job.topic))) == list(range(ROWS))


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize(
    ("api", "number"), [(apis.PRODUCE, 1), (apis.TXN_OFFSET_COMMIT, 1), (apis.END_TXN, 1), (apis.OFFSET_FETCH, 0)]
)
def test_an_answer_of_the_broker_is_lost(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, tmp_path: Path, api: int, number: int
) -> None:
    """The connection breaks after the request had its effect; the first commit of all is that of the claim."""
    target = topic()
    ingest_with_a_lost_answer(broker, target, tmp_path / "a.jsonl", api, number)
    assert numbers(read(target)) == list(range(ROWS))


def test_control_who_aborts_a_commit_without_an_answer_writes_its_rows_twice(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abort_commits_without_an_answer(monkeypatch, committer_module)
    target = topic()
    ingest_with_a_lost_answer(broker, target, tmp_path / "a.jsonl", apis.END_TXN, 1)
    arrived = numbers(read(target))
    twice = len(arrived) - ROWS
    assert twice >= TRANSACTION_ROWS
    assert arrived == [*range(twice), *range(ROWS)]


def ingest_with_a_lost_answer(broker: EmbeddedBroker, target: str, path: Path, api: int, number: int) -> None:
    path.write_text("".join(f'{{"n":{row}}}\n' for row in range(ROWS)))
    settings = ClusterSettings.of(broker.bootstrap_servers)
    source = files(path, Format.JSONL, block_bytes=60)
    name = f"lost-{target}"
    with Wire() as wire, SourceCommitter(name, settings) as used:
        loss = wire.rules.add(Rule(Do.CUT, frozenset({api}), Direction.ANSWER, first=number, count=1))
        used._client.close()
        used._client = KafkaClient({**settings.for_protocol(), "proxy_url": wire.url}, patience_s=60)
        Ingest(name, target, source, transaction_rows=TRANSACTION_ROWS).run(used)
        assert loss.applied == 1


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
    ingests.finish(job)
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))


def test_killed_while_the_rows_begin_to_go_into_another_topic(
    ingests: Ingests, topic: TopicFactory, read: Reader
) -> None:
    """The note and the first rows are there together or not at all: a start without the flag goes on where the rows went.

    One that is refused fences nobody, so what the killed one has left open is ended by the next.
    """
    for step in BATCH:
        old = ingests.job()
        ingests.finish(old)
        path = Path(old.path)
        path.write_text(path.read_text() + "".join(f'{{"n":{row}}}\n' for row in range(ROWS, 2 * ROWS)))
        new = replace(old, topic=topic(2))
        assert killed_at(ingests, replace(new, from_now_on=True), (step, 3)), f"it did not come to {step}"
        moved = ingests.run(new)
        if moved.error:
            assert moved.error == "CONFIGURATION", moved.text
            ingests.finish(replace(new, from_now_on=True))
        assert sorted(numbers(read(old.topic))) == list(range(ROWS)), f"killed at {step}"
        assert sorted(numbers(read(new.topic))) == list(range(ROWS, 2 * ROWS)), f"killed at {step}"


@pytest.mark.parametrize(("point", "binds"), [(("CLAIM_COMMIT", -1), False), (("HALF", 0), False), (("DONE", 0), True)])
def test_killed_before_its_first_rows_are_committed_a_start_binds_nobody(
    ingests: Ingests, topic: TopicFactory, read: Reader, point: tuple[str, int], *, binds: bool
) -> None:
    job = ingests.job()
    assert killed_at(ingests, job, point)
    other = replace(job, topic=topic(2))
    assert ingests.run(other).error == ("CONFIGURATION" if binds else "")
    if binds:
        ingests.finish(job)
    assert sorted(numbers(read(job.topic if binds else other.topic))) == list(range(ROWS))
    assert read(other.topic if binds else job.topic) == []


def test_positions_apart_from_the_rows_would_repeat(ingests: Ingests, read: Reader) -> None:
    """The control: rows in one transaction, the position in the next. Killed in between, the rows come twice."""
    job = ingests.job(apart=True)
    assert killed_at(ingests, job, ("COMMIT", 1)), "batch 1 holds the positions of batch 0"
    ingests.finish(job)
    arrived = numbers(read(job.topic))
    assert set(arrived) == set(range(ROWS))
    assert len(arrived) > ROWS


@pytest.mark.parametrize("point", POINTS[:-1], ids=named)  # behind its last commit it has nothing left to do
@pytest.mark.in_turn(3)
def test_a_stopped_ingest_is_fenced_by_the_next(ingests: Ingests, read: Reader, point: tuple[str, int]) -> None:
    """SIGSTOP looks like death. When it wakes, its transaction is gone and it may not begin another.

    Stopped before its own fence it is the newer one, and finds that all is done.
    """
    job = ingests.job()
    sleeping = ingests.start_stopped(replace(job, interrupt=(*point, STOP)))
    ingests.finish(job)
    ended = ingests.wake(sleeping)
    expected = ("", 0) if point in BEFORE_THE_FENCE else ("FENCED", None)
    assert (ended.error, ended.told.get("rows")) == expected, ended.text
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))


@pytest.mark.parametrize("kind", ["file", "postgresql", "sqlite"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize(("disturbed", "step"), REPAIRS)
@pytest.mark.in_turn(3)
def test_killed_or_stopped_while_it_mends_a_transaction(
    request: pytest.FixtureRequest,
    ingests: Ingests,
    read: Reader,
    tmp_path: Path,
    disturbed: str,
    step: str,
    number: signal.Signals,
    kind: str,
) -> None:
    """An attempt failed, or a stranger has taken the transactional id; the next instance comes while it finds its way back."""
    source = ingests.job() if kind == "file" else ingests.of_table(address_of(kind, request, tmp_path))
    job = replace(source, disturbed=disturbed)
    undisturbed = replace(job, disturbed="")
    interrupted = replace(job, interrupt=(step, 1, int(number)))
    if number is signal.SIGSTOP:
        sleeping = ingests.start_stopped(interrupted)
        ingests.finish(undisturbed)
        assert ingests.wake(sleeping).error == "FENCED"
    else:
        assert ingests.run(interrupted).signal == signal.SIGKILL
        ingests.finish(undisturbed)
    arrived = read(job.topic)
    assert sorted(numbers(arrived) if kind == "file" else rows_of(arrived)) == list(range(ROWS))


@pytest.mark.parametrize(("disturbed", "error"), [("fails", ""), ("hijacked", "FENCED")])
def test_a_transaction_that_is_disturbed_is_mended(ingests: Ingests, read: Reader, disturbed: str, error: str) -> None:
    """By the steps of ``REPAIRS``, so that none is forgotten above. A stranger whose epoch is the newest cannot be told from a
    newer instance that has not claimed the name yet: it stops, and the next start goes on.
    """
    job = replace(ingests.job(), disturbed=disturbed)
    ended = ingests.run(job)
    assert ended.error == error, ended.text
    assert {step for step, _ in ended.steps} - {step for step, _ in POINTS} == {
        step for how, step in REPAIRS if how == disturbed
    }
    ingests.finish(replace(job, disturbed=""))
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))


@pytest.mark.parametrize("point", BEFORE_THE_FENCE, ids=named)
@pytest.mark.parametrize("other", [("CLAIM_COMMIT", -1), ("HALF", 1), ("COMMIT", 1), ("DONE", 1)], ids=named)
def test_an_ingest_that_was_stopped_before_its_fence_fences_the_one_that_came_meanwhile(
    ingests: Ingests, read: Reader, point: tuple[str, int], other: tuple[str, int]
) -> None:
    """That one is stopped too, so that both are there at once; whoever fences last goes on, from where the other one was."""
    job = ingests.job()
    first = ingests.start_stopped(replace(job, interrupt=(*point, STOP)))
    second = ingests.start_stopped(replace(job, interrupt=(*other, STOP)))
    ended = ingests.wake(first)
    assert ended.error == "", ended.text
    assert ingests.wake(second).error == "FENCED"
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))


@pytest.mark.parametrize("step", ["REFRESH", *BATCH])
def test_a_stopped_ingest_is_fenced_by_the_next_on_transaction_version_1(
    broker_v1: EmbeddedBroker, ingests: Ingests, read: Reader, step: str
) -> None:
    job = ingests.job(on=broker_v1)
    sleeping = ingests.start_stopped(replace(job, interrupt=(step, 1, STOP)))
    ingests.finish(job)
    assert ingests.wake(sleeping).error == "FENCED"
    assert sorted(numbers(read(job.topic, on=broker_v1))) == list(range(ROWS))


@pytest.mark.parametrize("step", BATCH)
def test_a_start_that_is_refused_does_not_end_an_ingest_that_stands_still(
    ingests: Ingests, topic: TopicFactory, read: Reader, step: str
) -> None:
    """Wherever that one is in a transaction: what is not committed yet is not read, nor waited for."""
    job = ingests.job()
    other = replace(job, topic=topic(2))
    sleeping = ingests.start_stopped(replace(job, interrupt=(step, 1, STOP)))
    assert ingests.run(other).error == "CONFIGURATION"
    ended = ingests.wake(sleeping)
    assert (ended.error, ended.told.get("rows")) == ("", ROWS), ended.text
    assert sorted(numbers(read(job.topic))) == list(range(ROWS))
    assert read(other.topic) == []


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
@pytest.mark.in_turn(3)
def test_a_broker_killed_in_the_middle(ingests: Ingests, mortal: EmbeddedBroker, step: str) -> None:
    """Between two requests of a write, and before the commit is sent: the ingest waits for the broker and goes on."""
    job = replace(ingests.job(interrupt=(step, 1, STOP)), servers=mortal.bootstrap_servers)
    create_topic(mortal, job.topic, 2)
    waiting = ingests.start_stopped(job)
    mortal.kill()
    mortal.start()
    ended = ingests.wake(waiting)
    assert (ended.error, ended.told.get("rows")) == ("", ROWS), ended.text
    assert sorted(numbers(read_topic(mortal, job.topic))) == list(range(ROWS))


DOWN_AT = [("READ", -1), *((step, 1) for step in ("HALF", "STORE", "COMMIT"))]


def test_a_broker_that_is_down_is_waited_for(ingests: Ingests, mortal: EmbeddedBroker) -> None:
    """Ingests at several steps, of their own way or of the way back after a failure, meet it down before it comes back.

    A listener takes the broker's place until each of them has come there, and closes what it accepts.
    """
    points = [("", point) for point in DOWN_AT] + [(disturbed, (step, 1)) for disturbed, step in REPAIRS]
    jobs = [ingests.job(on=mortal, disturbed=disturbed, interrupt=(*point, STOP)) for disturbed, point in points]
    waiting = [ingests.start(job) for job in jobs]
    for process in waiting:
        ingests.wait_until_stopped(process)
    mortal.kill()
    meet(mortal.bootstrap_servers, waiting, ingests.go_on)
    mortal.start()
    for job, process in zip(jobs, waiting, strict=True):
        ended = ingests.wait(process)
        assert ended.error == ("FENCED" if job.disturbed == "hijacked" else ""), f"{job.interrupt}: {ended.text}"
        if ended.error:
            ingests.finish(replace(job, disturbed="", interrupt=None))
        assert sorted(numbers(read_topic(mortal, job.topic))) == list(range(ROWS)), job.interrupt


def meet(address: str, processes: Sequence[int], go_on: Callable[[int], None]) -> None:
    """Until each of the processes, which go on now, has tried to connect to the address."""
    host, port = address.rsplit(":", 1)
    with socket.create_server((host, int(port))) as listener:
        listener.settimeout(TIMEOUT_S)
        for process in processes:
            go_on(process)
        missing = set(processes)
        while missing:
            connection, peer = listener.accept()
            with connection:
                missing -= {process for process in missing if peer in connections_of(process)}


def connections_of(process: int) -> set[tuple[str, int]]:
    """At its own end."""
    return {(found.laddr.ip, found.laddr.port) for found in psutil.Process(process).net_connections("tcp4")}


def test_positions_that_are_gone_are_refused(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> None:
    """A positions topic that was made anew would read everything again."""
    path, target = tmp_path / "a.jsonl", topic()
    path.write_text("1\n")
    with committer(broker, "lost") as first:
        Ingest("lost", target, files(path, Format.JSONL)).run(first)
    delete_topic(broker, "onceflow-positions-ingest-lost")
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
    wrong = (
        "--file",
        "a.txt",
        "--changed",
        "maybe",
        "--kafka",
        "acks",
        "--finished",
        "--follow",
        "--columns",
        "a,a",
        "--delay",
        "1",
    )
    command = Command(tmp_path, "x y", "--topic", "t", *wrong)
    event = command.next("error")
    assert event["code"] == "CONFIGURATION"
    said = (
        "'x y' is no name",
        "--format is needed",
        "--changed maybe",
        "--kafka acks",
        "--finished says",
        "two columns are called",
    )
    for mistake in (*said, "--delay is for a table"):
        assert mistake in event["message"]
    assert command.end()[0] == 2


def test_the_command_does_not_choose_between_a_file_and_a_database(tmp_path: Path) -> None:
    command = Command(tmp_path, "x", "--topic", "t", "--file", "g.csv", "--from", "sqlite:///a.db")
    assert "--from is for a table, and has no effect on CSV" in command.next("error")["message"]
    assert command.end()[0] == 2


def test_a_topic_has_at_least_one_partition(tmp_path: Path) -> None:
    command = Command(tmp_path, "x", "--topic", "t", "--file", "g.csv", "--partitions", "0")
    status, errors = command.end()
    assert status == 2
    assert "--partitions" in errors
    assert not (tmp_path / ".onceflow").exists(), "no broker was started"


def test_where_there_is_no_file_at_all_no_broker_is_started(tmp_path: Path) -> None:
    command = Command(tmp_path, "x", "--topic", "t", "--file", "no.csv", "--file", "none-*.csv")
    assert "none-*.csv matches no file" in command.next("error")["message"]
    assert command.end()[0] == 2
    assert not (tmp_path / ".onceflow").exists()


def test_what_is_refused_makes_no_topic(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """On the embedded broker, where a missing one is made when the first rows go, or are waited for."""
    (tmp_path / ".onceflow").mkdir()
    (tmp_path / ".onceflow/broker").symlink_to(broker.directory)
    path = tmp_path / "a.csv"

    def told(event: str, topic: str, *more: str) -> dict[str, Any]:
        command = Command(tmp_path, "refused", "--topic", topic, "--file", "a.csv", *more)
        found = command.next(event)
        if "--follow" in more:
            eventually(lambda: topic in topics(), bool, "the topic is there")
            command.process.send_signal(signal.SIGTERM)
        command.end()
        return found

    def topics() -> set[str]:
        return set(AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=TIMEOUT_S).topics)

    path.write_bytes("k\na\n".encode("utf-16"))
    assert "UTF-16" in told("error", "misspelt-target")["message"]
    path.write_text("k\n")
    assert "no column" in told("error", "misspelt-target", "--key", "other")["message"]
    told("started", "waited-for-target", "--follow")
    path.write_text("k\na\n")
    assert told("finished", "right-target")["rows"] == 1
    assert "'right-target' until now" in told("error", "misspelt-target")["message"]
    assert {"waited-for-target", "right-target"} <= topics()
    assert "misspelt-target" not in topics()


def test_good_files_do_not_wait_for_a_bad_one(
    broker: EmbeddedBroker, topic: TopicFactory, read: Reader, tmp_path: Path
) -> None:
    """What comes before the block with the bad row is written; the rest follows when that is mended, and nothing repeats."""
    target = topic()
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    (tmp_path / "b.csv").write_bytes(b"n\n3\n\xff\n")
    options = ("good", "--topic", target, "--file", "*.csv", "--bootstrap-servers", broker.bootstrap_servers)

    command = Command(tmp_path, *options)
    assert command.next("committed")["rows"] == 2
    assert "b.csv: row 2 is not UTF-8" in command.next("error")["message"]
    assert command.end()[0] == 1
    assert sorted(message.value() or b"" for message in read(target)) == [b'{"n":"1"}', b'{"n":"2"}']

    (tmp_path / "b.csv").write_bytes(b"n\n3\n4\n")
    command = Command(tmp_path, *options)
    assert command.next("finished")["rows"] == 2
    assert command.end()[0] == 0
    assert sorted(message.value() or b"" for message in read(target)) == [b'{"n":"%d"}' % n for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("is_told", "size", "says", "written"),
    [(True, 20_000, "larger than the topic accepts", 2), (False, 600_000, "MessageSizeTooLarge", 3)],
)
def test_a_row_that_the_topic_does_not_take_is_named_and_holds_no_other_file_back(
    broker: EmbeddedBroker,
    topic: TopicFactory,
    read: Reader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_told: bool,
    size: int,
    says: str,
    written: int,
) -> None:
    """It is found out in the middle of the transaction that has both files' rows, by the broker where nobody tells a limit."""
    if not is_told:
        monkeypatch.setattr(catalog, "max_message_bytes", lambda *_: None)
    target, bad = topic(2, config={"max.message.bytes": "20000"}), tmp_path / "b.jsonl"
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    os.utime(tmp_path / "a.jsonl", ns=(0, 0))
    bad.write_text(f'3\n"{os.urandom(size).hex()}"\n5\n')

    def start() -> int:
        with committer(broker, target) as used:
            return Ingest(target, target, files(f"{tmp_path}/*.jsonl", Format.JSONL)).run(used)

    for _ in range(2):
        with pytest.raises(RecordTooLarge, match=rf"row 2 of file://{bad}#.*{says}") as raised:
            start()
        assert raised.value.fields["id"] == "2"
        assert sorted(message.value() or b"" for message in read(target)) == [b"%d" % n for n in range(1, written + 1)]

    bad.write_text("3\n4\n5\n")
    assert start() == 5 - written
    assert sorted(message.value() or b"" for message in read(target)) == [b"%d" % number for number in range(1, 6)]


def test_a_row_that_a_broker_refuses_is_named(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> None:
    """A compacted topic takes no record without a key; the broker counts within what it was sent for a partition."""
    (tmp_path / "a.jsonl").write_text('{"k":"a"}\n{"k":"b"}\n')
    (tmp_path / "b.jsonl").write_text('{"k":"c"}\n{"k":"d"}\n{"n":3}\n')
    os.utime(tmp_path / "a.jsonl", ns=(0, 0))
    source = files(f"{tmp_path}/*.jsonl", Format.JSONL, key="k")
    with committer(broker, "no-key") as used, pytest.raises(InputError, match=rf"row 3 of file://{tmp_path}/b.jsonl#"):
        Ingest("no-key", topic(config={"cleanup.policy": "compact"}), source).run(used)


def test_the_command_says_that_it_starts_a_broker(tmp_path: Path) -> None:
    """And that it goes on running."""
    (tmp_path / "a.csv").write_text("1,x\n2,y\n")
    arguments = [
        sys.executable,
        "-m",
        "onceflow.cli",
        "ingest",
        "a",
        "--topic",
        "t",
        "--file",
        "a.csv",
        "--columns",
        "n,text",
    ]
    try:
        done = subprocess.run(
            arguments, cwd=tmp_path, capture_output=True, text=True, timeout=5 * TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        first, *_, last = done.stdout.splitlines()
        assert re.fullmatch(r"embedded broker \S+ started \(data in .*\)", first)
        assert "goes on running" in last
        broker = EmbeddedBroker.attach(tmp_path / ".onceflow/broker")
        values = [message.value() for message in read_topic(broker, "t")]
        assert values == [b'{"n":"1","text":"x"}', b'{"n":"2","text":"y"}']
    finally:
        EmbeddedBroker(tmp_path / ".onceflow/broker").stop()
