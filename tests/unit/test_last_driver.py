"""Whether the driver before is dead, with drivers in processes of their own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.support import eventually

from onceflow.pipeline.last_driver import LOCK, DriverLock

PROGRAM = """
import sys
from pathlib import Path
from onceflow.errors import Fenced
from onceflow.pipeline.last_driver import DriverLock
with DriverLock(Path(sys.argv[1]), "orders on here") as lock:
    lock.take()
    print(flush=True)
    match sys.stdin.read():
        case "fail":
            raise RuntimeError
        case "be fenced":
            raise Fenced("by the next one", action="")
"""

Driver = subprocess.Popen[str]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    made.mkdir()
    return made


@pytest.fixture
def start(checkpoint: Path) -> Iterator[Callable[[], Driver]]:
    """Starts drivers of one pipeline on the checkpoint."""
    started: list[Driver] = []

    def begin() -> Driver:
        command = [sys.executable, "-c", PROGRAM, str(checkpoint)]
        driver = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        started.append(driver)
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        return started[-1]

    yield begin
    for driver in started:
        with driver:
            driver.kill()


def has_died(checkpoint: Path, pipeline: str = "orders on here") -> bool:
    return DriverLock(checkpoint, pipeline).take_from_dead()


def until_it_holds(checkpoint: Path) -> None:
    eventually((checkpoint / LOCK).read_bytes, bool, "the lock is held")


def kill(driver: Driver) -> None:
    driver.kill()
    driver.wait()


def test_who_lives_has_not_died_and_who_is_killed_has(checkpoint: Path, start: Callable[[], Driver]) -> None:
    assert not has_died(checkpoint)
    driver = start()
    until_it_holds(checkpoint)
    assert not has_died(checkpoint)
    kill(driver)
    assert has_died(checkpoint)


def test_one_start_alone_is_told(checkpoint: Path, start: Callable[[], Driver]) -> None:
    """The second would end the first."""
    driver = start()
    until_it_holds(checkpoint)
    kill(driver)
    assert [has_died(checkpoint) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("told", "left"), [("", False), ("be fenced", False), ("fail", True)])
def test_who_fails_may_have_left_something_open_and_who_ends_otherwise_has_not(
    checkpoint: Path, start: Callable[[], Driver], told: str, left: bool
) -> None:
    """What is open behind a driver that was fenced is the next one's."""
    driver = start()
    until_it_holds(checkpoint)
    driver.communicate(told)
    assert has_died(checkpoint) is left


def test_the_next_one_holds_it_when_the_one_before_is_gone(checkpoint: Path, start: Callable[[], Driver]) -> None:
    before = start()
    until_it_holds(checkpoint)
    after = start()
    (checkpoint / LOCK).write_bytes(b"")
    kill(before)
    until_it_holds(checkpoint)
    assert not has_died(checkpoint)
    kill(after)
    assert has_died(checkpoint)


def test_who_never_got_it_changes_nothing(checkpoint: Path, start: Callable[[], Driver]) -> None:
    driver = start()
    until_it_holds(checkpoint)
    with DriverLock(checkpoint, "orders on here") as lock:
        lock.take()
    assert not has_died(checkpoint)
    kill(driver)
    eventually(lambda: has_died(checkpoint), bool, "the lock is free, and tells of the one that died")


def test_a_copy_or_another_pipeline_tells_nothing(
    checkpoint: Path, start: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver that they would end may be alive, where it belongs."""
    driver = start()
    until_it_holds(checkpoint)
    copy = checkpoint.with_name("copy")
    shutil.copytree(checkpoint, copy)
    kill(driver)
    assert not has_died(copy)
    assert not has_died(checkpoint, "orders on another cluster")
    with monkeypatch.context() as patched:
        patched.setattr(socket, "gethostname", lambda: "another host, with which it is shared")
        assert not has_died(checkpoint)
    assert has_died(checkpoint)


def test_what_is_not_there_or_not_local_tells_nothing(tmp_path: Path) -> None:
    for directory in (None, tmp_path / "none"):
        with DriverLock(directory, "orders on here") as lock:
            lock.take()
            assert not lock.take_from_dead()
    assert list(tmp_path.iterdir()) == []


def test_a_run_takes_it_once_however_many_queries_it_has(checkpoint: Path) -> None:
    with DriverLock(checkpoint, "orders on here") as lock:
        lock.take()
        until_it_holds(checkpoint)
        lock.take()
        assert not has_died(checkpoint)
    assert (checkpoint / LOCK).read_bytes() == b""
