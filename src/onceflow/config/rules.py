"""Rules between a plan's settings, checked before any I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from onceflow.config.lines import Path
from onceflow.config.model import Plan, Source, Transform
from onceflow.kafka import settings_check
from onceflow.kafka.names import PROBE_TOPIC, PROGRESS_TOPIC, taken_by
from onceflow.kafka.options import KNOWN, REFUSED

Mistake = tuple[Path, str]


SOURCE_OPTIONS = (
    "minPartitions",
    "maxRecordsPerPartition",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.records",
    "kafka.receive.buffer.bytes",
)
"""What a source's ``options`` may hold: speed, not correctness."""

_BY_FIELD = {
    "subscribe": "topics",
    "subscribePattern": "pattern",
    "assign": "topics",
    "startingOffsets": "starting_offsets",
    "maxOffsetsPerTrigger": "max_offsets_per_trigger",
}
_REFUSED_SOURCE_OPTIONS = {
    "failOnDataLoss": "records that vanished before they were read would be passed over in silence",
    "includeHeaders": "it is always on: the column _headers",
    **{option: f"give it as {name}" for option, name in _BY_FIELD.items()},
}


def mistakes_of(plan: Plan) -> list[Mistake]:
    """Every broken rule, with the path of the setting to change."""
    checks = (_name, _views, _sources, _offsets, _sinks, _trigger, _cluster, _topics, _loops, _spark)
    return [mistake for check in checks for mistake in check(plan)]


def _name(plan: Plan) -> Iterator[Mistake]:
    if why_not := taken_by(plan.name):
        yield ("name",), f"{plan.name!r}: {why_not}"


def _views(plan: Plan) -> Iterator[Mistake]:
    """Names are unique, and each sink's view exists."""
    seen: dict[str, str] = {}
    for kind, parts in (("source", plan.source), ("transform", plan.transform)):
        for index, part in enumerate(parts):
            assert isinstance(part, Source | Transform)
            if part.name.lower() in seen:
                yield (kind, index, "name"), f"{part.name!r} is the name of a {seen[part.name.lower()]} already"
            seen.setdefault(part.name.lower(), kind)
    for index, sink in enumerate(plan.sink):
        if sink.from_.lower() not in seen:
            close = difflib.get_close_matches(sink.from_.lower(), seen, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(seen)}"
            yield ("sink", index, "from"), f"no source or transform is named {sink.from_!r}; {hint}"


def _sources(plan: Plan) -> Iterator[Mistake]:
    for index, source in enumerate(plan.source):
        where: Path = ("source", index)
        if bool(source.topics) == bool(source.pattern):
            yield (*where, "topics"), "give either topics or pattern"
        if source.pattern and not _compiles(source.pattern):
            yield (*where, "pattern"), f"{source.pattern!r} is not a regular expression"
        if source.format == "json" and source.schema_ is None:
            yield (*where, "schema"), 'is missing: format "json" needs one, as in "id INT, name STRING"'
        if source.format == "raw" and source.schema_ is not None:
            yield (*where, "schema"), 'has no effect with format "raw"'
        if source.format == "raw" and source.on_malformed != "fail":
            yield (*where, "on_malformed"), 'has no effect with format "raw"'
        for name in source.options:
            yield from (((*where, "options", name), text) for text in _source_option(name))


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _source_option(name: str) -> list[str]:
    plain = name.removeprefix("kafka.")
    if name in SOURCE_OPTIONS:
        return []
    if name in _REFUSED_SOURCE_OPTIONS:
        return [f"cannot be set: {_REFUSED_SOURCE_OPTIONS[name]}"]
    if name.startswith("kafka.") and plain in KNOWN:
        return ["all sources and sinks are on one cluster: set it in [kafka]"]
    if name.startswith("kafka.") and plain in REFUSED:
        return [f"cannot be set: {REFUSED[plain]}"]
    close = difflib.get_close_matches(name, SOURCE_OPTIONS, n=1)
    return [f"unknown option{f', did you mean {close[0]}?' if close else ''}"]


def _offsets(plan: Plan) -> Iterator[Mistake]:
    for index, source in enumerate(plan.source):
        if isinstance(source.starting_offsets, str):
            continue
        given = set(source.starting_offsets)
        for topic in sorted(given - set(source.topics)) if source.topics else ():
            yield ("source", index, "starting_offsets"), f"{topic} is not among topics"
        for topic in sorted(set(source.topics) - given):
            yield ("source", index, "starting_offsets"), f"{topic} is missing"


def _sinks(plan: Plan) -> Iterator[Mistake]:
    for index, sink in enumerate(plan.sink):
        if (sink.topic is None) == (sink.topic_expr is None):
            yield ("sink", index, "topic"), "give either topic (a name) or topic_expr (an SQL expression)"


def _trigger(plan: Plan) -> Iterator[Mistake]:
    interval, timeout = plan.trigger.processing_time, plan.output.transaction_timeout
    if interval is not None and plan.trigger.available_now:
        yield ("trigger", "available_now"), "processing_time is given too; keep one of them"
    if interval is not None and timeout < interval:
        yield (
            ("output", "transaction_timeout"),
            f"{timeout} is below the trigger's processing_time of {interval}: a batch of so much data may take as "
            "long, and the broker would abort it",
        )
    if timeout.ms < 1000:
        yield ("output", "transaction_timeout"), f"{timeout} is too short for any batch; at least 1 second"


def _cluster(plan: Plan) -> Iterator[Mistake]:
    if plan.kafka.bootstrap_servers is None:
        for name in plan.kafka.options:
            yield ("kafka", name), "there are no bootstrap_servers: the embedded broker takes no client options"
        return
    for name, text in settings_check.mistakes_of(plan.kafka.bootstrap_servers, plan.kafka.options):
        yield ("kafka", name), text.removeprefix(f"{name}: ")


def _topics(plan: Plan) -> Iterator[Mistake]:
    read: dict[str, int] = {}
    for index, source in enumerate(plan.source):
        for topic in source.topics:
            if topic in read:
                yield (
                    ("source", index, "topics"),
                    f"{topic} is read by source[{read[topic]}]: use its view twice",
                )
            read.setdefault(topic, index)
    reserved = [(("source", i, "topics"), t) for i, s in enumerate(plan.source) for t in s.topics]
    reserved += [(("sink", i, "topic"), s.topic or "") for i, s in enumerate(plan.sink)]
    for where, topic in reserved:
        if topic in (PROGRESS_TOPIC, PROBE_TOPIC):
            yield where, f"{topic} holds onceflow's own progress"
        if topic in (".", ".."):
            yield where, f"{topic!r} is no topic name"


def _loops(plan: Plan) -> Iterator[Mistake]:
    """What a topic_expr gives is looked at when it runs (``pipeline/loops.py``)."""
    for index, sink in enumerate(plan.sink):
        if sink.topic is None:
            continue
        readers = [source.name for source in plan.source if _reads(source, sink.topic)]
        if readers and not sink.feeds_back:
            yield (
                ("sink", index, "topic"),
                f"{sink.topic} is read by source {readers[0]}: each record would come back as input, without end; if that is "
                "meant, set feeds_back = true",
            )
        if sink.feeds_back and not readers:
            yield ("sink", index, "feeds_back"), f"no source reads {sink.topic}"


def _reads(source: Source, topic: str) -> bool:
    if source.pattern is not None:
        return _compiles(source.pattern) and re.fullmatch(source.pattern, topic) is not None
    return topic in source.topics


def _spark(plan: Plan) -> Iterator[Mistake]:
    full: dict[str, str] = {}
    for name in plan.spark:
        other = full.setdefault(name.removeprefix("spark."), name)
        if other != name:
            yield ("spark", name), f"is given as {other} too; keep one of them"
    for name, value in plan.spark.items():
        if name.removeprefix("spark.") == "sql.streaming.stateStore.checkpointFormatVersion" and value != "2":
            yield ("spark", name), "must be 2: with 1, a late task of an old driver can replace committed state"
