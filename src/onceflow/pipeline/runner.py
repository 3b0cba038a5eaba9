"""Runs a plan: one query, one transaction per micro-batch, and an end that leaves nothing half done.

The end of a running query, step by step::

    stop asked for (Ctrl-C, SIGTERM)
    sink.drain()       waits for the batch that runs, so that it is committed; no batch begins any more
    Spark's progress   of that batch shows that Spark has written its commit log too
    query.stop()       interrupts nothing but waiting

A wall clock that is set back (clock_set_back.py) ends the query in the same way, and another one goes on behind its last batch.
The sink stays, and with it its claim: this may be an older driver, and must not fence a newer one by beginning again.

A second request does not wait for this: the process simply ends, as in a crash, and the next start finds out and
finishes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from onceflow.config import PlanFile
from onceflow.errors import Draining, Fenced, OnceflowError, QueryFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline import topics
from onceflow.pipeline.checkpoint import Checkpoint
from onceflow.pipeline.clock_set_back import watched
from onceflow.pipeline.cluster import connect
from onceflow.pipeline.control import ClockSetBack, Control, Ended, Progress, StopAsked
from onceflow.pipeline.early_fence import EarlyFence
from onceflow.pipeline.events import BatchCommitted, Finished, Listener, Note, Started, Stopping
from onceflow.pipeline.failures import explain, has_lost_jvm, reason_of, telling_of_a_lost_jvm
from onceflow.pipeline.inbox import ProgressListener, Remembering
from onceflow.pipeline.last_driver import DriverLock, lock_of
from onceflow.pipeline.preflight import check_cluster, check_plan
from onceflow.pipeline.readings import readings, topics_in_order
from onceflow.pipeline.resume import prepare
from onceflow.session import NO_CHANGELOGS, WORKER_DAEMON, full_names, spark_session
from onceflow.transaction.committed import read_committed
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.progress import OnMismatch
from onceflow.transaction.questions import Committed
from onceflow.transaction.sink import KafkaSink

log = logging.getLogger(__name__)

COMMIT_LOG_PATIENCE_S = 10.0
UNHURRIED_S = 60.0  # nobody waits for a query that is only to begin again
SET_BACK = "the wall clock was set back by {:.0f} s, by which Spark waits; the query is started again"


@telling_of_a_lost_jvm()
def run(
    file: PlanFile,
    *,
    tell: Listener,
    control: Control,
    mode: OnMismatch = OnMismatch.REFUSE,
    begun: str = "",
    spark_log: str = "error",
    settings: ClusterSettings | None = None,
    triggered: Callable[[], None] = lambda: None,
    make_sink: Callable[..., KafkaSink] = KafkaSink,
) -> Finished:
    """Runs a plan until its data ends (``available_now``), it is asked to stop, or an error ends it.

    ``mode`` is what to do when the checkpoint does not continue the committed progress, and ``begun`` the query that a run
    before has begun to do so and not committed, if there was one; ``spark_log`` the level of Spark's own log; ``settings``
    those of the plan's cluster, where they are known already; ``triggered`` is called after each trigger of the query, on a
    thread of its own; ``make_sink`` makes the sink, as its class does. Raises an OnceflowError, where possible before anything
    is read or written. Runs on the driver, blocks.
    """
    settings = settings or connect(file, tell)
    fence = EarlyFence(file.plan, settings)
    lock = lock_of(file, settings)
    is_own = SparkSession.getActiveSession() is None
    if is_own and lock.take_from_dead():  # with a session it is fenced in a moment
        fence.begin()
    admin = ClusterAdmin(settings)
    cluster = check_cluster(file, settings, admin)
    for note in cluster.notes:
        tell(Note(note))
    read = _read_once(file, settings)
    try:
        spark = session(file, spark_log)
    finally:
        fence.wait()
    try:
        if is_own:
            _leave_sigterm_to_python(spark)
        frame = check_plan(file, spark, settings, cluster, {})
        topics.create(file, admin, cluster.missing, tell)
        known = admin.partitions() if cluster.missing else cluster.known
        with _in_our_words(f"the checkpoint {file.checkpoint}"):
            checkpoint = Checkpoint(spark, file.checkpoint)
            allowed, starting = prepare(
                file, mode, checkpoint, settings, known, topics_in_order(frame, known), tell, read, begun
            )
        if starting:
            frame = check_plan(file, spark, settings, cluster, starting)
        sink = _sink(make_sink, file, settings, allowed)
        planned = checkpoint.has_batches
        at_once = file.plan.guarantee == "at_least_once" or read().progress is None
        return _Run(file, settings, spark, frame, sink, tell, control, triggered, lock).execute(
            planned, at_once=at_once
        )
    finally:
        if is_own:
            end_session(spark)


def _read_once(file: PlanFile, settings: ClusterSettings) -> Callable[[], Committed]:
    """What was committed when it was asked for first. It may be old by the time it is used, which decides nothing::

        the name is found new; another driver claims it and commits batch 0
        taken for new all the same it is claimed early: the claim fences, reads the progress again, and finds batch 0

        a driver of the name is at its first commit, and nothing of it is read; the checkpoint is set aside, which fences
        the commit was decided before the fence, or never can be: again the claim, which comes later, finds out

    So who reads what a batch is judged by (protocol.py) reads behind a fence of its own; here it is only when to claim, and what
    to tell. The offsets at which a resume begins are compared once more by the sink.
    """
    return cache(partial(read_committed, file.plan.name, settings))


def end_session(spark: SparkSession) -> None:
    """A JVM that has died cannot be stopped; why the run ended with it is told by another error."""
    with contextlib.suppress(Py4JError, ConnectionError):
        spark.stop()


@contextlib.contextmanager
def _in_our_words(what: str) -> Iterator[None]:
    """What Java raises about something: a file system that it does not know, a right that is not there."""
    try:
        yield
    except Py4JError as error:
        raise QueryFailed(f"{what}: {reason_of(error)}", action="see the cause; nothing was begun") from error


def session(file: PlanFile, log_level: str, scratch: Path | None = None) -> SparkSession:
    """The plan's Spark session. What it leaves on the disk goes to ``scratch``, unless the plan says where."""
    config = full_names(file.plan.spark)
    master = config.pop("spark.master", "local[*]")
    config = {**WORKER_DAEMON, **config}  # a plan has no Python but ours
    if scratch is not None:
        config.setdefault("spark.local.dir", str(scratch))
        options = f'"-Djava.io.tmpdir={scratch}" {config.get("spark.driver.extraJavaOptions", "")}'
        config["spark.driver.extraJavaOptions"] = options.rstrip()
    with _own_signal_handlers():
        return spark_session(f"onceflow-{file.plan.name}", master=master, config=config, log_level=log_level)


@contextlib.contextmanager
def _for_a_query(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """A query takes its session's settings along when it is started; the session, which may have others, gets its own back."""
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, own in before.items():
            spark.conf.set(name, str(own))


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """PySpark takes SIGINT for itself when a session starts, to cancel all jobs; here it means to end in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave_sigterm_to_python(spark: SparkSession) -> None:
    """As PySpark does with SIGINT: the JVM of a session that is ours ignores it, and ends with its Python::

    a service manager stops the service (systemd, unless told otherwise): SIGTERM comes to Python and to its JVM
    Python ends in order, after the running batch; the JVM would have ended at once, in the middle of it

    A JVM that has started Python (spark-submit) is the one that has to hear it.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    jvm: Any = spark._jvm  # noqa: SLF001  PySpark has no other way to ask
    misc = jvm.sun.misc
    # -Xrs, by its user's wish: it takes no signals; a Java without this module
    with contextlib.suppress(Py4JError, TypeError):
        misc.Signal.handle(misc.Signal("TERM"), misc.SignalHandler.SIG_IGN)


class _Run:
    """One run of a plan: one query, and another one behind each time that the clock was set back."""

    def __init__(
        self,
        file: PlanFile,
        settings: ClusterSettings,
        spark: SparkSession,
        frame: DataFrame,
        sink: KafkaSink,
        tell: Listener,
        control: Control,
        triggered: Callable[[], None],
        lock: DriverLock,
    ) -> None:
        self._file = file
        self._settings = settings
        self._spark = spark
        self._frame = frame
        self._tell = tell
        self._inbox = control.inbox
        self._triggered = triggered
        self._lock = lock
        self._sink = sink
        self._batch = Remembering(self._sink)
        self._asked_to_stop: StopAsked | None = None
        self._claiming = threading.Lock()
        self._is_open = True  # to a claim
        self._told = -1
        self._batches = 0
        self._records = 0

    def execute(self, planned: bool, *, at_once: bool) -> Finished:
        """Claims a name without progress (``at_once``), starts the query and sees it through.

        Such a name is claimed before the query plans its first batch (``planned``: it did so in an earlier run), so that progress
        which is not there has been forgotten by the cluster, and never was missing. Another one may have a driver at work, and a
        query that cannot start must not fence it: that is claimed with the first batch, or when the query has triggered. (One
        whose checkpoint was set aside is fenced before that: resume.py.)
        """
        self._planned = planned
        listener = ProgressListener(self._file.plan.name, self._inbox.put, readings(self._frame), self._ran)
        self._spark.streams.addListener(listener)
        with self._lock:
            try:
                if at_once:
                    self._sink.open(planned=planned)
                    self._is_open = False
                with self._clock_watched():
                    while (reason := self._see_through()) is None:
                        self._sink.go_on()
            finally:
                with contextlib.suppress(Py4JError, ConnectionError):  # of a JVM that has died
                    self._spark.streams.removeListener(listener)
                self._close()
        finished = Finished(self._file.plan.name, self._batches, self._records, reason)
        self._tell(finished)
        return finished

    def _clock_watched(self) -> contextlib.AbstractContextManager[None]:
        """By that clock Spark waits for a trigger, and tells of a query that has nothing to do."""
        if self._file.plan.trigger.available_now:
            return contextlib.nullcontext()
        return watched(lambda seconds: self._inbox.put(ClockSetBack(seconds)))

    def _see_through(self) -> str | None:
        """One query, from its start to its end. Why it ended; None: another one is to begin."""
        self._batch = Remembering(self._sink, self._batch.reports)
        query = self._start()
        run_id = str(query.runId)
        with self._ended_with_us(query):
            self._tell_started(query)
            self._lock.take()
            threading.Thread(target=self._watch, args=(query, run_id), name="onceflow-watch", daemon=True).start()
            return self._follow(query, run_id)

    @contextlib.contextmanager
    def _ended_with_us(self, query: StreamingQuery) -> Iterator[None]:
        """A session of the caller's own outlives this run (Ctrl-C in a notebook, a ``tell`` that raises); its query must not::

        the run is left by an exception, and the sink is closed; the query goes on
        its next batch opens the sink anew, claims the name and writes, and nobody is told of it
        """
        try:
            yield
        except BaseException:
            with contextlib.suppress(Py4JError, ConnectionError):  # of a JVM that has died
                if query.isActive:
                    self._sink.drain()
                    query.stop()
            raise

    def _claim_at_rest(self) -> None:
        """Until it is claimed, and not behind the end: a trigger may be told of when the sink is closed.

        A name that was lost to another driver is not claimed again, or the two would fence each other for ever. And a running
        batch is not waited for: it claims the name itself, and Spark's listeners (this is one) are to stand still for none.
        """
        with self._claiming:
            if self._is_open:
                try:
                    self._is_open = not self._sink.open(planned=self._planned, wait=False)
                except Fenced:
                    self._is_open = False
                    raise

    def _ran(self) -> None:
        """Without input no batch claims the name, and what is committed under it has to be renewed."""
        try:
            self._claim_at_rest()
        except OnceflowError as error:  # the first batch raises it; until then the next trigger may mend it
            log.warning("pipeline %s rests, and its name could not be claimed: %s", self._file.plan.name, error)
        self._triggered()

    def _close(self) -> None:
        self._is_open = False  # no claim begins any more
        with self._claiming:
            self._sink.close()

    def _start(self) -> StreamingQuery:
        plan = self._file.plan
        writer = self._frame.writeStream.foreachBatch(self._batch).outputMode(plan.output.mode)
        writer = writer.queryName(plan.name).option("checkpointLocation", self._file.checkpoint)
        try:
            with _for_a_query(self._frame.sparkSession, _state_of(self._file)):
                return _triggered(writer, self._file).start()
        except Exception as error:
            raise explain(error) from error

    def _tell_started(self, query: StreamingQuery) -> None:
        """First of all, for a supervisor has to know which query began a restart::

        the checkpoint is set aside, as it was asked for, and the query goes on to its first batch, and commits it
        the driver is killed before it has told of that query; the next one would do all of it again
        """
        plan, servers = self._file.plan, self._settings.bootstrap_servers
        self._tell(Started(plan.name, plan.guarantee, str(query.id), self._file.checkpoint, servers))

    def _watch(self, query: StreamingQuery, run_id: str) -> None:
        # The query's exception is asked for where it can be raised.
        with contextlib.suppress(Exception):
            query.awaitTermination()
        self._inbox.put(Ended(run_id))

    def _follow(self, query: StreamingQuery, run_id: str) -> str | None:
        """Tells of batches until the query ends. Why it ended; None: the clock is set back, and another one is to begin."""
        while True:
            message = self._inbox.get()
            if isinstance(message, Progress):
                self._report(message)
            elif isinstance(message, StopAsked):
                self._tell(Stopping(message.reason))
                self._end(query, COMMIT_LOG_PATIENCE_S)
                return message.reason
            elif isinstance(message, ClockSetBack):
                self._tell(Note(SET_BACK.format(message.seconds)))
                self._end(query, UNHURRIED_S)
                return self._asked_to_stop_meanwhile()
            elif isinstance(message, Ended) and message.run_id == run_id:
                self._raise_failure(query)
                self._await_commit_log(time.monotonic() + COMMIT_LOG_PATIENCE_S)
                return "all available data is processed"

    def _end(self, query: StreamingQuery, patience_s: float) -> None:
        self._sink.drain()
        self._await_commit_log(time.monotonic() + patience_s)
        self._raise_failure(query)
        query.stop()
        self._raise(self._batch.error)  # of a batch whose failure was on its way to us when the query was asked

    def _asked_to_stop_meanwhile(self) -> str | None:
        """Why, where somebody asked for the end of all while a query was ended for another one."""
        while self._asked_to_stop is None and not self._inbox.empty():
            self._hear(self._inbox.get())
        if self._asked_to_stop is None:
            return None
        self._tell(Stopping(self._asked_to_stop.reason))
        return self._asked_to_stop.reason

    def _hear(self, message: object) -> None:
        """What comes while a query is being ended."""
        if isinstance(message, Progress):
            self._report(message)
        elif isinstance(message, StopAsked):
            self._asked_to_stop = message

    def _await_commit_log(self, deadline: float) -> None:
        """Waits until every batch of the sink is told of, unless the query fails or time runs out before."""
        while self._told < self._batch.newest:
            try:
                message = self._inbox.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                return
            self._hear(message)
            if isinstance(message, Ended) and self._batch.error is not None:
                return
            if isinstance(message, Ended | StopAsked):  # there is less to wait for now, or somebody who waits
                deadline = min(deadline, time.monotonic() + COMMIT_LOG_PATIENCE_S)

    def _report(self, progress: Progress) -> None:
        """Spark also reports triggers without a batch; only what went through the sink is told."""
        report = self._batch.taken(progress.batch_id)
        if report is None:
            return
        self._told = progress.batch_id
        self._batches += 1
        self._records += report.records
        sink_ms = round(report.seconds * 1000)
        self._tell(
            BatchCommitted(
                report.batch_id, report.written, progress.rows_in, report.records, progress.malformed,
                progress.duration_ms, sink_ms,
            )
        )  # fmt: skip

    def _raise_failure(self, query: StreamingQuery) -> None:
        """The query is asked first::

        run     finds no error of a batch, and asks the query, which takes a moment
        Spark   begins the next batch meanwhile; the sink, which drains, refuses it, and keeps that; the query ends with it
        run     is told of an exception: an end in order would be told as a failure

        What a batch raises for want of a JVM says anything but that::

            JVM     is killed in the middle of a batch
            sink    asks it for the rows; py4j gets no answer, and raises: PythonUtils does not exist in the JVM
            run     shows that as the cause
        """
        ended = _why_ended(query)
        error = self._batch.error
        if error is None or (has_lost_jvm(ended) and not isinstance(error, OnceflowError)):
            error = ended
        self._raise(error)

    def _raise(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, Draining):
            raise explain(error, self._visible()) from error

    def _visible(self) -> str:
        guarantee, done = Guarantee(self._file.plan.guarantee), self._done_untold()
        return guarantee.of_a_batch_that_failed if done is None else guarantee.of_a_batch_that_is_done(done)

    def _done_untold(self) -> int | None:
        """The batch that the sink has done, and Spark not: it failed behind the sink."""
        newest = self._batch.newest
        return newest if self._batch.error is None and newest > self._told else None


def _why_ended(query: StreamingQuery) -> Exception | None:
    try:
        return query.exception()
    except (Py4JError, ConnectionError) as error:  # a JVM that has died does not tell
        return error


def _sink(make: Callable[..., KafkaSink], file: PlanFile, settings: ClusterSettings, mode: OnMismatch) -> KafkaSink:
    plan = file.plan
    return make(
        name=plan.name,
        bootstrap_servers=settings.bootstrap_servers,
        guarantee=plan.guarantee,
        on_mismatch=mode.value,
        compression=plan.output.compression,
        transaction_timeout_ms=plan.output.transaction_timeout.ms,
        kafka=dict(settings.options),
    )


def _state_of(file: PlanFile) -> dict[str, str]:
    """How a query that ends by itself keeps its state, unless the plan says how; the session's own way, if it does not end."""
    if not file.plan.trigger.available_now:
        return {}
    own = full_names(file.plan.spark)
    return {name: value for name, value in NO_CHANGELOGS.items() if name not in own}


def _triggered(writer: DataStreamWriter, file: PlanFile) -> DataStreamWriter:
    trigger = file.plan.trigger
    if trigger.available_now:
        return writer.trigger(availableNow=True)
    if trigger.processing_time is not None:
        return writer.trigger(processingTime=f"{trigger.processing_time.ms} milliseconds")
    return writer
