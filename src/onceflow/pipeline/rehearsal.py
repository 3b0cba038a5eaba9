"""The plan, run for practice, so that a Spark that waits has done before what its first batch will ask of it.

A new JVM spends more than ten seconds of processor time until its first batch is committed: it loads classes, generates and
compiles code for the plan, opens a state store and a Kafka consumer for the first time. On a cluster that is true of each
executor too. The rehearsal runs the plan's own SQL over the newest records of its topics, and what comes out is thrown away. Its
checkpoint is its own and ends with it; it joins no consumer group, opens no transaction and fences nobody. The pipeline's own
checkpoint is not looked at: it goes on until the takeover, and what was read of it before would be stale then.

On a cluster it runs on the executors that this driver holds anyway, from its start to its end, and there it also does what they
do for a batch that outgrows the driver: encode, shuffle, all but write. It waits for the first of them as long as one takes to
start. A driver that gets none (no room; or Spark asks for them with the work, as the user wishes to leave them to others)
rehearses nothing. A rehearsal comes to an end whatever happens, for it holds up the next standby::

    its executors are lost, and there is no room for others: the query waits for them without end
    after some minutes it is stopped; what is warm by then is warm

    a worker is killed, and the executors on it of all drivers; others come in their place, and have run nothing
    whoever waits to take over rehearses once more: a driver that was killed a minute later was followed within 14 and 19 s
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.config import PlanFile
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.checkpoint import Checkpoint
from onceflow.pipeline.failures import reason_of
from onceflow.pipeline.preflight import ClusterCheck, check_plan
from onceflow.pipeline.rehearsal_checkpoints import RehearsalCheckpoints
from onceflow.pipeline.topics import topics_of
from onceflow.pipeline.views import Starting
from onceflow.transaction.compression import Codec
from onceflow.transaction.executor_path import rehearse_on_executors
from onceflow.transaction.input_columns import record_columns
from onceflow.transaction.router import Encoding
from onceflow.transaction.streaming_query import arrow_batches, driver_memory_bytes, micro_batch

log = logging.getLogger(__name__)

Batch = Callable[[DataFrame, int], None]
TIMES = 3
NEWEST = 500  # offsets of each partition at most
ALL = 10_000  # of all partitions together: what comes of them is collected, and the driver's JVM holds it
STOP_S = 20.0
PATIENCE_S = 10.0
EXECUTORS_S = 60.0
LONGEST_S = 300.0
_LOOK_S = 0.1
_LOOK_FOR_EXECUTORS_S = 1.0


class Stuck(Exception):
    """The rehearsal does not end. This process is of no use then: its triggers would be taken for the real query's."""


@dataclass(slots=True)
class Rehearsal:
    """Of one driver, which is asked to do something else when ``enough`` is set; ``scratch`` is its own directory."""

    file: PlanFile
    spark: SparkSession
    settings: ClusterSettings
    scratch: Path
    enough: threading.Event
    _warm: frozenset[str] = field(default=frozenset(), init=False)  # the executors that it began with, the last time

    def run(self) -> None:
        """Runs the plan over the newest records, ``TIMES`` times, until it is ``enough``; blocks.

        What goes wrong is left to the real run to tell. Raises Stuck. It may be enough before it begins::

            the whole machine is lost, a broker with it; the driver that is told to run has only just started its JVM
            rehearsing it would ask that broker where the topics end, ten seconds and ten more, and nothing runs meanwhile
        """
        deadline = time.monotonic() + LONGEST_S
        file, spark, enough = self.file, self.spark, self.enough
        try:
            if not _has_executors(spark, enough) or enough.is_set():
                return
            self._warm = _executors(spark)
            starting = _newest(file, self.settings, enough)
            if enough.is_set():
                return
            frame = check_plan(_forgiving(file), spark, self.settings, ClusterCheck(), starting)
            with _checkpoints(file, spark, self.scratch, enough) as place:
                for number, batch in enumerate(self._batches()):
                    self._warm = _executors(spark)
                    _run(frame, batch, file.plan.output.mode, f"{place}/rehearsal-{number}", enough, deadline)
        except Stuck:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, it is not the rehearsal's to judge
            log.info("the rehearsal of pipeline %s failed: %s", file.plan.name, error)

    def _batches(self) -> list[Batch]:
        batches: list[Batch] = [_collect] * TIMES
        if not _is_local(self.spark):
            batches.append(partial(_write_nothing, self.settings, self.file))
        return batches

    def keep(self, cold: Callable[[], None], warm: Callable[[], None]) -> None:
        """Until it is ``enough``: runs again whenever executors are others, between ``cold`` and ``warm``. Raises Stuck."""
        while not self.enough.wait(_LOOK_FOR_EXECUTORS_S):
            if self._warm and _executors(self.spark) != self._warm:
                cold()
                self._wait_for_others()
                self.run()
                warm()

    def _wait_for_others(self) -> None:
        """In place of executors that were lost, as long as one takes to start. There may be no room for them any more.

        ::

            a worker is killed, and only ten seconds later it is started again, and executors on it
            whoever waits is still warm on those that are left; in between the driver is killed
            its successor has its first batch run by one that is warm and one that has run nothing: 24 s
        """
        _await_executors(self.spark, len(self._warm), self.enough)


def _executors(spark: SparkSession) -> frozenset[str]:
    """Where they listen, the driver among them: each has a port of its own. Of a local master nobody is replaced."""
    if _is_local(spark):
        return frozenset()
    found = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keys()  # noqa: SLF001  PySpark has no other way to ask
    return frozenset(found.mkString(" ").split())


def _is_local(spark: SparkSession) -> bool:
    return str(spark.sparkContext.master).startswith("local")


def _has_executors(spark: SparkSession, enough: threading.Event) -> bool:
    """Waits for the first one, where Spark asks for them by itself, as long as it takes to start one."""
    context = spark.sparkContext
    if _is_local(spark):
        return True
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return False
    return _await_executors(spark, 2, enough)


def _await_executors(spark: SparkSession, count: int, enough: threading.Event) -> bool:
    """Whether there are so many, the driver among them, before it is ``enough``, or one had time to start."""
    deadline = time.monotonic() + EXECUTORS_S
    while len(_executors(spark)) < count:
        if enough.wait(_LOOK_S) or time.monotonic() > deadline:
            return False
    return True


@contextlib.contextmanager
def _checkpoints(file: PlanFile, spark: SparkSession, scratch: Path, enough: threading.Event) -> Iterator[str]:
    """Where the rehearsal's checkpoints are: on this process's own disk, or, where executors elsewhere write state, in the
    pipeline's checkpoint, which they reach and Spark looks at by name alone.

    Where this driver is to take over, its end is not waited for; a query that is stuck still writes to it, and it is left there.
    """
    if _is_local(spark):
        # Without a scheme it would be a directory of Hadoop's default file system. Hadoop decodes no escapes, as a URI has them.
        yield f"file://{scratch}"
        return
    rehearsals = RehearsalCheckpoints(Checkpoint(spark, file.checkpoint))
    own = rehearsals.begin()
    yield own
    removing = threading.Thread(target=rehearsals.remove, args=(own,), name="onceflow-rehearsal-remove", daemon=True)
    removing.start()
    while removing.is_alive() and not enough.is_set():
        removing.join(_LOOK_S)


def _newest(file: PlanFile, settings: ClusterSettings, enough: threading.Event) -> Starting:
    """Where the rehearsal begins to read: a few offsets before the end of each partition, the fewer the more there are::

    a standby beside the driver reads a topic of 1,000 partitions with records of 2 kB, 500 of each
    its JVM would be given a gigabyte to hold, three times, before it is needed at all
    """
    admin = ClusterAdmin(settings)
    known = admin.partitions()
    starting: dict[str, dict[str, dict[str, int]]] = {}
    topics = {source.name: topics_of(source, known) for source in file.plan.source}
    partitions = sum(len(known[topic]) for names in topics.values() for topic in names)
    newest = max(min(NEWEST, ALL // max(partitions, 1)), 1)
    for source, names in topics.items():
        if enough.is_set():
            break
        ends = admin.end_offsets([(topic, partition) for topic in names for partition in known[topic]])
        starting[source] = {topic: {} for topic in names}
        for (topic, partition), end in ends.items():
            starting[source][topic][str(partition)] = max(end - newest, 0)
    return starting


def _forgiving(file: PlanFile) -> PlanFile:
    """The oldest of the newest records may be deleted already."""
    sources = tuple(
        source.model_copy(update={"options": {**source.options, "failOnDataLoss": "false"}})
        for source in file.plan.source
    )
    return replace(file, plan=file.plan.model_copy(update={"source": sources}))


def _run(frame: DataFrame, batch: Batch, mode: str, checkpoint: str, enough: threading.Event, deadline: float) -> None:
    if enough.is_set() or time.monotonic() > deadline:
        return
    writer = frame.writeStream.foreachBatch(batch).outputMode(mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        while query.isActive and not enough.wait(_LOOK_S) and time.monotonic() < deadline:
            pass
    finally:
        _stop(query)


def _stop(query: StreamingQuery) -> None:
    """Stops it within ``STOP_S``, or raises Stuck; Spark itself waits without end for a batch that does not listen."""

    def stop() -> None:
        with contextlib.suppress(Exception):
            query.stop()

    stopping = threading.Thread(target=stop, name="onceflow-rehearsal-stop", daemon=True)
    stopping.start()
    stopping.join(STOP_S)
    if stopping.is_alive() or query.isActive:
        raise Stuck(f"the rehearsal did not end within {STOP_S:.0f} s")


def _collect(batch: DataFrame, batch_id: int) -> None:
    """What the sink asks of Spark for a batch that the driver writes."""
    # Spark looks for an interrupted Java call in the text of what a Python function raised, by a pattern that overflows the
    # stack; that of a rehearsal that is cut short is long enough.
    with contextlib.suppress(Exception):
        micro_batch(batch, batch_id).source_rows()
        driver_memory_bytes(batch)
        for _ in arrow_batches(batch, record_columns(batch, None)):
            pass


def _write_nothing(settings: ClusterSettings, file: PlanFile, batch: DataFrame, batch_id: int) -> None:
    """What the sink asks of Spark for a batch that executors write, but that they write it."""
    encoding = Encoding(None, Codec[file.plan.output.compression.upper()], timestamp_ms=0, seed=0)
    try:
        records = batch.selectExpr(*record_columns(batch, None))
        rehearse_on_executors(records, encoding, settings.for_protocol(), PATIENCE_S)
    except Exception as error:  # noqa: BLE001  they have no onceflow, say, and need none while the driver writes
        log.info("the executors of pipeline %s could not rehearse: %s", file.plan.name, reason_of(error))
