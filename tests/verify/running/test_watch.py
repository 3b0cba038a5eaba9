"""The watch: a pipeline that gets nowhere though nothing disturbs it is given up, and told why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.faults.support import eventually
from tests.verify.running.supervised import supervised, world_of

from onceflow.errors import RequestFailed, VerificationError
from onceflow.verify.result import Lane
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.purged import PurgedEntries
from onceflow.verify.running.watch import Watch
from onceflow.verify.running.world import PrivateWorld


@dataclass
class NoBrokers:
    nodes: tuple[()] = ()


def watched(world: PrivateWorld) -> PrivateWorld:
    nothing: Any = NoBrokers()
    return replace(world, kafka=nothing)


@dataclass
class Input:
    failure: Exception | None = None


def watch_over(world: PrivateWorld, stuck_s: float, failure: Exception | None = None) -> Watch:
    writer: Any = Input(failure)
    return Watch(world, writer, stuck_s, PurgedEntries(world.checkpoint, world.checkpoint.with_name("purged")))


def test_a_driver_that_hangs_is_stuck(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        world = watched(world_of(driver, tmp_path))
        with watch_over(world, 1.0) as watch:
            paused = driver.pause()
            assert paused is not None
            with pytest.raises(VerificationError, match="given up"):
                world.sleep(60)
            paused.running.resume()
        assert (watch.stuck, watch.is_still) == ("[STUCK] no batch for 1 s, though no fault was in its way", True)


def test_that_it_stands_still_is_told_however_often_it_is_found_again(tmp_path: Path) -> None:
    """One that is asked to stop is not given up, so each further look comes to the same."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        paused = driver.pause()
        assert paused is not None
        with patch.object(driver, "give_up") as given_up, watch_over(watched(world_of(driver, tmp_path)), 0.5) as watch:
            eventually(lambda: given_up.call_count, lambda count: count > 2, "further looks")
        paused.running.resume()
    assert watch.is_still


def test_while_a_fault_lasts_nothing_is_stuck(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        world = watched(world_of(driver, tmp_path))
        with watch_over(world, 0.5) as watch, world.timeline.during(Lane.FAULT, "pause"):
            paused = driver.pause()
            assert paused is not None
            world.sleep(1.5)
            paused.running.resume()
            assert driver.await_batches(1)
        assert watch.stuck == ""


def test_a_driver_that_is_given_up_ends_the_run(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        world = watched(world_of(driver, tmp_path))
        with watch_over(world, 60.0) as watch:
            driver.gave_up = "it failed too often"
            with pytest.raises(VerificationError, match="given up"):
                world.sleep(60)
            driver.gave_up = ""
        assert watch.stuck == "it failed too often"


def test_a_watch_that_fails_gives_the_run_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would see any more that the run is stuck."""

    def fail(self: Watch) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(Watch, "_look_at_lag", fail)
    with supervised(tmp_path) as driver:
        world = watched(world_of(driver, tmp_path))
        with watch_over(world, 60.0) as watch, pytest.raises(VerificationError, match="given up"):
            world.sleep(60)
    assert watch.stuck == "the watch over the run failed: OSError: too many open files"


def test_what_spark_is_going_to_purge_is_copied(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        world = watched(world_of(driver, tmp_path))
        (world.checkpoint / "offsets").mkdir(parents=True)
        (world.checkpoint / "metadata").write_text('{"id": "query"}')
        (world.checkpoint / "offsets" / "0").write_text("planned")
        copy = world.checkpoint.with_name("purged") / "query" / "offsets" / "0"
        with watch_over(world, 60.0) as watch:
            world.wait_for(copy.exists, "a copy of the offset log")
        assert (watch.stuck, copy.read_text()) == ("", "planned")


def test_where_no_input_comes_any_more_the_pipeline_is_not_to_blame(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        world = watched(world_of(driver, tmp_path))
        failure = RequestFailed("the writer of the input gets no producer")
        with watch_over(world, 600.0, failure) as watch, pytest.raises(VerificationError, match="given up"):
            world.sleep(60)
        assert watch.stuck == "[REQUEST_FAILED] the writer of the input gets no producer"
        assert not watch.is_still


@pytest.mark.parametrize(
    "wait",
    [lambda driver: driver.kill_at("COMMIT", 5), lambda driver: driver.await_batches(1, 5)],
    ids=["for a step", "for a batch"],
)
def test_who_waits_for_the_driver_hears_that_the_run_is_given_up(
    tmp_path: Path, wait: Callable[[DriverProcess], object]
) -> None:
    """No input comes any more, so that neither a step nor a batch does; in a fault nothing is taken for stuck."""
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        driver.pause()
        world = watched(world_of(driver, tmp_path))
        failure = RequestFailed("the writer of the input gets no producer")
        with (
            world.timeline.during(Lane.FAULT, "kill-driver-at-step"),
            watch_over(world, 600.0, failure),
            pytest.raises(VerificationError, match="the writer of the input gets no producer"),
        ):
            wait(driver)
        assert (driver.course.strikes, driver.is_refused) == ([], False)
