"""Wall clocks that are set, and jump to and fro at each look: nothing that decides what is written reads one.

A clock of one Python process is moved by taking the place of ``time.time``; for brokers and JVMs see
test_moved_broker_clocks.py and test_moved_pipeline_clocks.py.
"""

from __future__ import annotations

import ast
import itertools
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.faults.light import LightDriver
from tests.faults.support import Cluster, LightDrivers, expected_records

import onceflow
from onceflow.errors import Fenced, StoreFenced
from onceflow.reader.stores.interface import EventKey, Retention, Standing
from onceflow.reader.stores.sqlite import SqliteStore

pytestmark = pytest.mark.faults

SOURCE = Path(onceflow.__file__).parent
DAY_S = 86_400.0
SHIFTS_S = (-400 * DAY_S, 0.0, 400 * DAY_S, 3600.0, -3600.0)
EVENTS = [str(number) for number in range(60)]

Move = Callable[..., None]

READ_A_CLOCK = {
    "broker/embedded.py": "since when a broker runs, for people",
    "cli/ingest_display.py": "when a line was printed, for people",
    "cli/progress.py": "when a line was printed, for people",
    "ingest/committer.py": "the records' timestamp",
    "pipeline/clock_set_back.py": "whether it was set back: Spark waits by it for the next trigger",
    "pipeline/rehearsal_checkpoints.py": "how old what standbys left behind is; no checkpoint of the pipeline",
    "reader/fence.py": "how long the process stood still, the machine's sleep too, by a clock that nobody sets (CLOCK_BOOTTIME)",
    "reader/stores/epochs.py": "epochs rise by time, and by one where the clock does not",
    "reader/stores/memory.py": "leases, and how long ids are kept",
    "reader/stores/sqlite.py": "leases, and how long ids are kept",
    "training.py": "how old what a killed training left behind is",
    "transaction/driver.py": "the records' timestamp, where the row has none; the age of a batch 0 whose sink was not opened",
    "verify/cluster/node.py": "when a node was started, for the report",
    "verify/cluster/spark.py": "since when workers were heard by a master that woke",
    "verify/cluster/transaction_log.py": "when an entry of a private cluster's transaction log was written",
    "verify/engines/lines.py": "when an engine said something, for the report",
    "verify/oracle/whole.py": "another time than the batches had, to see whether time makes a difference to a plan",
    "verify/running/course.py": "when a driver was struck, and when the last one ended, for the report",
    "verify/running/driver.py": "when a JVM was struck, for the report",
    "verify/running/supervisor.py": "when a driver took a step that it was held at, for the report",
    "verify/running/timeline.py": "the report's time, and whether the clock was set meanwhile",
}
"""All of the code that reads a wall clock, and what for. PostgreSQL and Redis read their server's for leases and kept ids."""

CLOCKS = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "clock_gettime", "clock_gettime_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def reads_a_clock(tree: ast.AST) -> bool:
    """By a call as in ``time.time()``, by a reference as in ``default_factory=time.time``, or by an import of the name itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if node.attr in CLOCKS.get(owner, ()):
                return True
        if isinstance(node, ast.ImportFrom) and node.module == "time" and CLOCKS["time"] & {n.name for n in node.names}:
            return True
    return False


def test_who_reads_a_wall_clock_is_known_and_decides_nothing_of_the_commit_by_it() -> None:
    found = {
        str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if reads_a_clock(ast.parse(file.read_text()))
    }
    assert found == set(READ_A_CLOCK)


@pytest.mark.parametrize(
    "code",
    [
        "time.time()",
        "f(default=time.time)",
        "from time import time_ns",
        "datetime.now(UTC)",
        "datetime.datetime.today()",
    ],
)
def test_any_way_to_read_a_clock_is_seen(code: str) -> None:
    assert reads_a_clock(ast.parse(code))
    assert not reads_a_clock(ast.parse("time.monotonic(); pace.now(); datetime.fromisoformat(text)"))


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Iterator[Move]:
    """Sets this process' clock: by so many seconds, or by all of ``SHIFTS_S`` in turn, another one at each look."""
    true, true_ns = time.time, time.time_ns

    def move(*shifts_s: float) -> None:
        turns = itertools.cycle(shifts_s)
        monkeypatch.setattr(time, "time", lambda: true() + next(turns))
        monkeypatch.setattr(time, "time_ns", lambda: true_ns() + int(next(turns) * 1e9))

    yield move
    monkeypatch.undo()


@pytest.mark.parametrize("place", [("HALF", 1), ("COMMIT", 1), ("DONE", 1)])
def test_a_driver_recovers_and_goes_on_whatever_the_clock_says(
    cluster: Cluster, light: LightDrivers, moved: Move, place: tuple[str, int]
) -> None:
    job = light.job(cluster, cluster.make_topic(), batches=5)
    assert light.run(replace(job, interrupt=(*place, int(signal.SIGKILL)))).signal == signal.SIGKILL
    moved(*SHIFTS_S)
    LightDriver(job).run()
    cluster.check_exactly(job.topic, expected_records(5))


@pytest.mark.parametrize("newer_s", [-400 * DAY_S, 400 * DAY_S])
def test_the_driver_that_came_last_is_the_newer_one_whatever_their_clocks_say(
    cluster: Cluster, light: LightDrivers, moved: Move, newer_s: float
) -> None:
    job = light.job(cluster, cluster.make_topic(), batches=4)
    older, newer = LightDriver(job), LightDriver(job)
    moved(-newer_s)
    coordinator = older.open()
    older.run_batch(coordinator, 0)
    moved(newer_s)
    newer.run()
    moved(-newer_s)
    with closing(older), pytest.raises(Fenced):
        older.run_batch(coordinator, 1)
    cluster.check_exactly(job.topic, expected_records(4))


def test_the_two_ends_whatever_the_clock_says(v2: Cluster, tmp_path: Path, moved: Move) -> None:
    topic, file = v2.make_topic(), tmp_path / "ledger.db"
    moved(*SHIFTS_S)
    for first in range(0, len(EVENTS), 20):  # three lives
        with onceflow.Writer(bootstrap_servers=v2.servers, source="shop", transactional_id=topic) as writer:
            for block in (EVENTS[first : first + 10], EVENTS[first + 10 : first + 20]):
                with suppress(ZeroDivisionError), writer.transaction():
                    send(writer, topic, block)
                    raise ZeroDivisionError
                with writer.transaction():
                    send(writer, topic, block)
        book_all(v2, topic, file)
    with closing(sqlite3.connect(file)) as ledger:
        assert sorted(int(text) for (text,) in ledger.execute("SELECT event FROM ledger")) == list(range(len(EVENTS)))


def send(writer: Any, topic: str, block: list[str]) -> None:
    for text in block:
        writer.send(topic, text.encode(), key=text, id=text)


def book_all(cluster: Cluster, topic: str, file: Path) -> None:
    cluster.stable_end(topic)  # the last block is committed, and its marker may not be there yet
    with closing(sqlite3.connect(file)) as ledger:
        ledger.execute("CREATE TABLE IF NOT EXISTS ledger (event TEXT)")
    reader = onceflow.Reader(topic, group=topic, store=f"sqlite:///{file}", bootstrap_servers=cluster.servers)

    @reader.handler
    def book(event: Any, tx: Any) -> None:
        tx.execute("INSERT INTO ledger VALUES (?)", (event.value.decode(),))

    reader.run(until_end=True)


def test_epochs_of_a_store_rise_though_its_clock_goes_back(tmp_path: Path, moved: Move) -> None:
    """Who woke up after a newer owner took the partition is refused, though by the clock he is the newer one."""
    older, newer = (SqliteStore(tmp_path / "store.db") for _ in range(2))
    for store in (older, newer):
        store.open("group", Retention())
    with closing(older), closing(newer):
        moved(400 * DAY_S)
        (of_older,) = older.take("sales", [0], "older")
        moved(-400 * DAY_S)
        (of_newer,) = newer.take("sales", [0], "newer")
        assert of_newer.epoch > of_older.epoch
        with pytest.raises(StoreFenced), older.unit() as unit:
            unit.admit(of_older, [EventKey(0, "shop", "order-1")])


def test_control_what_decides_by_the_clock_is_broken_by_it(tmp_path: Path, moved: Move) -> None:
    """A lease. It guards effects outside of the store alone, where a source has sent one event to two partitions."""
    store = SqliteStore(tmp_path / "store.db")
    store.open("group", Retention())
    key = EventKey(0, "shop", "order-1")
    with closing(store):
        one, other = store.take("sales", [0, 1], "reader")
        assert store.claim(one, [key], 60.0) == [Standing.NEW]
        assert store.claim(other, [key], 60.0) != [Standing.NEW], "it is held"
        moved(3600.0)
        assert store.claim(other, [key], 60.0) == [Standing.NEW], "its lease is over, and its holder alive"
