"""Sources and transforms of a plan as Spark's temporary views. Needs a Spark session, contacts no broker."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from onceflow.config import Plan, Source, Transform
from onceflow.config.lines import Path
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.malformed import parse
from onceflow.session import SOURCE_DEFAULTS

Mistake = tuple[Path, str]
Starting = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Where sources start, by source name: topic to partition to offset, as Spark's ``startingOffsets``."""

KAFKA_COLUMNS = ("_key", "_value", "_topic", "_partition", "_offset", "_timestamp", "_headers")
"""What every source's view has besides its own columns."""


@dataclass(slots=True)
class Views:
    """The views that could be made, and the mistakes that kept others from it."""

    frames: dict[str, DataFrame] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)

    def find(self, name: str) -> DataFrame | None:
        """A view whatever the case of its name, as SQL has it."""
        return self.frames.get(name.lower())


def build_views(spark: SparkSession, plan: Plan, settings: ClusterSettings, starting: Starting) -> Views:
    """Registers every source and transform, in the plan's order."""
    views = Views()
    for index, source in enumerate(plan.source):
        where: Path = ("source", index)
        try:
            frame = _source(spark, source, settings, starting.get(source.name))
        except PySparkException as error:
            views.mistakes.append(((*where, "schema"), words_of(error)))
            views.failed.add(source.name.lower())
        else:
            views.mistakes += [((*where, "schema"), text) for text in _taken(frame)]
            _register(views, source, where, frame)
    for index, transform in enumerate(plan.transform):
        where = ("transform", index)
        try:
            frame = _query(spark, transform.sql)
        except PySparkException as error:
            _failed(views, transform, (*where, "sql"), error)
        else:
            _register(views, transform, where, frame)
    return views


def _taken(frame: DataFrame) -> list[str]:
    """A name in the schema that every source has: nobody could say which one is meant, the sinks' own columns among them."""
    names = Counter(name.lower() for name in frame.columns)
    return [
        f"{name} is a column of every source already: leave it out of the schema; where it is needed, "
        f"get_json_object(cast(_value AS STRING), '$.{_as_given(name, frame)}') takes it from the text"
        for name in KAFKA_COLUMNS
        if names[name] > 1
    ]


def _as_given(name: str, frame: DataFrame) -> str:
    """As the schema spells it, whose columns come first: so is the field called."""
    return next(column for column in frame.columns if column.lower() == name)


def _failed(views: Views, transform: Transform, where: Path, error: PySparkException) -> None:
    """A view that is missing because it could not be made is no mistake of its own."""
    missing = error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
    if not (missing and any(f"`{name}`" in str(error).lower() for name in views.failed)):
        hint = " (a transform is one query, SELECT ... or WITH ...)" if isinstance(error, ParseException) else ""
        views.mistakes.append((where, f"{words_of(error)}{hint}"))
    views.failed.add(transform.name.lower())


def _register(views: Views, part: Source | Transform, where: Path, frame: DataFrame) -> None:
    if part.watermark is not None:
        try:
            frame = frame.withWatermark(part.watermark.column, str(part.watermark.delay))
            frame.schema  # noqa: B018  analyses the plan
        except PySparkException as error:
            views.mistakes.append(((*where, "watermark"), words_of(error)))
    frame.createOrReplaceTempView(part.name)
    views.frames[part.name.lower()] = frame


def _source(
    spark: SparkSession, source: Source, settings: ClusterSettings, starting: Mapping[str, Mapping[str, int]] | None
) -> DataFrame:
    options = {**SOURCE_DEFAULTS, **source.options, **settings.for_spark(), **_position(source, starting)}
    options["includeHeaders"] = "true"
    options["subscribePattern" if source.pattern else "subscribe"] = source.pattern or ",".join(source.topics)
    kafka = spark.readStream.format("kafka").options(**options).load()
    renamed = kafka.select(*(kafka[column.removeprefix("_")].alias(column) for column in KAFKA_COLUMNS))
    if source.format == "raw":
        return renamed.selectExpr("_value AS value", "*")
    assert source.schema_ is not None
    schema = StructType.fromDDL(source.schema_)
    assert isinstance(schema, StructType)
    return parse(renamed, schema, source.on_malformed, source.name)


def _position(source: Source, starting: Mapping[str, Mapping[str, int]] | None) -> dict[str, str]:
    chosen = starting if starting is not None else source.starting_offsets
    options = {"startingOffsets": chosen if isinstance(chosen, str) else json.dumps(chosen)}
    if source.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
    return options


def _query(spark: SparkSession, sql: str) -> DataFrame:
    """A query and nothing else: inside of another one, Spark takes no statement that changes something."""
    return spark.sql(f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n)")  # noqa: S608  the user's own SQL


def words_of(error: PySparkException) -> str:
    """The first line of Spark's message, without the query plan; the lines of the SQL count from the user's first."""
    text = (error.getMessage() or str(error)).strip().split("\n", 1)[0]
    plain = re.sub(r"^\[[A-Z_.0-9]+\]\s*|\s*SQLSTATE: \w+\.?", "", text)
    return re.sub(r"\bline (\d+)", lambda match: f"line {max(int(match[1]) - 1, 1)}", plain).strip().rstrip(";")
