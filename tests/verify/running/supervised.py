"""The scripted engine under its supervisor."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import psutil
import pytest

from onceflow.config import load
from onceflow.verify.engines import Engine
from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.result import Lane
from onceflow.verify.running import driver as driver_module
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.life import Life
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.timeline import Timeline
from onceflow.verify.running.world import PrivateWorld
from onceflow.verify.workload import builtin_plan

SCRIPT = Path(__file__).with_name("scripted.py")
ENGINE = Engine("scripted", "scripted", (sys.executable, str(SCRIPT)), visible_from="COMMIT")
TWO_PROCESSES = (sys.executable, str(SCRIPT.with_name("two_processes.py")))
"""What runs the script that follows in two processes, the second of which is called ``java``."""
IN_TWO = replace(ENGINE, command=(*TWO_PROCESSES, str(SCRIPT)))
BESIDE_JAVA = (sys.executable, str(SCRIPT.with_name("beside_java.py")))
"""What runs the script that follows in the first of two processes; the second does nothing."""
IN_THE_FIRST = replace(ENGINE, command=(*BESIDE_JAVA, str(SCRIPT)))


@contextmanager
def supervised(
    directory: Path,
    *,
    before: Callable[[Message | None], None] = lambda message: None,
    standbys: int = 1,
    engine: Engine = ENGINE,
    passed_batches: int = 50,
    **behaviour: str,
) -> Iterator[DriverProcess]:
    """Afterwards nothing may be left of it. ``before`` is called with each message before the supervisor hears it.

    Its batches take 50 ms, and an order to hold may take more to arrive: ``passed_batches`` may pass, more than of a real engine.
    """
    checkpoint = directory / "checkpoint"
    checkpoint.mkdir()
    plan = directory / "plan.toml"
    table = "".join(f'{name} = "{value}"\n' for name, value in behaviour.items())
    plan.write_text(f'checkpoint = "{checkpoint}"\n[spark]\n{table}')

    def launch(number: int, heard: Callable[[Message | None], None]) -> EngineProcess:
        def told(message: Message | None) -> None:
            before(message)
            heard(message)

        return EngineProcess(engine.command, plan, directory / f"scratch-{number}", directory / f"log-{number}", told)

    with (
        patch.object(driver_module, "_PASSED_BATCHES", passed_batches),
        DriverProcess(engine, launch, Timeline(), standbys) as driver,
    ):
        driver.start()
        yield driver
    assert not processes_of(plan)
    assert not list(directory.glob("scratch-*"))


def world_of(driver: DriverProcess, directory: Path) -> PrivateWorld:
    """A world without Kafka, for faults that ask nothing of it. A transaction timeout lasts a second in it."""
    plan = load(builtin_plan(), {"ONCEFLOW_OUTPUT__TRANSACTION_TIMEOUT": "1 second"}).plan
    nothing: Any = None
    timeline = driver._timeline
    checkpoint = directory / "checkpoint"
    return PrivateWorld(nothing, None, driver, plan, checkpoint, (), (), timeline, threading.Event())


def end_by_itself(driver: DriverProcess) -> None:
    """Nobody has asked the running one to end."""
    life = driver._alive()
    os.killpg(life.running.pid, signal.SIGKILL)
    assert driver._await(lambda: life.ended, 60)


def ends_while_a_step_is_awaited(driver: DriverProcess, patch: pytest.MonkeyPatch, failure: str = "") -> None:
    """The running one ends by itself whenever a fault waits for it to come to a step; with a code of ``failure`` it tells why."""
    await_held = driver._await_held

    def ends(life: Life, *given: Any) -> None:
        if failure:
            driver._heard(life, Message(Told.FAILED, code=failure, error="as the test says"))
        end_by_itself(driver)
        await_held(life, *given)

    patch.setattr(driver, "_await_held", ends)


def processes_of(plan: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if str(plan) in (each.info["cmdline"] or ())]


def output(directory: Path) -> list[tuple[int, int]]:
    """The numbers written, and by which process."""
    lines = (directory / "checkpoint" / "output").read_text().splitlines()
    return [cast("tuple[int, int]", tuple(map(int, line.split()))) for line in lines]


def repeated(directory: Path) -> set[int]:
    """The numbers that were written more than once."""
    return {number for number, count in Counter(number for number, _ in output(directory)).items() if count > 1}


def writers(directory: Path) -> set[int]:
    return {pid for _, pid in output(directory)}


def await_standby(driver: DriverProcess) -> None:
    assert driver._await(lambda: bool(driver._standbys) and driver._standbys[0].is_warm, 60)


def notes_of(driver: DriverProcess) -> list[str]:
    return [each.name for each in driver._timeline.happenings() if each.lane is Lane.NOTE]


def jvm_of(driver: DriverProcess) -> int:
    jvm = driver._alive().running.jvm
    assert jvm is not None
    return jvm
