"""Which views keep the order of their input, told by Spark's plans alone: nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceflow.config import PlanFile, load
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.views import build_views
from onceflow.verify.oracle.order import keeps_order, shuffled_topics

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

VIEWS = {
    "input": (True, ""),
    "projected": (True, "SELECT account AS a FROM input WHERE amount > 1"),
    "exploded": (
        True,
        "WITH q AS (SELECT account FROM input) SELECT account, z FROM q LATERAL VIEW explode(array(1, 2)) t AS z",
    ),
    "united": (True, "SELECT account FROM input UNION ALL SELECT a FROM projected"),
    "totals": (False, "SELECT account, count(*) AS n FROM input GROUP BY account"),
    "distinct": (False, "SELECT DISTINCT account FROM input"),
    "spread": (False, "SELECT /*+ REPARTITION(3) */ account FROM input"),
    "joined": (False, "SELECT i.account FROM input i JOIN projected p ON i.account = p.a"),
    "among": (False, "SELECT account FROM input WHERE account IN (SELECT col1 FROM VALUES ('a'), ('b'))"),
    "of_totals": (False, "SELECT account FROM totals WHERE n > 1"),
}
HEAD = """
name = "ordered"
checkpoint = "state"
kafka = {bootstrap_servers = "localhost:1"}
[[source]]
name = "input"
topics = ["in"]
schema = "account STRING, amount BIGINT, at TIMESTAMP NOT NULL"
watermark = {column = "at", delay = "1 second"}
"""


def made(spark: SparkSession, directory: Path, *sinks: str, head: str = HEAD) -> PlanFile:
    transforms = [f'[[transform]]\nname = "{name}"\nsql = "{sql}"' for name, (_, sql) in VIEWS.items() if sql]
    (directory / "plan.toml").write_text("\n".join([head, *transforms, *sinks]))
    file = load(directory / "plan.toml", {})
    views = build_views(spark, file.plan, ClusterSettings.of("localhost:1"), {})
    assert views.mistakes == []
    return file


def sink(view: str, topic: str) -> str:
    return f'[[sink]]\nfrom = "{view}"\n{topic}\nvalue = "\'x\'"'


def test_what_treats_records_one_by_one_keeps_their_order(spark: SparkSession, tmp_path: Path) -> None:
    made(spark, tmp_path, sink("input", 'topic = "out"'))
    assert {name: keeps_order(spark, name) for name in VIEWS} == {name: kept for name, (kept, _) in VIEWS.items()}


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_where_several_tasks_read_a_partition_no_order_is_known(
    spark: SparkSession, tmp_path: Path, option: str
) -> None:
    """What each of them gives is in order, and nobody knows which of them read the same partition."""
    other = '[[source]]\nname = "other"\ntopics = ["o"]\nschema = "account STRING"'
    sinks = (sink("projected", 'topic = "a"'), sink("other", 'topic = "b"'))
    kept = shuffled_topics(made(spark, tmp_path, other, *sinks).plan, spark)
    assert not any(topic in kept for topic in "ab")
    shared = HEAD.replace("watermark =", f'options = {{{option} = "12"}}\nwatermark =')
    found = shuffled_topics(made(spark, tmp_path, other, *sinks, head=shared).plan, spark)
    assert {topic for topic in "ab" if topic in found} == {"a"}


@pytest.mark.parametrize(
    ("sinks", "shuffled"),
    [
        ((sink("projected", 'topic = "a"'), sink("totals", 'topic = "b"')), {"b"}),
        ((sink("projected", 'topic = "a"'), sink("totals", 'topic = "a"')), {"a"}),
        ((sink("projected", "topic_expr = \"'a'\""), sink("totals", 'topic = "b"')), {"b"}),
        ((sink("projected", 'topic = "a"'), sink("totals", "topic_expr = \"'b'\"")), {"a", "b", "c"}),
    ],
)
def test_topics_are_told_apart(spark: SparkSession, tmp_path: Path, sinks: tuple[str, ...], shuffled: set[str]) -> None:
    found = shuffled_topics(made(spark, tmp_path, *sinks).plan, spark)
    assert {topic for topic in "abc" if topic in found} == shuffled
