"""The options of ``onceflow verify`` as settings; what is wrong with them is said all at once."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onceflow.config import Duration, Plan, PlanFile, load
from onceflow.errors import ConfigurationError
from onceflow.kafka.names import is_topic
from onceflow.verify.directories import is_file, unusable
from onceflow.verify.engines import ENGINES, EXECUTORS, SUPERVISED, Engine, engine_of
from onceflow.verify.faults.brokers import THREE
from onceflow.verify.faults.catalog import Fault, all_names, chosen
from onceflow.verify.faults.checkpoint import STATELESS
from onceflow.verify.faults.driver import SET_TO_WORK
from onceflow.verify.faults.isolated import BETWEEN
from onceflow.verify.faults.network import WIRE
from onceflow.verify.faults.readers import READER, TWO_READERS
from onceflow.verify.faults.spark import SPARK
from onceflow.verify.faults.standbys import STANDBY
from onceflow.verify.running.schedule import ROW, ByTime
from onceflow.verify.running.settings import Settings
from onceflow.verify.running.unread import unread_sources
from onceflow.verify.workload import LEAST_RATE, Record, builtin_plan, columns_of, read_sample

_BOTH = "both"
_ENGINES = {**ENGINES, "executors": EXECUTORS, "supervised": SUPERVISED}
_ROOM = {
    THREE: "--brokers 3",
    BETWEEN: "--brokers 3",
    SPARK: "--spark-workers 2",
    READER: "--readers 2",
    TWO_READERS: "--readers 2",
    STANDBY: "--standbys 1",
    SET_TO_WORK: "another --engine than supervised",
}  # what gives it to a world that has none
SPARK_WORKERS = (0, 2)
_SEEDS = 2**31
_MOST_STANDBYS = max(ROW)  # more faults than that never come in a row


@dataclass(frozen=True, slots=True)
class Options:
    """As the command line has them."""

    pipeline: Path | None
    duration: str
    rate: float
    faults: str
    seed: int | None
    engine: str
    brokers: int
    spark_workers: int
    transaction_version: int
    inputs: Sequence[str]
    outputs: Sequence[str]
    directory: Path | None
    arguments: Sequence[str] = ()
    standbys: int = 1
    readers: int = 2
    one_by_one: bool = False
    held_to_goals: bool = False


def settings_of(options: Options) -> Settings:
    """Raises ConfigurationError with every mistake, those of the plan included."""
    mistakes: list[str] = []
    seconds = _seconds(options.duration, mistakes)
    one_of("--brokers", options.brokers, (1, 3), mistakes)
    one_of("--spark-workers", options.spark_workers, SPARK_WORKERS, mistakes)
    one_of("--transaction-version", options.transaction_version, (1, 2), mistakes)
    one_of("--readers", options.readers, (0, 1, 2), mistakes)
    if not 0 <= options.standbys <= _MOST_STANDBYS:
        mistakes.append(f"--standbys {options.standbys}: from 0 to {_MOST_STANDBYS}")
    if not LEAST_RATE <= options.rate <= 100_000:
        mistakes.append(f"--rate {options.rate:g}: from {LEAST_RATE:g} to 100000 records a second")
    engines = engines_named(options.engine, mistakes)
    if _leads(options) and not options.standbys:
        mistakes.append("--standbys 0: --engine supervised is what onceflow run --standbys 1 and more do")
    names = tuple(name.strip() for name in options.faults.split(",") if name.strip())
    faults, wrong = chosen(names)
    if not names:
        mistakes.append(f"--faults: it names none; give {all_names()}")
    mistakes += wrong or _impossible(names, options)
    mistakes += kept_before(options.directory, engines)
    mistakes += [f"--output {topic}: no topic may be called so" for topic in options.outputs if not is_topic(topic)]
    samples = _samples(options.inputs, mistakes)
    file = _plan(options.pipeline, mistakes)
    if file is not None:
        mistakes += _plan_mistakes(file, samples, options.outputs)
    if mistakes or file is None:
        raise ConfigurationError.of("what is to be verified", mistakes)
    seed = drawn(options.seed)
    return Settings(
        plan=file.plan,
        pipeline="the built-in workload" if options.pipeline is None else str(options.pipeline),
        engines=engines,
        faults=tuple(fault for fault in faults if _is_possible(fault, options)),
        mix=names,
        seed=seed,
        schedule=ByTime(seconds, seed, one_by_one=options.one_by_one),
        rate=options.rate,
        brokers=options.brokers,
        spark_workers=options.spark_workers,
        standbys=options.standbys,
        readers=options.readers,
        transaction_version=options.transaction_version,
        samples=samples,
        output_topics=tuple(options.outputs),
        held_to_goals=options.held_to_goals,
        directory=options.directory,
        arguments=tuple(options.arguments),
    )


def drawn(seed: int | None) -> int:
    """The seed that was given, or one by chance."""
    return secrets.randbelow(_SEEDS) if seed is None else seed


def available(brokers: int, spark_workers: int, readers: int, standbys: int, *, leads: bool = False) -> frozenset[str]:
    """What faults may need and such a world has. ``leads``: its engine starts its drivers by itself."""
    found = {WIRE, STATELESS, "growing topics"}
    found |= {THREE, BETWEEN} if brokers == 3 else set()
    found |= {SPARK} if spark_workers else set()
    found |= {READER} if readers else set()
    found |= {TWO_READERS} if readers > 1 else set()
    found |= {STANDBY} if standbys else set()
    found |= set() if leads else {SET_TO_WORK}
    return frozenset(found)


def _impossible(names: Iterable[str], options: Options) -> Iterator[str]:
    """Faults that were named, and mixes, of which nothing is possible: a run without them would not show what was asked for."""
    for name in names:
        faults, _ = chosen((name,))
        if faults and not any(_is_possible(fault, options) for fault in faults):
            lacking = {need for fault in faults for need in fault.needs} - _room(options)
            room = " and ".join(dict.fromkeys(_ROOM[need] for need in sorted(lacking)))
            yield f"--faults {name}: there is no room for it without {room}"


def kept_before(directory: Path | None, engines: Iterable[Engine]) -> list[str]:
    """A checkpoint and a cluster of an earlier run must not be gone on with."""
    if directory is not None and (reason := unusable(directory)):
        return [f"--keep: {reason}"]
    there = [directory / engine.name for engine in engines if directory is not None]
    return [
        f"--keep: {path} holds an earlier run: remove it, or choose another --out" for path in there if path.exists()
    ]


def _is_possible(fault: Fault, options: Options) -> bool:
    return set(fault.needs) <= _room(options)


def _room(options: Options) -> frozenset[str]:
    return available(options.brokers, options.spark_workers, options.readers, options.standbys, leads=_leads(options))


def _leads(options: Options) -> bool:
    engine = _ENGINES.get(options.engine)
    return engine is not None and engine.leads


def _seconds(text: str, mistakes: list[str]) -> float:
    try:
        seconds = Duration.parse(text).ms / 1000
    except ValueError as error:
        mistakes.append(f"--for {text}: {error}")
        return 0.0
    if seconds <= 0:
        mistakes.append(f"--for {text}: more than 0, for it is the time in which faults come")
    return seconds


def one_of(option: str, value: int, choices: tuple[int, ...], mistakes: list[str]) -> None:
    """Adds to ``mistakes`` that the option takes another value."""
    if value not in choices:
        mistakes.append(f"{option} {value}: {' or '.join(map(str, choices))}")


def engines_named(name: str, mistakes: list[str]) -> tuple[Engine, ...]:
    """What ``--engine`` means; what is wrong with it is added to ``mistakes``."""
    if name == _BOTH:
        return tuple(ENGINES.values())
    if " " in name or "/" in name:
        return _own_engine(name, mistakes)
    if name not in _ENGINES:
        mistakes.append(f"--engine {name}: one of {', '.join((*_ENGINES, _BOTH))}, or the command line of your own")
        return ()
    return (_ENGINES[name],)


def _own_engine(command: str, mistakes: list[str]) -> tuple[Engine, ...]:
    try:
        engine = engine_of(command)
    except ValueError as error:
        mistakes.append(f"--engine {command}: {error}")
        return ()
    program = shutil.which(engine.command[0])
    if program is None:
        mistakes.append(f"--engine {command}: there is no program {engine.command[0]}")
        return (engine,)
    return (replace(engine, command=(str(Path(program).absolute()), *map(_placed, engine.command[1:]))),)


def _placed(word: str) -> str:
    """A file of the user's by its whole path: an engine runs in a directory of its own, as in ``--engine 'python engine.py'``."""
    return str(Path(word).absolute()) if is_file(Path(word)) else word


def _samples(inputs: Iterable[str], mistakes: list[str]) -> Mapping[str, Sequence[Record]]:
    found: dict[str, Sequence[Record]] = {}
    for text in inputs:
        topic, equals, name = text.partition("=")
        if not equals or not topic or not name:
            mistakes.append(f"--input {text}: give it as TOPIC=FILE")
            continue
        if not is_topic(topic):
            mistakes.append(f"--input {text}: no topic may be called {topic!r}")
        if topic in found:
            mistakes.append(f"--input {text}: {topic} has a file already")
        try:
            found[topic] = read_sample(Path(name))
        except ConfigurationError as error:
            mistakes += [f"--input {text}: {each}" for each in error.fields.get("mistakes", (error.message,))]
    return found


def _plan(path: Path | None, mistakes: list[str]) -> PlanFile | None:
    try:
        return load(builtin_plan(), {}) if path is None else load(path, os.environ)
    except ConfigurationError as error:
        what_to_do = f"; {error.action}" if error.action else ""
        mistakes += error.fields.get("mistakes", (f"{error.message}{what_to_do}",))
        return None


def _plan_mistakes(file: PlanFile, samples: Mapping[str, object], outputs: Sequence[str]) -> list[str]:
    """What keeps a plan that is right in itself from being verified."""
    plan = file.plan
    patterns = [source for source in plan.source if source.pattern]
    found = [
        f"source {source.name!r} reads a pattern: name a topic that fits it with --input TOPIC=FILE"
        for source in patterns
        if not any(re.fullmatch(source.pattern or "", topic) for topic in samples)
    ]
    found += [
        f"--input {topic}=...: no source reads this topic; they read {', '.join(_what_is_read(plan))}"
        for topic in samples
        if not any(_is_read(topic, source.topics, source.pattern) for source in plan.source)
    ]
    found += [
        f"source {name!r} is read by no sink, so what is written for it would never be caught up with: leave it out"
        for name in unread_sources(plan)
    ]
    found += _unreadable(plan, samples)
    if any(sink.topic_expr for sink in plan.sink) and not outputs:
        found.append("a sink has a topic_expr: name the topics that it writes with --output TOPIC")
    found += _both_ways(plan, outputs)
    if plan.guarantee != "exactly_once":
        found.append(
            f"guarantee = {plan.guarantee!r}: it promises less than what is verified; only exactly_once can hold"
        )
    return found


def _what_is_read(plan: Plan) -> list[str]:
    topics = sorted({topic for source in plan.source for topic in source.topics})
    return topics + [f"what fits {source.pattern}" for source in plan.source if source.pattern]


def _unreadable(plan: Plan, samples: Mapping[str, object]) -> Iterator[str]:
    """Schemas that Spark may read, and of which no values can be made; a sample needs none, and a pattern has one."""
    for source in plan.source:
        if source.format == "json" and set(source.topics) - samples.keys():
            try:
                columns_of(source)
            except ConfigurationError as error:
                told = error.fields["mistakes"]
                yield from (f"source {source.name!r}: {each}; or give records of its own with --input" for each in told)


def _both_ways(plan: Plan, outputs: Iterable[str]) -> Iterator[str]:
    """Topics that are read and written, of which nobody can say which records are input::

    --output paid, and a source reads paid    the writer's records stand there: output that nothing in the input leads to
    a sink that feeds_back                    each batch makes input for the next one, and no end is ever caught up with
    """
    named = [(f"--output {topic}", topic) for topic in outputs]
    named += [(f"feeds_back, topic = {sink.topic!r}", sink.topic) for sink in plan.sink if sink.topic is not None]
    for what, topic in named:
        readers = [source.name for source in plan.source if _is_read(topic, source.topics, source.pattern)]
        if readers:
            yield f"{what}: source {readers[0]!r} reads this topic, so that output and input could not be told apart"


def _is_read(topic: str, topics: Sequence[str], pattern: str | None) -> bool:
    return topic in topics or (pattern is not None and re.fullmatch(pattern, topic) is not None)
