"""Refuses a Spark session or query whose settings would break exactly-once, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from onceflow.errors import UnsafeSession
from onceflow.transaction.streaming_query import is_stateful, source_options

LEAST_RETAINED = 50
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def check_session(frame: DataFrame) -> None:
    """Raises UnsafeSession that names every setting to change."""
    mistakes = [*_isolation(frame), *_data_loss(frame), *_state_format(frame), *_speculation(frame), *_status(frame)]
    if mistakes:
        raise UnsafeSession(
            "this query cannot be exactly-once: " + "; ".join(mistakes),
            action="onceflow.spark_session() sets the session right; source options are yours to set",
            mistakes=tuple(mistakes),
        )


def _isolation(frame: DataFrame) -> list[str]:
    return [
        f"the Kafka source {_named(options)} reads uncommitted records: set its option kafka.isolation.level to read_committed"
        for options in source_options(frame)
        if options.get("kafka.isolation.level", "read_uncommitted") != "read_committed"
    ]


def _data_loss(frame: DataFrame) -> list[str]:
    return [
        f"the Kafka source {_named(options)} passes over records that are gone, without a word: leave its option "
        "failOnDataLoss at true"
        for options in source_options(frame)
        if options.get("failondataloss", "true").lower() == "false"
    ]


def _named(options: Mapping[str, str]) -> str | None:
    return options.get("subscribe") or options.get("subscribepattern") or options.get("assign")


def _speculation(frame: DataFrame) -> list[str]:
    """A speculative copy of a writer may not write, and wins all the same, because it is done at once."""
    if frame.sparkSession.sparkContext.getConf().get("spark.speculation", "false").lower() != "true":
        return []
    return ["tasks are run speculatively: set spark.speculation to false"]


def _status(frame: DataFrame) -> list[str]:
    """What has become of a job that writes is read in Spark's status store, which forgets the oldest (streaming_query.py)."""
    conf = frame.sparkSession.sparkContext.getConf()
    return [
        f"{name} = {kept} lets Spark forget a job that writes before it is looked at: leave it at its default, 1000"
        for name in ("spark.ui.retainedJobs", "spark.ui.retainedStages")
        if int(kept := conf.get(name, "1000")) < LEAST_RETAINED
    ]


def _state_format(frame: DataFrame) -> list[str]:
    """With state format 1 a zombie task's late file can replace committed state (Spark's own failure tests show it)."""
    if frame.sparkSession.conf.get(STATE_FORMAT, "1") == "2" or not is_stateful(frame):
        return []
    return [
        f"it keeps state in format 1: set {STATE_FORMAT} to 2 (with the RocksDB state store) and use a new checkpoint"
    ]
