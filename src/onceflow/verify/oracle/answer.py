"""A plan and its checkpoint to what must have been written, in a Spark session that runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from onceflow.config import PlanFile
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.preflight import ClusterCheck, check_plan
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.how_far import OnBatch
from onceflow.verify.oracle.offsets import read_offset_log, resumed_from
from onceflow.verify.oracle.order import shuffled_topics
from onceflow.verify.oracle.replay import Replay
from onceflow.verify.oracle.whole import whole_replay


def replayed(
    file: PlanFile,
    spark: SparkSession,
    settings: ClusterSettings,
    checkpoint: Path,
    scratch: Path,
    committed: Mapping[tuple[str, int], int],
    on_batch: OnBatch = lambda done, total: None,
) -> Expected:
    """What the batches in ``checkpoint`` (and in those set aside before it) must have written to the cluster of ``settings``.

    ``scratch`` is where the replay keeps its own checkpoint; it must not exist. ``committed`` as in ``expected_output``.
    """
    partitions = {name: len(numbers) for name, numbers in ClusterAdmin(settings).partitions().items()}
    frame = check_plan(_kept_consumers(file), spark, settings, ClusterCheck(), {})
    shuffled = shuffled_topics(file.plan, spark)
    replay = Replay(frame, file.plan.output.mode, scratch, partitions, shuffled, on_batch)
    log, before = read_offset_log(checkpoint), resumed_from(checkpoint)
    if before or log.broken:
        return whole_replay(replay, [*map(read_offset_log, before), log], committed)
    return replay.expected(log)


def _kept_consumers(file: PlanFile) -> PlanFile:
    """Each of its sources reads as a consumer group with a name, by which Spark keeps consumers.

    Else each batch, which is a query of its own here, would make new ones: a third of its time. Not one name for all: two sources
    may read one partition with other options, and Spark refuses that of one group; nor may two replays in one JVM share it.
    """
    replay = uuid4()
    sources = tuple(
        source.model_copy(
            update={"options": {**source.options, "kafka.group.id": f"onceflow-oracle-{replay}-{number}"}}
        )
        for number, source in enumerate(file.plan.source)
    )
    return replace(file, plan=file.plan.model_copy(update={"source": sources}))
