"""Faults of Spark's processes: what an executor's death is followed by, and the master's strike a supervised driver at work.

See also test_spark_cluster.py.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Self

import pytest
from tests.faults.support import eventually
from tests.verify.running.injected import injected
from tests.verify.running.supervised import supervised, world_of

from onceflow.verify.faults import spark as spark_faults
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.spark import KillExecutor, KillSparkMaster, PauseSparkMaster
from onceflow.verify.running.driver import DriverProcess


class Executors:
    """Two workers, on which ``count`` processes run. One that ends is replaced when it was looked for ``looks`` times."""

    workers = ("one", "two")

    def __init__(self, count: int, looks: int) -> None:
        self._there = [self._another() for _ in range(count)]
        self._looks = looks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self._there:
            with each:
                each.kill()

    @staticmethod
    def _another() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def executors(self, driver: int) -> list[int]:  # noqa: ARG002  the interface
        running = [each.pid for each in self._there if each.poll() is None]
        if len(running) < len(self._there):
            self._looks -= 1
            if not self._looks:
                self._there.append(self._another())
                running.append(self._there[-1].pid)
        return running

    @property
    def replaced(self) -> bool:
        return self._looks <= 0


def kill_executor(spark: Executors) -> None:
    world: Any = SimpleNamespace(
        spark=spark,
        driver=SimpleNamespace(pid=1),
        note=lambda text: None,
        strikes_now=lambda: None,
        wait_for=lambda condition, what, patience_s: eventually(condition, bool, what, 5.0),
    )
    KillExecutor().inject(world, Random(1))


def test_an_executor_is_waited_for_in_the_place_of_the_killed_one() -> None:
    with Executors(2, looks=3) as spark:
        kill_executor(spark)
        assert spark.replaced


def test_nobody_comes_in_the_place_of_one_of_more_executors_than_workers() -> None:
    """A master that recovered may have given out more than it was asked for; it gives out that much no more."""
    with Executors(3, looks=1_000_000) as spark:
        kill_executor(spark)
        assert not spark.replaced


class Master:
    """Notes what was done to it, and how many batches were committed by then."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver
        self.done: list[tuple[str, int]] = []
        self.silence_s = 0.1
        self.master = SimpleNamespace(kill=lambda: self._note("kill"), pause=lambda: self._note("pause"))

    def heal(self) -> int:
        self._note("heal")
        return 0

    def _note(self, what: str) -> None:
        self.done.append((what, self._driver.course.commits))


MASTERS = pytest.mark.parametrize("fault", [KillSparkMaster(), PauseSparkMaster()], ids=lambda fault: fault.name)


@MASTERS
def test_batches_are_committed_before_there_is_a_master_again(
    tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_faults, "_BEYOND_SILENCE_S", 0.0)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        master: Any = Master(driver)
        found = injected(replace(world_of(driver, tmp_path), spark=master), fault)
    (struck, before), (healed, after) = master.done
    assert (struck, healed) == (fault.name.split("-", maxsplit=1)[0], "heal")
    assert after >= before + 2
    assert found.met


@MASTERS
def test_who_rests_does_not_notice_that_there_is_no_master(
    tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_faults, "_WITHOUT_MASTER_S", 0.1)
    monkeypatch.setattr(spark_faults, "_BEYOND_SILENCE_S", 0.0)
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        master: Any = Master(driver)
        with driver.resting():
            found = injected(replace(world_of(driver, tmp_path), spark=master), fault)
    assert [what for what, _ in master.done][-1] == "heal"
    assert (found.met, found.found) == (
        False,
        "its moment did not come: no batch was run while there was no master",
    )
