"""A pipeline's plan, as ``pipeline.toml`` describes it: frozen, typed, unknown settings refused.

A field's name is its name in TOML, except ``from_`` (``from``) and ``schema_`` (``schema``), which Python reserves.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from onceflow.config.values import (
    Count,
    Duration,
    DurationField,
    NonEmpty,
    Offsets,
    Options,
    PipelineName,
    TopicName,
    TopicNames,
    ViewName,
    flatten,
)

Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class Section(BaseModel):
    """What all parts of a plan have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, arbitrary_types_allowed=True)


class Trigger(Section):
    """When a micro-batch starts. Neither set: as soon as there is data."""

    processing_time: DurationField | None = None
    available_now: bool = False


class KafkaCluster(Section):
    """The cluster; without ``bootstrap_servers`` the embedded broker. ``options`` are Kafka's own, by Java name."""

    bootstrap_servers: NonEmpty | None = None
    create_topics: bool | None = None
    partitions: Count = 4
    replication_factor: Count | None = None
    options: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _collect_options(cls, table: Any) -> Any:
        """Every name with a dot is an option for the Kafka clients."""
        if not isinstance(table, dict) or "options" in table:
            return table
        own = {name: value for name, value in table.items() if "." not in name and not isinstance(value, dict)}
        return {**own, "options": flatten({name: value for name, value in table.items() if name not in own})}

    @property
    def creates_topics(self) -> bool:
        """Whether missing topics are created: on the embedded broker unless it is switched off."""
        return self.bootstrap_servers is None if self.create_topics is None else self.create_topics


class Watermark(Section):
    """How late rows may be, for aggregations over time and joins."""

    column: NonEmpty
    delay: DurationField


class Source(Section):
    """Kafka topics, seen by the SQL as a view ``name``."""

    name: ViewName
    topics: TopicNames = ()
    pattern: NonEmpty | None = None
    format: Literal["json", "raw"] = "json"
    schema_: NonEmpty | None = Field(default=None, alias="schema")
    on_malformed: Literal["fail", "drop", "null"] = "fail"
    starting_offsets: Offsets = "earliest"
    max_offsets_per_trigger: Count | None = None
    watermark: Watermark | None = None
    options: Options = Field(default_factory=dict)


class Transform(Section):
    """A Spark SQL query over the views before it, itself a view ``name``."""

    name: ViewName
    sql: NonEmpty
    watermark: Watermark | None = None


class Sink(Section):
    """Records made of the rows of a view. All but ``from``, ``topic`` and ``feeds_back`` are SQL expressions.

    ``feeds_back``: a source of the plan reads what is written here, on purpose.
    """

    from_: ViewName = Field(alias="from")
    topic: TopicName | None = None
    topic_expr: NonEmpty | None = None
    key: NonEmpty | None = None
    value: NonEmpty
    headers: dict[NonEmpty, NonEmpty] = Field(default_factory=dict)
    timestamp: NonEmpty | None = None
    partition: NonEmpty | None = None
    feeds_back: bool = False


class Output(Section):
    """How the batch is written."""

    mode: Literal["append", "update"] = "append"
    compression: Compression = "lz4"
    transaction_timeout: DurationField = Duration(60_000)


class Plan(Section):
    """A whole pipeline: sources, transforms, and sinks that are written in one transaction per micro-batch."""

    name: PipelineName
    guarantee: Guarantee = "exactly_once"
    checkpoint: NonEmpty | None = None
    trigger: Trigger = Trigger()
    kafka: KafkaCluster = KafkaCluster()
    source: tuple[Source, ...] = Field(min_length=1)
    transform: tuple[Transform, ...] = ()
    sink: tuple[Sink, ...] = Field(min_length=1)
    output: Output = Output()
    spark: Options = Field(default_factory=dict)
