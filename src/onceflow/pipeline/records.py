"""The sinks of a plan as one DataFrame of Kafka records, so that one transaction writes them all.

Each sink is a projection of its view. Sinks over the same view share one reading of it; different views are united,
and then each branch reads the source for itself (Spark's offset log names the source once per branch, with the same
offsets, since it is one and the same stream).
"""

from __future__ import annotations

from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from onceflow.config import Plan, Sink
from onceflow.pipeline.loops import never_read
from onceflow.pipeline.views import Mistake, Views, words_of
from onceflow.transaction.router import SOURCE_COLUMNS

_BYTES = (StringType, BinaryType, NullType)
_ACCEPTED: dict[str, tuple[tuple[type[DataType], ...], str, str]] = {
    "topic_expr": ((StringType,), "string", "string"),
    "key": (_BYTES, "string or binary", "binary"),
    "value": (_BYTES, "string or binary", "binary"),
    "headers": (_BYTES, "string or binary", "binary"),
    # Without a time zone it is of the session's. Where spark.sql.timestampType says so, "timestamp" would be without one.
    "timestamp": ((TimestampType, TimestampNTZType, NullType), "timestamp", "timestamp_ltz"),
    # Not as int: without ANSI mode 4294967297 would become partition 1.
    "partition": ((ByteType, ShortType, IntegerType, LongType, NullType), "int", "bigint"),
}
_HEADERS = "array<struct<key:string,value:binary>>"


def sink_mistakes(plan: Plan, views: Views) -> list[Mistake]:
    """What is wrong with the sinks' expressions; sinks over a view that could not be made are passed over."""
    found: list[Mistake] = []
    for index, sink in enumerate(plan.sink):
        frame = views.find(sink.from_)
        if frame is None:
            continue
        for path, expression in _expressions(sink):
            problem = _problem(frame, path[0], expression)
            if problem:
                found.append((("sink", index, *path), problem))
    return found


def _expressions(sink: Sink) -> list[tuple[tuple[str, ...], str]]:
    single = [((name,), getattr(sink, name)) for name in ("topic_expr", "key", "value", "timestamp", "partition")]
    headers = [(("headers", name), expression) for name, expression in sink.headers.items()]
    return [(path, expression) for path, expression in [*single, *headers] if expression is not None]


def _problem(frame: DataFrame, kind: str, expression: str) -> str | None:
    try:
        found = frame.select(F.expr(expression)).schema
    except PySparkException as error:
        return words_of(error)
    if len(found.fields) != 1:
        return f"gives {len(found.fields)} columns, one is needed"
    accepted, name, _ = _ACCEPTED[kind]
    actual = found.fields[0].dataType
    if isinstance(actual, accepted):
        return None
    hint = "; to_json(...) or cast(... as string) makes it one" if accepted is _BYTES else ""
    return f"is {actual.simpleString()}, it must be {name}{hint}"


def records_of(plan: Plan, views: Views) -> DataFrame:
    """All records of a micro-batch: topic, value, and key, headers, timestamp, partition where some sink has them."""
    used = [name for name in ("key", "headers", "timestamp", "partition") if any(getattr(s, name) for s in plan.sink)]
    by_view: dict[str, list[Sink]] = {}
    for sink in plan.sink:
        by_view.setdefault(sink.from_.lower(), []).append(sink)
    branches = []
    for view, sinks in by_view.items():
        frame = views.find(view)
        assert frame is not None
        branches.append(_branch(frame, plan, sinks, used))
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), branches)


def _branch(frame: DataFrame, plan: Plan, sinks: list[Sink], used: list[str]) -> DataFrame:
    origin = [F.col(name) for name in SOURCE_COLUMNS] if set(SOURCE_COLUMNS) <= set(frame.columns) else []
    if len(sinks) == 1:
        return frame.select(*_columns(sinks[0], plan, used), *origin)
    records = F.array(*(F.struct(*_columns(sink, plan, used)) for sink in sinks))
    return frame.select(F.inline(records), *origin)


def _columns(sink: Sink, plan: Plan, used: list[str]) -> list[Column]:
    return [_topic(sink, plan).alias("topic"), *(_column(sink, name).alias(name) for name in ["value", *used])]


def _topic(sink: Sink, plan: Plan) -> Column:
    if sink.topic is not None:
        return F.lit(sink.topic)
    topic = F.expr(sink.topic_expr or "").cast("string")
    return topic if sink.feeds_back else never_read(topic, plan.source)


def _column(sink: Sink, name: str) -> Column:
    if name == "headers":
        pairs = [_header(key, text) for key, text in sink.headers.items()]
        return F.array(*pairs).cast(_HEADERS) if pairs else F.lit(None).cast(_HEADERS)
    expression = getattr(sink, name)
    return (F.lit(None) if expression is None else F.expr(expression)).cast(_ACCEPTED[name][2])


def _header(key: str, expression: str) -> Column:
    return F.struct(F.lit(key).alias("key"), F.expr(expression).cast("binary").alias("value"))
