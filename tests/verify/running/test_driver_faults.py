"""Each fault of driver and checkpoint against an engine without any defence: it must break it, else it is no fault."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.light import Job, LightDriver
from tests.verify.running.scripted import NUMBERS
from tests.verify.running.supervised import (
    ENGINE,
    IN_THE_FIRST,
    IN_TWO,
    end_by_itself,
    output,
    repeated,
    supervised,
    world_of,
)

from onceflow.broker import EmbeddedBroker
from onceflow.errors import VerificationError
from onceflow.verify.faults import checkpoint as checkpoint_faults
from onceflow.verify.faults import driver as driver_faults
from onceflow.verify.faults import standbys as standby_faults
from onceflow.verify.faults.catalog import FAULTS, MIXES, Fault
from onceflow.verify.faults.checkpoint import LoseCommitLog, LoseOffsets, TornCheckpointWrite
from onceflow.verify.result import Lane
from onceflow.verify.running import supervisor as supervisor_module
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.world import committed_end

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

# A standby that is killed breaks no output, for it has nothing to do with that: see below for what it breaks. A driver that
# stalls breaks what has a transaction (tests/verify/faults/test_stalled.py).
_ELSEWHERE = {"kill-standby", "stall-driver"}
KINDS = [each for mix in ("driver", "checkpoint") for each in MIXES[mix].values() if each.name not in _ELSEWHERE]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zombie does not end by itself, and is waited for."""
    monkeypatch.setattr(driver_faults, "_ZOMBIE_PATIENCE_S", 1.0)
    monkeypatch.setattr(driver_faults, "_BEYOND_TIMEOUT_S", 0.0)
    monkeypatch.setattr(checkpoint_faults, "_EMPTIED", 0.0)


# A kill in the middle of a batch makes an engine without defence write that batch again. The others must do more than that.
ZOMBIES = ("pause-driver", "pause-jvm", "pause-driver-python", "second-driver", "pause-standby")
LOSSES = {"lose-commit-log": "lost commits/", "lose-offsets": "lost batch ", "torn-checkpoint-write": ""}


def is_broken(fault: str, directory: Path, driver: DriverProcess, injected: int) -> bool:
    found = repeated(directory)
    if fault in ZOMBIES:  # two that write at once; a kill by itself makes a batch be written again
        kills = 2 if fault == "pause-standby" else 1
        return len(found) > kills * NUMBERS * injected
    if (
        fault in LOSSES
    ):  # a batch that was committed; a torn end of a batch is taken for another number, and sends it back to 0
        return any(NUMBERS * batch in found for batch in lost_batches(driver, LOSSES[fault]))
    return bool(found)


def lost_batches(driver: DriverProcess, words: str) -> list[int]:
    notes = [each.name for each in driver._timeline.happenings() if each.lane is Lane.NOTE]
    return [int(note.removeprefix(words).split()[0]) for note in notes if note.startswith(words)] if words else [0]


@pytest.mark.parametrize("fault", KINDS, ids=lambda fault: fault.name)
def test_it_breaks_an_engine_without_defence(tmp_path: Path, fault: Fault) -> None:
    engine = IN_THE_FIRST if fault.name == "pause-driver-python" else IN_TWO
    with supervised(tmp_path, engine=engine) as driver:
        assert driver.await_batches(3)
        world = world_of(driver, tmp_path)
        # Which step, which moment: not every kill breaks it. A loss always does, and not by the kill that comes with it.
        for seed in range(1 if fault.name in LOSSES else 12):
            fault.inject(world, Random(seed))
            assert driver.await_batches(2)
            broken = is_broken(fault.name, tmp_path, driver, seed + 1)
            if broken:
                break
        assert driver.stop() == ""
    assert broken


@pytest.mark.parametrize("is_ours", [True, False])
def test_one_that_goes_on_as_a_zombie_is_killed_and_of_ours_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    """Ours has to find out; for another engine there may be nothing to find."""
    monkeypatch.setattr(driver_faults, "_ZOMBIE_PATIENCE_S", 0.2)
    with supervised(tmp_path, engine=replace(IN_TWO, is_ours=is_ours)) as driver:
        assert driver.await_batches(1)
        first = driver._alive()
        told = pytest.raises(
            VerificationError, match="the first driver did not end by itself within 0 s and was killed"
        )
        with told if is_ours else nullcontext():
            FAULTS["second-driver"].inject(world_of(driver, tmp_path), Random(1))
        assert first.ended
        assert driver.generation == 2


def test_a_standby_that_is_killed_breaks_nothing_and_is_replaced(tmp_path: Path) -> None:
    with supervised(tmp_path, standbys=2) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        world = world_of(driver, tmp_path)
        killed, other = driver._standbys
        FAULTS["kill-standby"].inject(world, Random(1))
        assert killed.ended
        assert driver._standbys[0] is other
        assert driver.awaited(0) == "", "two are warm again"
        assert (world.said.missed, world.said.beside) == ("", "a warm standby killed")
        assert driver.await_batches(1)
        assert (driver.generation, driver.course.strikes, driver.course.outages) == (1, [], [])
        assert driver.stop() == ""
    numbers = [number for number, _ in output(tmp_path)]
    assert numbers == list(range(len(numbers)))


def test_a_killed_standby_breaks_an_engine_whose_standby_leaves_a_lock_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with its name in it, which is removed in order: it bars every next one."""
    monkeypatch.setattr(standby_faults, "_STANDBY_PATIENCE_S", 1.0)
    with supervised(tmp_path, standby="locks") as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        driver.end_in_order()
        assert driver._await(lambda: driver.generation == 2, 60), "in order they follow each other"
        commits = driver.course.commits
        assert driver._await(lambda: driver.has_recovered(commits), 60)
        with pytest.raises(VerificationError, match="another standby is warm: not within"):
            FAULTS["kill-standby"].inject(world_of(driver, tmp_path), Random(1))
        assert driver._await(lambda: driver._standby_losses > 1, 60), "one after the other finds the lock"


@pytest.mark.parametrize(("name", "missed"), [("kill-standby", "no standby"), ("pause-standby", "no warm standby")])
def test_where_no_standby_waits_none_is_struck(tmp_path: Path, name: str, missed: str) -> None:
    with supervised(tmp_path, standbys=0) as driver:
        assert driver.await_batches(1)
        world = world_of(driver, tmp_path)
        FAULTS[name].inject(world, Random(1))
        assert (driver.generation, driver.course.strikes) == (1, [])
    assert world.said.missed == f"{missed} waited"


def test_a_standby_that_is_frozen_is_told_to_take_over_and_wakes_beside_another(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        frozen = driver.pause_standby()
        assert frozen is not None
        first, before = driver._current, frozen.batches
        driver.kill_for(frozen)
        assert first is not None
        assert first.ended
        assert (driver._current, len(driver.course.strikes), driver.course.pauses) == (frozen, 1, [])
        driver.replace(frozen)
        assert driver.await_batches(1), "of the one in its place"
        assert frozen.batches == before
        frozen.running.resume()
        assert driver._await(lambda: frozen.batches > before, 60), "it takes over, and has no defence"
        assert not driver.await_end(frozen, 0.2)


def test_a_standby_that_took_over_before_its_predecessor_was_to_be_killed_is_spared(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (successor,) = driver._standbys
        end_by_itself(driver)
        assert driver._await(lambda: successor.generation == 2, 60)
        driver.kill_for(successor)
        assert not successor.ended
        assert driver.course.strikes == []


def test_a_frozen_standby_is_not_killed_in_place_of_its_predecessor_that_has_just_ended_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_backoff_s", lambda times: 1.0)  # before the next one is started
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        frozen = driver.pause_standby()
        assert frozen is not None
        end_by_itself(driver)
        driver.kill_for(frozen)
        assert (driver._current, frozen.ended, driver.course.strikes) == (frozen, False, [])
        frozen.running.resume()
        assert driver.await_batches(1)


def test_a_standby_that_is_gone_is_not_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with supervised(tmp_path) as driver:
        assert driver._await(lambda: driver.has_recovered(0), 60)
        (dead,) = driver._standbys
        monkeypatch.setattr(DriverProcess, "_warmest", lambda driver: dead)  # nobody has heard of its end
        dead.running.kill()
        assert driver.pause_standby() is None


@pytest.mark.parametrize("name", ["kill-jvm", "kill-driver-python", "pause-jvm", "pause-driver-python"])
def test_a_driver_without_a_jvm_is_spared(tmp_path: Path, name: str) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(1)
        world = world_of(driver, tmp_path)
        FAULTS[name].inject(world, Random(1))
        assert world.said.missed == "the driver had no JVM yet, or had ended by itself"
        assert (driver.course.strikes, driver.course.pauses, driver.course.struck) == ([], [], [])
        assert driver.await_batches(1)
        assert driver.generation == 1


def test_what_is_lost_is_a_batch_that_would_be_seen_repeated(tmp_path: Path) -> None:
    """Of batches without output none is: an engine that runs one again would pass for one that does not."""
    with supervised(tmp_path, empty="every second one") as driver:
        assert driver.await_batches(3)
        world = world_of(driver, tmp_path)
        for seed in range(8):
            LoseCommitLog().inject(world, Random(seed))
            assert driver.await_batches(2)
        assert driver.stop() == ""
    lost = lost_batches(driver, LOSSES["lose-commit-log"])
    assert lost
    assert not [batch for batch in lost if batch % 2]


@pytest.mark.parametrize(("has_state", "committed"), [(True, False), (True, True), (False, False), (False, True)])
def test_a_planned_batch_that_kafka_has_committed_is_not_lost_where_there_is_state(
    broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path, *, has_state: bool, committed: bool
) -> None:
    """Its driver died before Spark's entry of it was written; state would be lost with it. Without, the next may refuse."""
    checkpoint, name, spared = tmp_path / "checkpoint", topic(1), has_state and committed
    with supervised(tmp_path, engine=replace(ENGINE, is_ours=True)) as driver:
        assert driver.await_batches(1)
        life = driver.hold("WRITE")
        assert life is not None
        assert life.held is not None
        batch = life.held.batch  # it is planned, and not noted as done
        if has_state:
            (checkpoint / "state").mkdir()
        job = Job(broker.bootstrap_servers, name, name, str(tmp_path / "done"), batches=batch + committed)
        LightDriver(job).run()
        kafka: Any = SimpleNamespace(direct_servers=broker.bootstrap_servers)
        world = world_of(driver, tmp_path)
        world = replace(world, kafka=kafka, plan=world.plan.model_copy(update={"name": name}))
        with driver.down():
            LoseCommitLog().inject(world, Random(1))
            left = [
                (checkpoint / log / str(number)).exists()
                for log, number in (("commits", batch - 1), ("offsets", batch))
            ]
            assert driver.lacks_committed == (committed and not has_state)
    assert left == [spared, spared]
    kept, lost = (
        f"commits/{batch - 1} is not that of the newest batch that Kafka has committed",
        f"lost commits/{batch - 1}",
    )
    assert (world.said.missed, world.said.met) == ((kept, "") if spared else ("", lost))


def test_an_empty_entry_explains_a_driver_that_refuses_until_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run proved nothing for it: what is empty cannot be read, and is refused as any checkpoint that is damaged."""
    monkeypatch.setattr(checkpoint_faults, "_EMPTIED", 1.0)
    explained: list[bool] = []

    def awaited(driver: DriverProcess, seconds: float) -> bool:
        explained.append(driver.lacks_committed)
        return False

    with supervised(tmp_path) as driver:
        assert driver.await_batches(2)
        monkeypatch.setattr(DriverProcess, "await_failure_or_batch", awaited)
        world = world_of(driver, tmp_path)
        LoseCommitLog().inject(world, Random(1))
        assert world.said.met.startswith("emptied commits/")
        assert explained == [True]
        assert not driver.lacks_committed
        assert driver.await_batches(1)


def test_without_a_fault_the_engine_repeats_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path) as driver:
        assert driver.await_batches(20)
        assert driver.stop() == ""
    numbers = [number for number, _ in output(tmp_path)]
    assert numbers == list(range(len(numbers)))


def test_the_newest_committed_end_is_that_of_a_batch_that_is_planned_and_done(tmp_path: Path) -> None:
    def entry(number: int, *ends: str) -> None:
        (tmp_path / "offsets" / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *ends]))

    assert committed_end(tmp_path) is None
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    entry(0, '{"a":{"0":5,"1":6}}', "-")
    entry(1, '{"a":{"0":7,"1":6}}', '{"b":{"0":1}}')
    entry(2, '{"a":{"0":9,"1":9}}', '{"b":{"0":2}}')
    assert committed_end(tmp_path) is None
    for number in (0, 1):
        (tmp_path / "commits" / str(number)).write_text("v1\n{}")
    (tmp_path / "commits" / ".1.crc").write_text("")
    assert committed_end(tmp_path) == {("a", 0): 7, ("a", 1): 6, ("b", 0): 1}
    entry(1, '{"a":{"0":8}}', "")  # another engine may end it so
    assert committed_end(tmp_path) == {("a", 0): 8}
    (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"a":{"0"')
    assert committed_end(tmp_path) is None


@pytest.mark.parametrize("readings", [(100, 104), (104, 100)])
def test_a_partition_that_is_read_twice_has_been_read_up_to_where_the_slower_reading_is(
    tmp_path: Path, readings: tuple[int, int]
) -> None:
    write_entry(tmp_path, readings)
    assert committed_end(tmp_path) == {("in", 0): 100}


def write_entry(directory: Path, readings: tuple[int, int]) -> None:
    """A batch that ends at these offsets in its two readings of one partition."""
    for log in ("offsets", "commits"):
        (directory / log).mkdir(parents=True)
    lines = [json.dumps({"in": {"0": end}}) for end in readings]
    (directory / "offsets" / "0").write_text("\n".join(["v1", "{}", *lines, "-"]))
    (directory / "commits" / "0").write_text("v1\n{}")


@pytest.mark.parametrize("fault", [LoseOffsets(), TornCheckpointWrite()], ids=lambda fault: fault.name)
@pytest.mark.parametrize("readings", [(100, 104), (100, 100)])
def test_a_checkpoint_is_spared_without_which_a_resume_is_refused(
    tmp_path: Path, fault: LoseOffsets | TornCheckpointWrite, readings: tuple[int, int]
) -> None:
    agree = readings[0] == readings[1]
    with supervised(tmp_path) as driver, driver.down():
        checkpoint = tmp_path / "its own"
        write_entry(checkpoint, readings)
        before = (checkpoint / "offsets" / "0").read_bytes()
        world = replace(world_of(driver, tmp_path), checkpoint=checkpoint)
        fault.inject(world, Random(1))
        left = checkpoint / "offsets" / "0"
        assert (left.exists() and left.read_bytes() == before) == (not agree)
        assert bool(world.said.met) == driver.lacks_committed == agree
        assert agree or world.said.missed.startswith("two readings of a partition end batch 0 at different offsets")
