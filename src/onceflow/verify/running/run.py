"""One run of one engine: a world is made, disturbed, brought to rest, read to its end and judged.

::

    1 world      cluster, topics, the plan on private places, a driver with a warm standby
    2 work       the writer writes, readers read, the schedule injects faults; until the time is over
    3 rest       faults end, input ends, the pipeline catches up with the last committed input and stops in order
    4 look       everything is read from its beginning to its end; ends, last stable offsets and positions are noted
    5 judge      the oracle says what the output must be, the checker what is wrong with the history
"""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from onceflow.errors import OnceflowError, PipelineStuck, VerificationError
from onceflow.transaction.questions import ANCHOR_TOPIC
from onceflow.verify.checker.verdict import check_history
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.cluster.producer_ids import FORGET_SOON
from onceflow.verify.effects.job import Job
from onceflow.verify.engines import Engine
from onceflow.verify.engines.lines import Message
from onceflow.verify.faults.catalog import Fault
from onceflow.verify.faults.checkpoint import STATELESS, keeps_state
from onceflow.verify.history import Recorder
from onceflow.verify.recording import (
    Observed,
    ProgressWatcher,
    ReadCommittedRecorder,
    StableWatcher,
    observe,
    read_all,
    read_log,
)
from onceflow.verify.recording.beside import Beside
from onceflow.verify.recording.ends import ends_of
from onceflow.verify.recording.log import WHOLE_GROUP_LOG, Log
from onceflow.verify.recording.tables import last_offsets, of_topics
from onceflow.verify.report.text import counted
from onceflow.verify.result import Encounter, Lane, Lost, RunResult
from onceflow.verify.running.driver import DriverProcess
from onceflow.verify.running.encounters import Coming, in_vain, lack
from onceflow.verify.running.explained import explained
from onceflow.verify.running.interrupted import raise_if_interrupted
from onceflow.verify.running.logs import with_ends_of_logs
from onceflow.verify.running.outcome import Raw, outcome, versions
from onceflow.verify.running.place import Place, place
from onceflow.verify.running.private_plan import private_plan, write_plan
from onceflow.verify.running.process import EngineProcess
from onceflow.verify.running.progress import Progress, seldom
from onceflow.verify.running.purged import PurgedEntries
from onceflow.verify.running.readers import EffectReaders, effect_readers
from onceflow.verify.running.recovery import Strike
from onceflow.verify.running.schedule import Turn
from onceflow.verify.running.settings import Settings
from onceflow.verify.running.supervised import SupervisedDriver
from onceflow.verify.running.timeline import Timeline
from onceflow.verify.running.topics import create_topics
from onceflow.verify.running.users_words import in_the_users_words
from onceflow.verify.running.watch import Watch
from onceflow.verify.running.world import PrivateWorld, committed_end
from onceflow.verify.workload import InputWriter, inputs_for

if TYPE_CHECKING:
    from onceflow.verify.cluster.spark import SparkCluster

_LOCAL = {"spark.master": "local[2]"}
_FIRST_BATCH_S = 600.0
_CATCH_UP_S = 600.0
_STOP_S = 300.0
_HANDLED_S = 120.0  # a reader finds a partition that a fault has added soon, and then handles what is in it
_PATIENCE_S = 300.0
_SEEN_S = 60.0
_LEAST_RATE = 100.0  # messages a second; a slower machine is of no use


def run(settings: Settings, engine: Engine, progress: Progress) -> RunResult:
    """Whatever goes wrong is in the result's failures: what the other engines showed still counts."""
    timeline = Timeline(lambda text: progress.line(f"  {text}"))
    progress.line(f"{engine.title}: starting {settings.brokers} broker(s), seed {settings.seed}")
    try:
        with place(settings.directory, engine.name) as files:
            result = _run_in(files, settings, engine, progress, timeline)
            return with_ends_of_logs(result, files.directory) if settings.directory is None else result
    except OSError as error:
        raise_if_interrupted(error)
        progress.line(f"broken off: {_in_full(error)}")
        return unfinished(settings, engine, timeline, [explained(error)])


def _run_in(files: Place, settings: Settings, engine: Engine, progress: Progress, timeline: Timeline) -> RunResult:
    failures: list[str] = []
    result: RunResult | None = None
    try:
        with _world(settings, engine, files, timeline) as world:
            raw = Raw(engine, world, failures=failures)
            _work(settings, files, world, raw, progress)
            progress.line("judging: every batch is replayed without faults")
            result = outcome(settings, files, raw, seldom(progress, "replayed {} of {} batches"))
    except Exception as error:  # noqa: BLE001  also what only a bug can raise: a report that says so is better than none
        raise_if_interrupted(error)
        progress.line(f"broken off: {_in_full(error)}")
        failures.append(explained(error))
        if result is not None:  # and so the run had gone to its end: what was found in it stays found
            left = f"what the run was made of did not end in order: {explained(error)}"
            result = replace(result, weaknesses=(*result.weaknesses, left))
    return result or unfinished(settings, engine, timeline, failures)


def unfinished(settings: Settings, engine: Engine, timeline: Timeline, failures: list[str]) -> RunResult:
    """The result of a run that left nothing to be judged."""
    return RunResult(
        engine=engine.title,
        pipeline=settings.pipeline,
        seed=settings.seed,
        faults=tuple(fault.name for fault in settings.faults),
        began_at=timeline.began_at,
        seconds=timeline.seconds(),
        verdict=check_history(Recorder().table()),
        happenings=timeline.happenings(),
        versions=versions(settings),
        failures=tuple(dict.fromkeys(failures)),
        judged=engine.judged,
        held_to_goals=settings.held_to_goals,
        command=settings.command,
    )


def _in_full(error: Exception) -> str:
    """With the way that a bug took."""
    return str(error) if isinstance(error, OnceflowError) else "".join(traceback.format_exception(error))


# ------------------------------------------------------------------------------------------------------------ 1 world


@contextmanager
def _world(settings: Settings, engine: Engine, files: Place, timeline: Timeline) -> Iterator[PrivateWorld]:
    cluster = KafkaCluster(
        files.kafka,
        brokers=settings.brokers,
        transaction_version=settings.transaction_version,
        config={**FORGET_SOON, **WHOLE_GROUP_LOG},
        wire=settings.wire,
        between=settings.between,
        seed=settings.seed,
    )
    with cluster as kafka, _spark(settings, files) as spark:
        topics = dict.fromkeys(settings.topics_out, settings.partitions_out)
        topics |= dict.fromkeys(settings.topics_in, settings.partitions_in)
        create_topics(kafka.direct_servers, topics, brokers=settings.brokers)
        plan = private_plan(
            settings.plan,
            bootstrap_servers=kafka.bootstrap_servers,
            checkpoint=files.checkpoint,
            spark=_LOCAL if spark is None else {**spark.settings, "spark.master": spark.master_url},
            trigger_ms=settings.trigger_ms,
        )
        write_plan(plan, files.plan)
        launch = partial(_launch, engine, files)
        words = partial(in_the_users_words, private=files.plan, pipeline=settings.pipeline)
        driven = SupervisedDriver if engine.leads else DriverProcess
        with (
            driven(engine, launch, timeline, settings.standbys, words) as driver,
            _readers(settings, files, kafka.direct_servers, timeline) as readers,
        ):
            yield PrivateWorld(
                kafka, spark, driver, plan, files.checkpoint, settings.topics_in, settings.topics_out, timeline,
                threading.Event(), readers=readers, made=topics,
            )  # fmt: skip


@contextmanager
def _spark(settings: Settings, files: Place) -> Iterator[SparkCluster | None]:
    if not settings.spark_workers:
        yield None
        return
    from onceflow.verify.cluster.spark import SparkCluster

    with SparkCluster(files.spark, workers=settings.spark_workers) as cluster:
        yield cluster


@contextmanager
def _readers(settings: Settings, files: Place, servers: str, timeline: Timeline) -> Iterator[EffectReaders | None]:
    if not settings.readers:
        yield None
        return
    job = Job(servers, settings.topics_out, str(files.effects / "effects.db"))
    with effect_readers(files.effects, files.logs, job, timeline, settings.readers) as readers:
        readers.start()
        yield readers


def _launch(
    engine: Engine,
    files: Place,
    number: int,
    heard: Callable[[Message | None], None],
    arguments: tuple[str, ...] = (),
) -> EngineProcess:
    command, scratch = (*engine.command, *arguments), files.scratch(number)
    return EngineProcess(command, files.plan, scratch, files.log(number), heard, leads=engine.leads)


# ------------------------------------------------------------------------------------------------------------- 2 work


def _work(settings: Settings, files: Place, world: PrivateWorld, raw: Raw, progress: Progress) -> None:
    """All that happens while something runs. What goes wrong in it is a failure of the run."""
    servers, clock = world.kafka.direct_servers, world.timeline.seconds
    inputs = inputs_for(settings.plan, settings.topics_by_source, settings.seed, settings.samples)
    everything = (*world.topics_in, *world.topics_out)
    writer = InputWriter(
        servers,
        inputs,
        seed=settings.seed,
        rate=settings.rate,
        most_records=settings.most_records,
        committed=settings.messages,
        clock=clock,
    )
    with ExitStack() as ending:
        reader = ending.enter_context(ReadCommittedRecorder(servers, everything, clock=clock))
        stable = ending.enter_context(StableWatcher(servers, everything, pipeline=world.plan.name, clock=clock))
        committed = ending.enter_context(ProgressWatcher(servers, world.plan.name, clock=clock))
        ending.enter_context(writer)
        purged = PurgedEntries(files.checkpoint, files.purged)
        watch = ending.enter_context(Watch(world, writer, settings.stuck_s, purged))
        if settings.messages is not None:
            progress.line(f"{settings.messages:,} messages are written")
            writer.wait(_PATIENCE_S + settings.messages / _LEAST_RATE)
        progress.line("the cluster runs; the driver starts")
        world.driver.start()
        try:
            _disturb(settings, world, raw, progress)
            _check_disturbed(settings, raw)
            _rest(world, writer, reader, progress)
        except Exception as error:  # of Kafka's client, of the system: the run proves nothing, and says why
            raise_if_interrupted(error)
            if world.driver.is_refused:  # it made nothing that could be looked at
                raise
            raw.failures.append(watch.stuck or explained(error))
            raw.is_stuck = watch.is_still or isinstance(error, PipelineStuck)
        _note_unexplained_ends(world.driver, raw)
        raw.strikes = sorted([*raw.strikes, *_outages(world, raw)], key=lambda strike: strike.at_s)
        raw.sent, raw.committed = _stopped(writer, raw), watch.committed
        raw.stable, raw.progress = _stopped(stable, raw), _stopped(committed, raw)
        raw.seconds, raw.clock_moved_s = clock(), world.timeline.clock_moved_s
        _look(world, raw, reader)


def _stopped(beside: Beside, raw: Raw) -> pa.Table:
    """What it saw, or sent; that it ended by itself is a failure of the run, which is judged all the same."""
    try:
        return beside.stop()
    except Exception as error:  # noqa: BLE001  a progress that cannot be read, say
        raw.failures.append(explained(error))
        return beside.table()


def _disturb(settings: Settings, world: PrivateWorld, raw: Raw, progress: Progress) -> None:
    """Faults, as the schedule has them. It begins with the first batch."""
    if not world.driver.await_batches(1, _FIRST_BATCH_S):
        raise VerificationError(f"no batch was committed within {_FIRST_BATCH_S:.0f} s{_said(world)}")
    faults = [fault for fault in settings.faults if _possible(world, fault)]
    _tell_left_out(settings, world, raw, [fault.name for fault in settings.faults if fault not in faults])
    if faults:
        progress.line("the first batch is committed")
        settings.schedule.await_start(world)
        _check_undisturbed(world)
    progress.line(f"the pipeline runs; {counted(len(faults), 'kind')} of faults {settings.schedule.text}")
    progress.begin("faults", settings.schedule.gauge(world), lambda: _counts(world, raw))
    try:
        for turn in settings.schedule.due(world, faults):
            _inject(world, raw, turn)
    finally:
        progress.end()


def _check_undisturbed(world: PrivateWorld) -> None:
    """Such a run proves nothing, however long it goes on."""
    if world.driver.unexplained:
        raise VerificationError(
            f"before the first fault {world.driver.unexplained[0]}: too much runs beside it, or it is a bug"
        )


def _possible(world: PrivateWorld, fault: Fault) -> bool:
    """A checkpoint that lost batches is resumed with empty state, which leaves nothing to judge of a stateful plan."""
    can_resume = world.driver.engine.resumes and not keeps_state(world.checkpoint)
    return can_resume or STATELESS not in fault.needs


def _tell_left_out(settings: Settings, world: PrivateWorld, raw: Raw, left_out: list[str]) -> None:
    """A judged run that was asked for a fault by its name, and could not suffer it, does not show what was asked for."""
    raw.left_out += left_out
    if left_out:
        world.note(f"left out, for batches that are lost leave nothing to judge here: {', '.join(left_out)}")
    if raw.engine.judged:
        asked = [name for name in left_out if name in settings.mix]
        raw.weaknesses += [
            f"--faults {name}: only a plan without state and an engine that resumes can suffer it" for name in asked
        ]


def _check_disturbed(settings: Settings, raw: Raw) -> None:
    if settings.faults:
        lacks = (settings.schedule.lack(raw.injected), lack(raw.encounters))
        asked = settings.mix if raw.engine.judged else ()
        raw.weaknesses += [each for each in lacks if each] or in_vain(asked, raw.encounters)


def _inject(world: PrivateWorld, raw: Raw, turn: Turn) -> None:
    assert turn.fault is not None
    name, course = turn.fault.name, world.driver.course
    kills, pauses = len(course.strikes), len(course.pauses)
    world.note(turn.fault.text)
    raw.injected += 1
    try:
        with world.bar(name, turn.fault.text) as bar:
            encounter = _encounter(world, raw, turn)
            bar.detail += f". {encounter.text}"
    finally:
        began_at = world.timeline.began_at
        killed = course.strikes[kills:]
        raw.strikes += [Strike(name, each.at - began_at, generation=each.generation) for each in killed]
        raw.strikes += [Strike(name, at - began_at, kills=False) for at in course.pauses[pauses:]]


def _encounter(world: PrivateWorld, raw: Raw, turn: Turn) -> Encounter:
    """Injects the fault, and says what it met.

    It counts from where it struck a driver first, else from where it said that it struck::

        fault    waits for its moment: a second, or until a step comes
        driver   commits the last batch that has output
        fault    strikes: what is behind it has no output
    """
    assert turn.fault is not None
    engine, course = world.driver.engine, world.driver.course
    struck, kills, pauses = len(course.struck), len(course.strikes), len(course.pauses)
    world.strikes_now()
    turn.fault.inject(world, turn.random())
    commits = course.commits
    coming = Coming(
        engine, bool(engine.steps or course.steps_told), world.said, world.said.before,
        course.struck[struck:], course.steps_told - world.said.told,
        batches=commits - raw.commits,
    )  # fmt: skip
    raw.commits = commits
    killed_at = [each.at for each in course.strikes[kills:]]
    strikes = [world.timeline.seconds(at) for at in (*killed_at, *course.pauses[pauses:])]
    at_s = min(strikes, default=world.said.at_s)
    raw.encounters.append(replace(coming.encounter(turn.fault.name, at_s), in_row=turn.in_row))
    world.note(raw.encounters[-1].text)
    return raw.encounters[-1]


def _outages(world: PrivateWorld, raw: Raw) -> list[Strike]:
    """Each time when no driver was left, though none was killed; they are the newest fault's work."""
    found = []
    for at_s in (at - world.timeline.began_at for at in world.driver.course.outages):
        fault = next((each.fault for each in reversed(raw.encounters) if each.at_s <= at_s), "no fault")
        found.append(Strike(fault, at_s, lost=Lost.ENDED))
    return found


def _note_unexplained_ends(driver: DriverProcess, raw: Raw) -> None:
    """Another one has gone on behind each of them, and nothing else would show. Of what stands in the log they leave no doubt."""
    raw.weaknesses += [*_unexplained_conflicts(driver, raw), *driver.unexplained]


def _unexplained_conflicts(driver: DriverProcess, raw: Raw) -> list[str]:
    """Ours stops so where its checkpoint is not the one that is committed, and only a fault may have made it so.

    The next driver resumes, and with a plan without state nothing else would show. A fault that came later explains nothing of
    it, nor one whose moment did not come.
    """
    if not raw.engine.is_ours or not driver.conflicts:
        return []
    return [
        f"{counted(driver.conflicts, 'driver')} ended with PROGRESS_CONFLICT, and no fault had taken anything committed from the "
        "checkpoint"
    ]


def _counts(world: PrivateWorld, raw: Raw) -> str:
    return f"{raw.injected} faults, {world.driver.generation} drivers, {len(world.driver.course.committed_batches)} batches"


def _said(world: PrivateWorld) -> str:
    return f": {world.driver.gave_up}" if world.driver.gave_up else ""


# ------------------------------------------------------------------------------------------------------------- 3 rest


def _rest(world: PrivateWorld, writer: InputWriter, reader: ReadCommittedRecorder, progress: Progress) -> None:
    progress.line("faults end; the pipeline catches up")
    with world.timeline.during(Lane.NOTE, "catching up"):
        world.kafka.heal()
        if world.spark is not None:
            world.spark.heal()
        writer.stop()
        found = ends_of(world.kafka.direct_servers, world.topics_in, least=_partitions(world, reader))
        ends = {(row["topic"], row["partition"]): row["end"] for row in found.to_pylist()}
        world.wait_for(lambda: _has_caught_up(world, ends), "the pipeline reads all of its input", _CATCH_UP_S)
    failure = world.driver.stop(_STOP_S)
    if failure:
        raise VerificationError(failure)


def _has_caught_up(world: PrivateWorld, ends: dict[tuple[str, int], int]) -> bool:
    done = committed_end(world.checkpoint) or {}
    return all(done.get(at, 0) >= end for at, end in ends.items())


def _partitions(world: PrivateWorld, reader: ReadCommittedRecorder) -> dict[str, int]:
    """How many each topic has at least: it was made with so many, or was seen with more since, for a fault added them."""
    found = Counter(world.made)
    for topic, partition in reader.positions:
        found[topic] = max(found[topic], partition + 1)
    return dict(found)


# ------------------------------------------------------------------------------------------------------------- 4 look


def _look(world: PrivateWorld, raw: Raw, reader: ReadCommittedRecorder) -> None:
    """What is there when nothing runs any more. A driver that did not end in order is killed first."""
    world.driver.close()
    world.kafka.heal()
    servers = world.kafka.direct_servers
    everything, clock = (*world.topics_in, *world.topics_out), world.timeline.seconds
    least = _partitions(world, reader)
    raw.observed = observe(servers, (*everything, ANCHOR_TOPIC), world.plan.name, least=least, clock=clock)
    raw.final = read_all(servers, raw.observed.ends, clock=clock)
    if raw.engine.is_ours:
        _read_log(world, raw, raw.observed)
    if behind := reader.behind(raw.final, _SEEN_S):
        places = ", ".join(f"{topic}-{partition}" for topic, partition in behind)
        raw.weaknesses.append(
            f"the reader beside the run did not come to the end of {places}: what it saw proves nothing"
        )
    raw.seen = _stopped(reader, raw)
    if world.readers is not None:
        ends = {at: offset for at, offset in last_offsets(raw.final).items() if at[0] in world.topics_out}
        troubles = world.readers.finish(ends, _HANDLED_S)
        raw.weaknesses += troubles
        raw.effects, raw.handled = world.readers.effects(), not troubles


def _read_log(world: PrivateWorld, raw: Raw, observed: Observed) -> None:
    """What cannot be read of it leaves all else to be judged. Before anything is committed, there is none to be read."""
    if not observed.group and observed.committed.progress is None:
        return
    try:
        raw.log = _log(world, observed)
    except Exception as error:  # noqa: BLE001  of Kafka's client, or of what no release has written before
        raise_if_interrupted(error)
        raw.weaknesses.append(
            f"the attempts of the pipeline are not judged, for its log was not read: {explained(error)}"
        )


def _log(world: PrivateWorld, observed: Observed) -> Log:
    if not observed.group:
        raise VerificationError("the broker that was asked does not list the partition that keeps the pipeline's group")
    written = of_topics(observed.ends, world.topics_out)
    return read_log(world.kafka.direct_servers, written, observed.group, world.plan.name)
