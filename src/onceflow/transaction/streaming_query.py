"""What only Spark's JVM knows of the running micro-batch. The one place that reaches through py4j into Spark's internals.

Pinned by ``tests/test_streaming_query.py`` on the Spark version in the lock. Runs on the driver, on the thread that Spark
calls a ``foreachBatch`` function on; needs classic Spark (not Spark Connect).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowCollectSerializer
from pyspark.util import _load_from_socket

from onceflow.errors import ProgressConflict, UnsafeSession
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.progress import Batch, digest_of
from onceflow.transaction.source_ends import Offsets, all_kafka, kafka_offsets, readings_agree, rows_between
from onceflow.transaction.source_mark import mark_of

_QUERY_ID = "sql.streaming.queryId"
_TASK_COLUMN = "_onceflow_task"
_STATUS_PATIENCE_S = 60.0
_LOOK_AGAIN_S = 0.01
_STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator"
_KEPT_BY_FUNCTIONS = ("FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState")
_KEEP_NO_STATE = {
    "Filter", "Project", "SubqueryAlias", "Union", "View", "WriteToMicroBatchDataSource", "WriteToMicroBatchDataSourceV1",
}  # fmt: skip
"""Nodes of a logical plan."""
_PRESENT = "org.apache.spark.sql.catalyst.expressions.CurrentBatchTimestamp"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch and the source offsets between which it lies."""

    batch: Batch
    start: Offsets
    end: Offsets
    run_id: str  # of this run of the query: another one each time that it is started

    def kafka_end(self) -> dict[tuple[str, int], int]:
        """End offsets of the Kafka sources; where two sources read one partition, the lower."""
        return kafka_offsets(self.end)

    def kafka_start(self) -> dict[tuple[str, int], int]:
        """The same of the batch before; empty where there is none."""
        return kafka_offsets(self.start)

    def source_rows(self) -> int | None:
        """An upper bound of the rows read from the sources (transaction markers count too); None if not all are Kafka's."""
        if not all_kafka(self.end):
            return None
        rows = 0
        for index, end in enumerate(self.end):
            start = self.start[index] if index < len(self.start) else None
            rows += rows_between(start or {}, end or {})
        return rows


def micro_batch(frame: DataFrame, batch_id: int) -> MicroBatch:
    """The micro-batch that ``frame`` is. Raises UnsafeSession outside of a streaming query's ``foreachBatch``.

    The offsets are those that the running query holds in memory, not those of the file ``offsets/N``::

        two drivers share a checkpoint; both plan batch N, the slower one replaces the file of the faster
        the faster commits its rows; a digest of the file would vouch for the other's offsets
    """
    execution = _execution(frame)
    if execution.getClass().getSimpleName() != "MicroBatchExecution":
        raise UnsafeSession(
            f"the query runs as {execution.getClass().getSimpleName()}",
            action="use the micro-batch engine, without asyncProgressTrackingEnabled",
        )
    sources = execution.sources()
    start = _offsets_of(sources, execution.committedOffsets())
    end = _offsets_of(sources, execution.availableOffsets())
    before = _batch_digest(start, lambda: _planned_ms_of(execution, batch_id - 1)) if batch_id > 0 else ""
    mark = mark_of(kafka_offsets(end), agree=readings_agree(end))
    planned_ms = _planned_ms(execution)
    batch = Batch(batch_id, str(execution.id()), before, _batch_digest(end, lambda: planned_ms), mark, planned_ms)
    return MicroBatch(batch, start, end, str(execution.runId()))


def _batch_digest(end: Offsets, planned_ms: Callable[[], int]) -> str:
    """Of the batch that ends there: of its offsets if they name its records, as Kafka's do; else also of when it was planned.

    ::

        batches 6 and 7 of a file source are committed; its offsets count its batches: {"logOffset": 6}, {"logOffset": 7}
        the checkpoint is restored as of batch 5; Spark plans batch 6 anew, over their files and all that came since
        its offset is {"logOffset": 6} again: taken for the committed one, what came since would be skipped

    A batch that is only repeated keeps the time in its file ``offsets/N``.
    """
    return digest_of(end if all_kafka(end) else [end, planned_ms()])


def _planned_ms(execution: Any) -> int:
    """When the running batch was planned."""
    return int(execution.lastExecution().offsetSeqMetadata().batchTimestampMs())


def _planned_ms_of(execution: Any, batch_id: int) -> int:
    """The same of an earlier batch; 0 where its file is gone."""
    noted = execution.offsetLog().offsetSeqMetadataForBatchId(batch_id)
    return int(noted.get().batchTimestampMs()) if noted.isDefined() else 0


def _offsets_of(sources: Any, progress: Any) -> Offsets:
    found = [progress.get(source) for source in _each(sources)]
    return [json.loads(offset.get().json()) if offset.isDefined() else None for offset in found]


def initial_offsets(frame: DataFrame) -> dict[tuple[str, int], int]:
    """Where the Kafka sources of the running query began to read (fixed once per checkpoint)."""
    names = list(_each(_execution(frame).sources()))
    if not all(map(_is_kafka_source, names)):
        raise ProgressConflict(
            "a query with sources other than Kafka cannot be resumed: where they begin cannot be compared",
            action="restart, or read from Kafka",
        )
    initial = [json.loads(source.initialOffset().json()) for source in names]
    if not readings_agree(initial):
        raise ProgressConflict(
            "two sources read the same partition from different offsets: one committed offset cannot tell both",
            action="restart, or give the sources topics of their own",
        )
    return kafka_offsets(initial)


def checkpoint_root(frame: DataFrame) -> str:
    """Where the running query keeps its checkpoint, as Spark has resolved it."""
    return str(_execution(frame).resolvedCheckpointRoot())


def source_options(frame: DataFrame) -> list[dict[str, str]]:
    """The options of each Kafka source of the running query, keys in lower case.

    What a plan reads besides (a static table, another kind of stream) is none, whatever its columns are called. Raises
    UnsafeSession for Kafka's old source, which does not show its options.
    """
    found = []
    for leaf in _each(_execution(frame).logicalPlan().collectLeaves()):
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingDataSourceV2ScanRelation" and _is_kafka_source(leaf.stream()):
            options = leaf.relation().options().asCaseSensitiveMap()
            found.append({str(key).lower(): str(options.get(key)) for key in options.keySet().toArray()})
        elif kind == "StreamingExecutionRelation" and _is_kafka_source(leaf.source()):
            raise UnsafeSession(
                "the query reads with Kafka's old source, whose isolation level cannot be seen",
                action="take kafka out of spark.sql.streaming.disabledV2MicroBatchReaders",
            )
    return found


def is_stateful(frame: DataFrame) -> bool:
    """Whether the running query keeps state (aggregation, deduplication, join, …). Four calls for each node of its plan.

    Asked of the plan's nodes, for its text may be cut off::

        spark.sql.maxPlanStringLength is 8k, as Spark advises where plans are large, and no "state info" is left in the text
        taken for stateless, a batch that is committed would be skipped without building its state, which the next one needs

    Adaptive execution, which hides nodes in one of its own, leaves stateful plans alone.
    """
    jvm: Any = frame.sparkSession._jvm
    stateful = jvm.java.lang.Class.forName(_STATEFUL)
    return any(stateful.isInstance(node) for node in _nodes(_execution(frame).lastExecution().executedPlan()))


def state_tells_time(frame: DataFrame) -> bool:
    """Whether what the running query keeps as state may depend on when a batch was planned, and not on its records alone.

    So it does where the plan asks for the present time (``current_timestamp``, ``localtimestamp``, ``current_date``) at or below
    what keeps state, which Spark makes the time at which the batch was planned; and a function of the user's that keeps state
    is given that time. (``now()`` is another one whenever the batch runs, as ``rand()`` is.)
    """
    if not is_stateful(frame):
        return False
    execution = _execution(frame).lastExecution()
    names = [node.getClass().getSimpleName() for node in _nodes(execution.executedPlan())]
    if any(sign in name for name in names for sign in _KEPT_BY_FUNCTIONS):
        return True
    jvm: Any = frame.sparkSession._jvm
    present = jvm.java.lang.Class.forName(_PRESENT)
    into_state = (node for root in _may_keep_state(execution.logical()) for node in _nodes(root))
    return any(present.isInstance(leaf) for node in into_state for leaf in _leaves(node))


def _may_keep_state(plan: Any) -> Iterator[Any]:
    """The parts of a plan below what surely keeps none: what only the output says (``current_timestamp() AS written_at``) is no
    state.
    """
    if plan.getClass().getSimpleName() not in _KEEP_NO_STATE:
        yield plan
        return
    for child in _each(plan.children()):
        yield from _may_keep_state(child)


def _leaves(node: Any) -> Iterator[Any]:
    """Of the expressions of this node of a plan."""
    for expression in _each(node.expressions()):
        yield from _each(expression.collectLeaves())


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def _each(sequence: Any) -> Iterator[Any]:
    """The members of one of Scala's sequences."""
    return (sequence.apply(index) for index in range(sequence.size()))


def planned_at(frame: DataFrame) -> float:
    """When the running batch was planned, in seconds since the epoch: in an earlier run of the query, if it is a repetition."""
    return _planned_ms(_execution(frame)) / 1000


def driver_memory_bytes(frame: DataFrame) -> int:
    """How much of a batch Spark's driver may hold: a quarter of its heap, half of ``spark.driver.maxResultSize``."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    heap = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
    context = frame.sparkSession.sparkContext._jsc.sc()
    results = int(context.conf().getSizeAsBytes("spark.driver.maxResultSize", "1g")) or heap  # 0 means unlimited
    return min(heap // 4, results // 2)


@contextmanager
def refusing_stage_retries(frame: DataFrame) -> Iterator[None]:
    """Raises AttemptFailed at the end when Spark ran the last stage of the jobs inside, or a task of it, more than once.

    A task of a second stage attempt counts its own attempts from 0 again, and a Python worker is not told the stage's. The
    stages before the last only prepare what it writes: that one of them ran again has done no harm.
    """
    context = frame.sparkSession.sparkContext
    tag = f"onceflow-{uuid.uuid4().hex}"
    with _tagged(context, tag):
        yield
    _await_status(context, f"{tag}-end")
    stage = _last_stage_run_again(context._jsc.sc().statusTracker(), tag)
    if stage is not None:
        raise AttemptFailed(f"Spark ran stage {stage}, which writes, again: records may have been written twice")


@contextmanager
def _tagged(context: SparkContext, tag: str) -> Iterator[None]:
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)


def _await_status(context: SparkContext, tag: str) -> None:
    """Until Spark's status store knows all that became of the jobs that have ended: of a job without tasks, behind them, as well.

    Events reach the store in their order. ``listenerBus().waitUntilEmpty()`` would wait for every other listener too, and one may
    wait for this batch::

        batch 1 is committed; the next one begins, and holds the sink
        Python is told of batch 1's progress, and the listener wants the sink: it stands still, and so does its queue
        batch 2 waits for that queue, and each of its attempts fails behind 10 s

    Raises AttemptFailed where the store is told of nothing for so long.
    """
    with _tagged(context, tag):
        context._jsc.emptyRDD().count()
    tracker = context._jsc.sc().statusTracker()
    deadline = time.monotonic() + _STATUS_PATIENCE_S
    while not any(_is_over(tracker, job) for job in tracker.getJobIdsForTag(tag)):
        if time.monotonic() > deadline:
            raise AttemptFailed(
                f"Spark's status store has not told within {_STATUS_PATIENCE_S:.0f} s what became of the job that writes"
            )
        time.sleep(_LOOK_AGAIN_S)


def _is_over(tracker: Any, job: int) -> bool:
    info = tracker.getJobInfo(job)
    return bool(info.isDefined() and str(info.get().status()) != "RUNNING")


def _last_stage_run_again(tracker: Any, tag: str) -> int | None:
    """Spark numbers a job's stages parents first, so the highest number is the one whose tasks give the result.

    Raises AttemptFailed where the store has dropped it: what is not known may have run twice. Also between two questions::

        the store names the job, and drops it, for other jobs have ended
        asked for it, it knows none; one that is taken for a job without stages has run nothing twice
    """
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(tag)]
    stages = [stage for job in jobs if job.isDefined() for stage in job.get().stageIds()]
    stage = max(stages, default=None)
    info = None if stage is None else tracker.getStageInfo(stage)
    known = bool(jobs) and all(job.isDefined() for job in jobs) and (info is None or info.isDefined())
    if not known:
        raise AttemptFailed(
            "Spark's status store knows the job that writes no longer: raise spark.ui.retainedJobs and spark.ui.retainedStages"
        )
    ran_again = info is not None and (info.get().currentAttemptId() or info.get().numFailedTasks())
    return stage if ran_again else None


def arrow_batches(frame: DataFrame, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """These columns (SQL) of ``frame`` as (task index, Arrow batch), without any Python worker, while later tasks still run.

    Spark hands a task's batches over as soon as it is done, in any order. Here they come in task order, because a source
    partition may be split over several tasks; what is done early waits, and behind an empty task all wait for the end.
    Raises what the Spark job raised.
    """
    marked = frame.selectExpr(*columns, f"spark_partition_id() AS {_TASK_COLUMN}")
    port, secret, server = marked._jdf.collectAsArrowToPython()
    with _load_from_socket((port, secret), ArrowCollectSerializer()) as stream:  # type: ignore[no-untyped-call]
        yield from _in_task_order(_until_failure(stream, server))


def _until_failure(stream: Any, server: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
    try:
        for item in stream:
            if isinstance(item, pa.RecordBatch) and item.num_rows:
                yield item.column(_TASK_COLUMN)[0].as_py(), item.drop_columns([_TASK_COLUMN])
    except GeneratorExit:
        raise  # the reader gave up: what it raised is the cause, not the connection that breaks now
    except Exception:
        server.getResult()
        raise
    server.getResult()


def _in_task_order(batches: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A task's batches arrive together, so the first one of another task shows that a task is complete."""
    waiting: dict[int, list[pa.RecordBatch]] = {}
    expected, begun = 0, False
    for task, batch in batches:
        if task != expected:
            waiting.setdefault(task, []).append(batch)
        if task != expected and begun:
            expected, begun = expected + 1, False
            while expected in waiting and expected != task:
                yield from ((expected, ready) for ready in waiting.pop(expected))
                expected += 1
            if expected == task:
                del waiting[task]
        if task == expected:
            begun = True
            yield task, batch
    for task in sorted(waiting):
        yield from ((task, ready) for ready in waiting[task])


def _execution(frame: DataFrame) -> Any:
    session = frame.sparkSession
    query_id = session.sparkContext.getLocalProperty(_QUERY_ID)
    if query_id is None:
        raise UnsafeSession(
            "this is not a micro-batch of a streaming query",
            action="pass the sink to writeStream.foreachBatch; it does not write batch DataFrames",
        )
    jvm = session._jvm
    queries = session._jsparkSession.sharedState().activeStreamingQueries()
    return queries.get(jvm.java.util.UUID.fromString(str(uuid.UUID(query_id))))  # type: ignore[union-attr]


def _is_kafka_source(source: Any) -> bool:
    return "Kafka" in source.getClass().getSimpleName()
