"""The process group of an engine: what it told is heard, it wakes and ends whatever becomes of its leader and of us."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.faults.support import eventually
from tests.verify.running.supervised import (
    ENGINE,
    IN_TWO,
    jvm_of,
    processes_of,
    supervised,
)

from onceflow.errors import VerificationError
from onceflow.verify.engines.lines import Message
from onceflow.verify.running import process as process_module
from onceflow.verify.running import run as running
from onceflow.verify.running.place import Place
from onceflow.verify.running.process import EngineProcess


def was_signalled(pid: int) -> bool:
    """Stopped; or killed, where nobody has waited for what it told."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_all_that_a_driver_told_before_it_was_paused_is_heard(tmp_path: Path) -> None:
    """The thread that hears it is held up from the beginning of a batch until the signal has come."""
    begun = threading.Event()

    def hold_up(message: Message | None) -> None:
        if message is not None and message.step == "WRITE" and message.batch == 2 and not begun.is_set():
            pid = driver.pid
            begun.set()
            eventually(lambda: was_signalled(pid), bool, "the signal")

    with supervised(tmp_path, before=hold_up) as driver:
        assert begun.wait(60)
        driver.pause()
        driver.kill()  # what it told is heard to its end then, whoever is late
        when_paused, to_its_end = driver.course.struck
    assert when_paused == to_its_end


@pytest.mark.parametrize("pause", ["pause", "pause_python"])
def test_who_is_paused_wakes_and_ends_when_the_supervisor_is_killed(tmp_path: Path, pause: str) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.verify.running.supervised import IN_THE_FIRST, supervised\n"
        "with supervised(Path(sys.argv[1]), engine=IN_THE_FIRST) as driver:\n"
        f"    assert driver.await_batches(1)\n    driver.{pause}()\n    print('paused', flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    assert parent.stdout is not None
    with parent:
        assert parent.stdout.readline() == "paused\n"
        left = processes_of(tmp_path / "plan.toml")
        assert left
        os.kill(parent.pid, signal.SIGKILL)
    psutil.wait_procs(left, timeout=60)
    assert not processes_of(tmp_path / "plan.toml")


def test_the_jvm_is_the_process_of_the_group_that_is_called_java(tmp_path: Path) -> None:
    with supervised(tmp_path, engine=IN_TWO) as driver:
        assert driver.await_batches(1)
        (child,) = psutil.Process(driver.pid).children()
        assert jvm_of(driver) == child.pid


def test_who_hears_orders_on_a_socket_ends_when_the_other_end_is_gone_with_what_it_was_told_unread() -> None:
    """For the one who reads there, that end is an error."""
    script = (
        "import threading\nfrom onceflow.verify.engines.conversation import Conversation\n"
        "from onceflow.verify.engines.lines import Message, Told\n"
        "Conversation(0, 0).tell(Message(Told.STARTED))\nthreading.Event().wait()\n"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        engine = subprocess.Popen([sys.executable, "-c", script], stdin=theirs.fileno(), start_new_session=True)
        try:
            theirs.close()
            select.select([ours], [], [])
            ours.close()
            assert engine.wait(60) == -signal.SIGKILL
        finally:
            engine.kill()
            engine.wait()


@pytest.mark.parametrize("leads", [False, True])
def test_who_leads_drivers_says_nothing_of_where_their_spark_puts_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leads: bool
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "of the user")
    files = Place(tmp_path, tmp_path / "logs")
    files.logs.mkdir()
    ended = threading.Event()
    engine = replace(ENGINE, command=("/bin/sh", "-c", "env >&2"), leads=leads)
    process = running._launch(engine, files, 1, lambda message: ended.set())
    assert ended.wait(60)
    process.reap()
    found = [line for line in files.log(1).read_text().splitlines() if line.startswith("SPARK_LOCAL_DIRS=")]
    assert found == ([] if leads else [f"SPARK_LOCAL_DIRS={files.scratch(1)}"])


def left_by_its_leader(
    directory: Path, command: str, heard: list[Message | None]
) -> tuple[EngineProcess, psutil.Process]:
    """What a shell starts behind it before it ends; that has the shell's input and output."""
    shell = ("/bin/sh", "-c", f"exec 3<&0; {command} <&3 & echo $! >&2")
    process = EngineProcess(shell, directory / "plan", directory / "scratch", directory / "log", heard.append)
    eventually(lambda: process.is_running, lambda runs: not runs, "the end of the leader")
    return process, psutil.Process(int(process.log.read_text()))


def test_a_driver_whose_leader_has_ended_is_paused_and_wakes(tmp_path: Path) -> None:
    """A script that has started the engine behind it: that lives, whoever leads its group."""
    behind_a_shell = ("/bin/sh", "-c", 'exec 3<&0; "$@" <&3 &', "sh", *ENGINE.command)
    with supervised(tmp_path, engine=replace(ENGINE, command=behind_a_shell)) as driver:
        assert driver.await_batches(1)
        life = driver._alive()
        eventually(lambda: life.running.is_running, lambda runs: not runs, "the end of the leader")
        assert driver.pause() is life
        assert len(driver.course.pauses) == 1
        life.running.resume()
        assert driver.await_batches(1)


def test_a_group_whose_leader_has_ended_is_killed(tmp_path: Path) -> None:
    heard: list[Message | None] = []
    process, left = left_by_its_leader(tmp_path, "sleep 600", heard)
    assert os.getpgid(left.pid) == process.pid
    process.kill()
    eventually(lambda: was_signalled(left.pid), bool, "its end")
    assert heard == [None]
    assert not (tmp_path / "scratch").exists()


def test_what_stays_beside_its_group_hears_that_nobody_watches_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "END_TIMEOUT_S", 0.2)
    heard: list[Message | None] = []
    process, left = left_by_its_leader(tmp_path, "setsid cat", heard)
    eventually(lambda: os.getpgid(left.pid), lambda group: group == left.pid, "a group of its own")
    with pytest.raises(VerificationError, match="are still there"):
        process.kill()
    assert not (tmp_path / "scratch").exists()
    eventually(
        lambda: heard, lambda found: found == [None], "the end of its output, which comes with that of its input"
    )
