"""From what a run left to its result: verdict, recovery times, quantities over time, counts, versions."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.jars import locked
from onceflow.verify.checker.verdict import Verdict, check_history
from onceflow.verify.cluster.placement import GROUPS_TOPIC
from onceflow.verify.engines import Engine
from onceflow.verify.faults.catalog import kills_of_others
from onceflow.verify.history import Recorder
from onceflow.verify.oracle import Expected, expected_output
from onceflow.verify.oracle.how_far import OnBatch
from onceflow.verify.oracle.judging import Judgement, judge
from onceflow.verify.oracle.judging.matching import NOTHING
from onceflow.verify.oracle.judging.positions import judged_looks
from onceflow.verify.recording import Log, Observed, Recorded, holds
from onceflow.verify.recording.log import records_of
from onceflow.verify.recording.tables import PROGRESS, READ, SENT, STABLE, of_topics
from onceflow.verify.recording.transactions import transactions_of
from onceflow.verify.report.text import counted
from onceflow.verify.result import Encounter, Happening, Lane, Recovery, RunResult, Series
from onceflow.verify.running.encounters import met_nothing
from onceflow.verify.running.explained import explained
from onceflow.verify.running.interrupted import raise_if_interrupted
from onceflow.verify.running.new_output import Output, Sights
from onceflow.verify.running.output_behind import no_output_behind
from onceflow.verify.running.place import Place
from onceflow.verify.running.purged import put_back
from onceflow.verify.running.recovery import Strike, longest_hold, others_lost, recoveries
from onceflow.verify.running.revision import revision_since
from onceflow.verify.running.settings import Settings
from onceflow.verify.running.world import PrivateWorld

SILENT_S = (
    2.5  # samples come every quarter of a second; beside a broker that does not answer, every two seconds at best
)
_CLOCK_MOVED_S = 0.5  # more than both looks at the clocks may err by


@dataclass(slots=True)
class Raw:
    """What a run left to be judged; ``failures``, ``is_stuck`` and ``weaknesses`` as of a ``RunResult``."""

    engine: Engine
    world: PrivateWorld
    seconds: float = 0.0
    clock_moved_s: float = 0.0  # see ``Timeline.clock_moved_s``
    injected: int = 0
    left_out: list[str] = field(default_factory=list)  # faults of the mix that this plan or engine cannot suffer
    encounters: list[Encounter] = field(default_factory=list)
    commits: int = 0  # of the driver, when the last fault was over
    strikes: list[Strike] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_stuck: bool = False
    weaknesses: list[str] = field(default_factory=list)
    committed: list[tuple[float, int]] = field(default_factory=list)
    sent: pa.Table = field(default_factory=SENT.empty_table)
    seen: pa.Table = field(default_factory=READ.empty_table)
    final: pa.Table = field(default_factory=READ.empty_table)
    stable: pa.Table = field(default_factory=STABLE.empty_table)
    progress: pa.Table = field(default_factory=PROGRESS.empty_table)
    observed: Observed | None = None
    effects: pa.Table | None = None  # None: no readers ran behind the output
    handled: bool = True  # whether they handled all of it, and ended in order
    log: Log | None = None  # None: nobody has read it, for the engine has no transactions, or it could not be


def outcome(settings: Settings, files: Place, raw: Raw, on_batch: OnBatch = lambda done, total: None) -> RunResult:
    """Judges a run, while its cluster still answers. ``on_batch`` is told how many batches are replayed, and of how many."""
    assert raw.observed is not None
    world, timeline = raw.world, raw.world.timeline
    happenings = until(timeline.happenings(), raw.seconds)
    failures = list(raw.failures)
    expected = _expected(files, raw, failures, on_batch)
    verdict, notes = _verdict(settings, raw, expected, failures)
    seen = _output_sights(raw, verdict)
    output = Output.of(world.driver.course, timeline.began_at, seen)
    final = of_topics(raw.final, world.topics_out)
    doubted = doubted_times(raw.clock_moved_s)
    in_vain = no_output_behind(raw.encounters, expected, output.begun, final, raw.stable)
    faults = tuple(fault.name for fault in settings.faults if fault.name not in raw.left_out)
    return RunResult(
        engine=raw.engine.title,
        pipeline=settings.pipeline,
        seed=settings.seed,
        faults=faults,
        began_at=timeline.began_at,
        seconds=raw.seconds,
        verdict=verdict,
        happenings=happenings,
        recoveries=_recoveries(raw, settings.brokers, output),
        encounters=tuple(raw.encounters),
        series=tuple(_series(raw, seen.at_s)),
        counts=_counts(raw, happenings),
        versions=versions(settings),
        failures=tuple(dict.fromkeys(failures)),
        is_stuck=raw.is_stuck,
        weaknesses=(*raw.weaknesses, *unseen_progress(raw, expected), *([in_vain] if in_vain else [])),
        notes=(*notes, *met_nothing(faults, raw.encounters), *([doubted] if doubted else [])),
        doubted_times=doubted,
        judged=raw.engine.judged,
        held_to_goals=settings.held_to_goals,
        lso_held_s=held_by_the_dead(raw.stable, world.topics_out, raw.strikes, _first_steps(raw)),
        lso_stood_s=stood_for(raw.stable, world.topics_out),
        command=settings.command,
    )


def _first_steps(raw: Raw) -> Mapping[int, float]:
    """When each driver began to act, as ours tell before they do: any other engine need not tell what it does at its start."""
    if not raw.engine.is_ours:
        return {}
    timeline, course = raw.world.timeline, raw.world.driver.course
    return {generation: timeline.seconds(at) for generation, at in course.first_steps.items()}


def doubted_times(clock_moved_s: float) -> str:
    """Why the times of a run may be wrong, all of which are of the wall clock; empty where it was not set meanwhile."""
    if abs(clock_moved_s) <= _CLOCK_MOVED_S:
        return ""
    way = "ahead" if clock_moved_s > 0 else "back"
    return (
        f"the clock of this machine was set {way} by {abs(clock_moved_s):.1f} s while the run went on, or the machine slept: "
        "recoveries, holds, and what came behind which fault may be wrong by so much"
    )


def _recoveries(raw: Raw, brokers: int, output: Output) -> tuple[Recovery, ...]:
    """From the losses of drivers, and from those of others: a driver that goes on without one may be killed meanwhile."""
    lost = (raw.strikes, others_lost(raw.encounters, kills_of_others(brokers)))
    found = [each for strikes in lost for each in recoveries(strikes, output, raw.encounters)]
    return tuple(sorted(found, key=lambda each: each.at_s))


def until(happenings: Iterable[Happening], seconds: float) -> tuple[Happening, ...]:
    """Those of the run itself: what lives on while it is judged ends with it."""
    return tuple(replace(each, ended_s=min(each.ended_s, seconds)) for each in happenings if each.began_s <= seconds)


def _expected(files: Place, raw: Raw, failures: list[str], on_batch: OnBatch) -> Expected | None:
    assert raw.observed is not None
    servers, committed = raw.world.kafka.direct_servers, raw.observed.committed.offsets
    try:
        put_back(files.checkpoint, files.purged)
        return expected_output(
            files.plan, files.checkpoint, servers, files.oracle, committed=committed, on_batch=on_batch
        )
    except Exception as error:  # noqa: BLE001  what stands in the log is judged all the same
        raise_if_interrupted(error)
        failures.append(explained(error))
        return None


def _verdict(
    settings: Settings, raw: Raw, expected: Expected | None, failures: list[str]
) -> tuple[Verdict, tuple[str, ...]]:
    """What the checker says of the run's history, and notes; what could not be judged is added to ``failures``."""
    assert raw.observed is not None
    world = raw.world
    failures += unrecorded_progress(raw.engine, raw.observed, len(world.driver.course.committed_batches))
    grown = grown_topics(raw.observed.ends, world.topics_out, settings.partitions_out)
    recorded = Recorded(
        world.plan.name,
        world.topics_in,
        world.topics_out,
        raw.final,
        raw.observed,
        raw.sent,
        raw.seen,
        raw.progress,
        grown,
        raw.effects,
        raw.handled,
        raw.log,
    )
    for known in (expected, None):  # against the replay, or else as the log alone has it
        try:
            judgement = judge(recorded, known)
        except Exception as error:  # noqa: BLE001  what can be judged counts
            raise_if_interrupted(error)
            failures.append(explained(error))
        else:
            failures += judgement.reasons
            return judgement, judgement.notes
    return check_history(Recorder().table()), ()


def grown_topics(ends: pa.Table, topics: tuple[str, ...], partitions: int) -> frozenset[str]:
    """Those that have more partitions than they were made with: a fault added them."""
    return frozenset(
        each["values"]
        for each in pc.value_counts(of_topics(ends, topics)["topic"].cast(pa.string())).to_pylist()
        if each["counts"] > partitions
    )


def unrecorded_progress(engine: Engine, observed: Observed, batches: int) -> list[str]:
    """Other engines may do without a record of their progress; for onceflow it is what makes a batch happen once."""
    if not engine.is_ours or observed.committed.progress is not None or not batches:
        return []
    return [f"{batches} batches were committed, and no progress is committed with them"]


def unseen_progress(raw: Raw, expected: Expected | None) -> list[str]:
    """A run proves nothing of what was committed meanwhile if nobody saw that, when faults had begun to disturb it.

    Only looks at the progress of the checkpoint's query are judged, but for the first of all, and none where batch ends are not
    known, which a note says::

        a look    progress 1, before any fault; from the first one on each question goes to a broker that does not answer
        faults    tear the progress from its offsets, and mend it again
    """
    assert raw.observed is not None
    progress = raw.observed.committed.progress
    if progress is None or not progress.next_batch or (expected is not None and expected.whole):
        return []
    looks = raw.progress if expected is None else judged_looks(raw.progress, expected.query_id)
    met_s = min((each.at_s for each in raw.encounters if each.met), default=0.0)
    if pc.any(pc.greater_equal(looks["at_s"], met_s)).as_py():
        return []
    since = " behind the first fault that met work" if met_s and len(looks) else ""
    return [
        f"nobody saw the committed progress of this query while the run went on{since}: "
        "whether it was of one batch all the time is not judged"
    ]


# ------------------------------------------------------------------------------------------------- quantities over time


def held_by_the_dead(
    samples: pa.Table, outputs: tuple[str, ...], strikes: Sequence[Strike], first_steps: Mapping[int, float]
) -> float | None:
    """The longest hold of what a driver writes to: the output, and the partition that keeps its group::

        driver 1    has written, and is killed between STORE and COMMIT
        driver 2    fences, and reads the progress: unstable, until the transaction of driver 1 has ended there as well

    Not of the input: transactions that are open there are those of writers that live.
    """
    return longest_hold(of_topics(samples, (*outputs, GROUPS_TOPIC)), strikes, first_steps)


def stood_for(samples: pa.Table, outputs: tuple[str, ...]) -> float | None:
    """The longest time for which one last stable offset of the output kept what is behind it from readers, whatever held it.

    None: nobody looked. 0: it was never seen below the end.
    """
    looked = of_topics(samples, outputs)
    if not len(looked):
        return None
    found = holds(looked)
    return max(pc.subtract(found["ended_s"], found["began_s"]).to_pylist(), default=0.0)


def _output_sights(raw: Raw, verdict: Verdict) -> Sights:
    """When the reader saw each record of the output, and of which batch, as far as it was judged."""
    known = verdict.seen_batch if isinstance(verdict, Judgement) else np.full(len(raw.seen), NOTHING)
    named = raw.seen.append_column("batch", pa.array(known, pa.int64()))
    return first_sights(of_topics(named, raw.world.topics_out))


def first_sights(reads: pa.Table) -> Sights:
    """When each record was seen, in order; one that was given again does not count again."""
    places = reads.set_column(reads.schema.get_field_index("topic"), "topic", reads["topic"].cast(pa.string()))
    first = places.group_by(["topic", "partition", "offset"]).aggregate([("at_s", "min"), ("batch", "min")])
    in_order = first.sort_by("at_s_min")
    return Sights(in_order["at_s_min"].to_numpy(), in_order["batch_min"].to_numpy())


def _series(raw: Raw, output_s: np.ndarray) -> list[Series]:
    return [
        _of("visible output", "records", output_s, np.arange(1, len(output_s) + 1)),
        _distance(raw),
        _lag(raw),
    ]


def _of(name: str, unit: str, at_s: np.ndarray, value: np.ndarray) -> Series:
    return Series(name, unit, pa.array(at_s, pa.float64()), pa.array(value, pa.float64()))


def summed(at_s: pa.ChunkedArray, value: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The sum over the partitions at each time, as floats. What is not known is no number, and not 0::

    a broker is frozen    some partitions answer, others do not    the sum of some is no sum
                          nobody answers, for seconds              a number between two samples, which is none
    """
    table = pa.table({"at_s": at_s, "value": value}).group_by("at_s", use_threads=False)
    sums = table.aggregate([("value", "sum"), ("value", "count")]).sort_by("at_s")
    at, total = sums["at_s"].to_numpy(), sums["value_sum"].to_numpy().astype(np.float64)
    partitions = sums["value_count"].to_numpy()
    total[partitions < np.maximum.accumulate(partitions)] = np.nan
    silent = np.flatnonzero(np.diff(at) > SILENT_S) + 1
    return np.insert(at, silent, (at[silent - 1] + at[silent]) / 2), np.insert(total, silent, np.nan)


def _distance(raw: Raw) -> Series:
    """How far the last stable offsets of the output stand below the ends of the logs."""
    samples = of_topics(raw.stable, raw.world.topics_out)
    distance = pc.subtract(samples["end"], samples["stable"])
    return _of("last stable offset below the end", "offsets", *summed(samples["at_s"], distance))


def _lag(raw: Raw) -> Series:
    """Committed input that no committed batch has read, by offsets."""
    samples = of_topics(raw.stable, raw.world.topics_in)
    at_s, end = summed(samples["at_s"], samples["stable"])
    known = np.array(raw.committed, dtype=np.float64).reshape(-1, 2)
    place = np.searchsorted(known[:, 0], at_s, side="right")
    done = np.append(0.0, known[:, 1])[place]
    return _of("lag", "offsets", at_s, np.maximum(end - done, 0))


# ---------------------------------------------------------------------------------------------------- counts, versions


def _counts(raw: Raw, happenings: Sequence[Happening]) -> Mapping[str, int]:
    """``batches`` are told apart by their number. One may be committed again: numbers begin anew after a lost checkpoint, and an
    engine without defence repeats itself.
    """
    status = raw.sent["status"].cast(pa.string())
    driver = raw.world.driver
    return {
        "input records committed": _number(status, "ok"),
        "input records aborted": _number(status, "fail"),
        "input records in doubt": _number(status, "info"),
        "input records visible": len(of_topics(raw.final, raw.world.topics_in)),
        "output records": len(of_topics(raw.final, raw.world.topics_out)),
        "batches": len(driver.course.committed_batches),
        "commits of batches": sum(each.lane is Lane.BATCH for each in happenings),
        **({"attempts aborted": driver.course.steps_told["ABORT"]} if raw.engine.is_ours else {}),
        "drivers": driver.generation,
        **_counts_of_the_log(raw.log),
        **_counts_of_effects(raw),
        "looks at the progress": pc.count_distinct(raw.progress["look"]).as_py(),
        "faults": raw.injected,
        "faults that met work": sum(each.met for each in raw.encounters),
    }


def _counts_of_the_log(log: Log | None) -> Mapping[str, int]:
    if log is None:
        return {}
    found = transactions_of(log)
    unread = log.batches.filter(pa.array((found.of_batch >= 0) & ~found.is_committed))
    unread = unread.filter(pc.not_equal(unread["topic"].cast(pa.string()), GROUPS_TOPIC))
    return {
        "transactions committed, claims included": found.status.count("ok"),
        "transactions aborted": found.status.count("fail"),
        "transactions left open": found.status.count("info"),
        "output records never committed": records_of(unread),
    }


def _counts_of_effects(raw: Raw) -> Mapping[str, int]:
    if raw.effects is None or raw.world.readers is None:
        return {}
    return {"effects of readers": len(raw.effects), "readers": raw.world.readers.generation}


def _number(column: pa.ChunkedArray, value: str) -> int:
    return int(pc.sum(pc.equal(column, value)).as_py() or 0)


def versions(settings: Settings) -> dict[str, str]:
    """What ran."""
    kafka = next(jar.version for jar in locked("broker") if jar.artifact.startswith("kafka_"))
    return {
        "onceflow": revision_since(settings.revision),
        "Kafka": f"{kafka}, transaction version {settings.transaction_version}",
        "Spark": f"{version('pyspark')}, {_spark(settings.spark_workers)}",
        "Python": platform.python_version(),
    }


def _spark(workers: int) -> str:
    return counted(workers, "worker") if workers else "in the driver's process"
