"""Faults of Spark's master strike what is at work: a supervised driver. See also test_spark_cluster.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.verify.running.injected import injected
from tests.verify.running.supervised import supervised, world_of

from onceflow.verify.faults import spark as spark_faults
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.spark import KillSparkMaster, PauseSparkMaster
from onceflow.verify.running.driver import DriverProcess


class Master:
    """Notes what was done to it, and how many batches were committed by then."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver
        self.done: list[tuple[str, int]] = []
        self.silence_s = 0.1
        self.master = SimpleNamespace(kill=lambda: self._note("kill"), pause=lambda: self._note("pause"))

    def heal(self) -> None:
        self._note("heal")

    def _note(self, what: str) -> None:
        self.done.append((what, self._driver.commits))


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
