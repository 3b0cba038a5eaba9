"""Readers behind the output, killed and frozen at their work: each effect once. And that one who lacks a defence is found out."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.conftest import TopicFactory
from tests.faults.support import eventually
from tests.verify.running.fed import PARTITIONS, PATIENCE_S, WITH_AN_ABORTED_ONE, Behind, fed, readers_behind

from onceflow.broker import EmbeddedBroker
from onceflow.config import load
from onceflow.reader.steps import Step
from onceflow.verify.effects import ledger
from onceflow.verify.effects.job import Job
from onceflow.verify.faults import readers as faults
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.readers import BEHIND, KillReader, PauseReader
from onceflow.verify.running.encounters import NOTHING
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.readers import effect_readers
from onceflow.verify.running.timeline import Timeline
from onceflow.verify.running.world import PrivateWorld
from onceflow.verify.workload import builtin_plan

pytestmark = pytest.mark.faults

SCRIPT = Path(__file__).with_name("undefended_reader.py")


def undefended(variant: str) -> tuple[str, ...]:
    return sys.executable, str(SCRIPT), variant


def world_of(behind: Behind) -> PrivateWorld:
    """A world for faults that ask nothing of a pipeline, and whose driver does nothing."""
    nothing: Any = None
    at_rest: Any = SimpleNamespace(under_way=NOTHING, course=SimpleNamespace(steps_told=Counter()))
    plan = load(builtin_plan(), {}).plan
    return PrivateWorld(
        nothing, None, at_rest, plan, Path(), (), (), behind.timeline, threading.Event(), readers=behind.readers
    )


def drawing(step: Step) -> Random:
    """Chance by which a fault comes at this step."""
    return next(random(seed) for seed in itertools.count() if random(seed).choice(list(BEHIND)) is step)


def random(seed: int) -> Random:
    return Random(seed)


def handled(behind: Behind) -> int:
    return len(ledger.effects_in(behind.file))


def goes_on(behind: Behind) -> None:
    """More is handled than there was, so that what was struck was at work, and somebody is."""
    before = handled(behind)
    eventually(lambda: handled(behind), lambda now: now > before, "more effects", PATIENCE_S)


def struck(behind: Behind, fault: Fault, step: Step) -> str:
    """What the fault has met at this step."""
    goes_on(behind)
    world = world_of(behind)
    fault.inject(world, drawing(step))
    goes_on(behind)
    assert world.said.missed == ""
    return world.said.met


@pytest.fixture
def output(topic: TopicFactory) -> str:
    return topic(PARTITIONS)


def test_killed_and_frozen_at_each_step_each_effect_is_there_once(
    broker: EmbeddedBroker, output: str, tmp_path: Path
) -> None:
    """Also of records that share one id."""
    with readers_behind(broker, output, tmp_path) as behind:
        with fed(broker, output):
            told = [struck(behind, KillReader(), step) for step in BEHIND]
            told += [struck(behind, PauseReader(), step) for step in BEHIND]
        judgement = behind.judged()
        assert (judgement.violations, judgement.reasons, judgement.unproved) == ({}, (), "")
        assert handled(behind) > len(BEHIND) * PARTITIONS
    assert [each.split(" was ")[1].split()[0] for each in told] == ["killed"] * 4 + ["frozen"] * 4
    assert [BEHIND[step] in each for step, each in zip([*BEHIND, *BEHIND], told, strict=True)] == [True] * 8
    zombies = [each for each in told if each.endswith("another had its partitions when it woke")]
    assert len(zombies) == 2, "those that were outside of a transaction of the store"
    assert len(behind.lives()) == 2 + 4, "one more for each that was killed"
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(each.info["cmdline"])]


def test_that_one_waits_which_was_said_too_late_strikes_it_nowhere_else(
    broker: EmbeddedBroker, output: str, tmp_path: Path
) -> None:
    """It was told to go on meanwhile."""
    with readers_behind(broker, output, tmp_path) as behind:
        (first, _) = eventually(lambda: behind.readers._lives, lambda lives: len(lives) == 2, "both", PATIENCE_S)
        with behind.readers._changed:
            first.held = Step.HANDLED.value  # by its word, which came behind the order
        assert behind.readers.hold(Step.HANDLED.value, 0.0, random(0)) is None, "nothing is fed, so nobody comes there"


def test_what_is_in_a_partition_that_is_added_is_handled(broker: EmbeddedBroker, output: str, tmp_path: Path) -> None:
    """Long before librdkafka would look for it by itself, every five minutes."""
    with readers_behind(broker, output, tmp_path) as behind:
        with fed(broker, output):
            goes_on(behind)
        settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(settings)
        admin.create_partitions([NewPartitions(output, PARTITIONS + 1)])[output].result(PATIENCE_S)
        eventually(lambda: admin.list_topics(output).topics[output].partitions, lambda now: PARTITIONS in now, "it")
        producer = Producer(settings)
        producer.produce(output, "late", "key", PARTITIONS)
        assert producer.flush(PATIENCE_S) == 0
        assert behind.judged().violations == {}
        assert PARTITIONS in {place[1] for place in ledger.effects_in(behind.file)}


@pytest.mark.parametrize(
    ("variant", "fault", "step", "found"),
    [
        ("memory", KillReader(), Step.COMMITTED, "effect_repeated"),
        ("behind", KillReader(), Step.COMMITTED, "effect_repeated"),
        ("ahead", KillReader(), Step.POLLED, "effect_missing"),
        ("behind", PauseReader(), Step.POLLED, "effect_repeated"),
    ],
)
def test_control_without_a_defence_the_fault_is_seen_in_the_effects(
    broker: EmbeddedBroker, output: str, tmp_path: Path, variant: str, fault: Fault, step: Step, found: str
) -> None:
    with readers_behind(broker, output, tmp_path, command=undefended(variant)) as behind:
        with fed(broker, output, headers=()):
            struck(behind, fault, step)
        assert set(behind.judged().violations) == {found}


def test_control_who_reads_what_is_not_committed_has_effects_that_nobody_was_to_have(
    broker: EmbeddedBroker, output: str, tmp_path: Path
) -> None:
    with readers_behind(broker, output, tmp_path, count=1, command=undefended("uncommitted")) as behind:
        with fed(broker, output):
            eventually(lambda: handled(behind), lambda now: now > WITH_AN_ABORTED_ONE, "effects", PATIENCE_S)
        assert set(behind.judged().violations) == {"phantom"}


def test_the_undefended_ones_are_good_as_long_as_nothing_happens(
    broker: EmbeddedBroker, output: str, tmp_path: Path
) -> None:
    """So that what the controls show comes of the fault."""
    for variant in ("behind", "ahead"):
        directory = tmp_path / variant
        directory.mkdir()
        with readers_behind(broker, output, directory, count=1, command=undefended(variant)) as behind:
            with fed(broker, output):
                goes_on(behind)
            assert behind.judged().violations == {}


def test_readers_that_do_not_come_to_the_end_are_stuck(broker: EmbeddedBroker, output: str, tmp_path: Path) -> None:
    with readers_behind(broker, output, tmp_path, count=1, command=undefended("idle")) as behind:
        (why,) = behind.readers.finish({(output, 1): 7}, 1.0)
    assert why == f"stuck: the readers have not handled {output}-1 from offset 0 to 7 within 1 s"


def test_one_that_ends_by_itself_for_a_reason_that_lasts_is_a_failure_of_the_run(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    job = Job(broker.bootstrap_servers, ("no-such-topic",), str(tmp_path / "e" / "effects.db"))
    with effect_readers(tmp_path / "e", tmp_path, job, Timeline(), 1) as readers:
        readers.start()
        eventually(lambda: readers.generation, lambda count: count > 1, "another reader", PATIENCE_S)
        failures = readers.finish({}, PATIENCE_S)
    assert "reader 1 ended by itself: [TOPIC_MISSING] " in failures[0]


def test_one_that_ends_by_itself_right_before_the_end_is_a_failure_as_well(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keeper has heard of the end, and takes its files away when the run is over."""
    job = Job(broker.bootstrap_servers, ("no-such-topic",), str(tmp_path / "e" / "effects.db"))
    reaped, over = threading.Event(), threading.Event()
    reap = EngineProcess.reap

    def held_up(process: EngineProcess) -> None:
        reaped.set()
        assert over.wait(PATIENCE_S)
        reap(process)

    monkeypatch.setattr(EngineProcess, "reap", held_up)
    with effect_readers(tmp_path / "e", tmp_path, job, Timeline(), 1) as readers:
        readers.start()
        assert reaped.wait(PATIENCE_S)
        failures = readers.finish({}, PATIENCE_S)
        over.set()
    assert len(failures) == 1
    assert "reader 1 ended by itself: [TOPIC_MISSING] " in failures[0]


def test_a_step_that_does_not_come_strikes_nobody(
    broker: EmbeddedBroker, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_COMES_WITHIN_S", 0.0)
    with readers_behind(broker, output, tmp_path, count=1) as behind:
        for fault in (KillReader(), PauseReader()):
            world = world_of(behind)
            fault.inject(world, drawing(Step.HANDLED))
            assert (world.said.met, world.said.missed) == ("", "no reader came to handled within 0 s")
        with fed(broker, output):
            goes_on(behind)
        assert behind.judged().violations == {}
        assert behind.readers.generation == 1
