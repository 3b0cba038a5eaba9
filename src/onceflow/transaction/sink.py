"""``KafkaSink``: the function for ``writeStream.foreachBatch`` that makes a micro-batch one Kafka transaction."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from pyspark.sql import DataFrame

from onceflow.errors import ConfigurationError, Draining
from onceflow.kafka.names import is_pipeline, taken_by
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.compression import Codec
from onceflow.transaction.coordinator import OnStep
from onceflow.transaction.driver import BatchReport, Driver, Options
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.progress import OnMismatch
from onceflow.transaction.renewing import Renewal, retention_s

_Choice = TypeVar("_Choice", bound=Enum)


class KafkaSink:
    """Writes each micro-batch of a streaming query to Kafka, exactly once.

    Use it as ``writeStream.foreachBatch(KafkaSink("sales", name="retail", bootstrap_servers="…"))``, with a checkpoint.
    Columns: ``value`` (string or binary; null is a tombstone), and optionally ``key``, ``topic`` (instead of the first
    argument), ``partition``, ``headers`` (array of struct key, value) and ``timestamp``. It takes one frame of each batch, and so
    does its name: a second one is refused.

    ``name`` is the pipeline's identity: transactional id and progress group are ``onceflow-<name>``, and a second driver
    with the same name fences the first. ``guarantee`` is ``exactly_once``, ``at_least_once`` (a crash may repeat a batch, and
    loses none) or ``at_most_once`` (it may lose one, and repeats none). ``compression`` is ``none``, ``gzip``, ``snappy``,
    ``lz4`` or ``zstd``. ``on_mismatch`` says what to do when the checkpoint does not continue the committed progress (or, where
    there is none, does not begin at the offsets that ``at_least_once`` has committed): ``refuse``, ``resume`` (a new checkpoint
    that starts at the committed offsets) or ``restart`` (take up the checkpoint as it is; output may repeat).
    ``transaction_timeout_ms`` is how long the broker waits for a driver that stopped in the middle of a batch, and readers with
    it. Batches estimated below ``driver_bytes`` (default: what Spark's driver can hold) are written by the driver alone, larger
    ones by executors. A batch is tried ``max_attempts`` times; a request is repeated for ``patience_s`` seconds. ``kafka`` holds
    Java client options (``security.protocol``, …) without prefix. ``on_step`` is told each protocol step before it is taken, for
    tests.

    While there is no input what is committed is renewed, so that the cluster does not drop it, from the first batch on or from
    ``open``, until ``close``: call that when the query has ended, however it did. A sink that is never closed goes on renewing,
    for it does not know of its query's end, and may be given to another start of it. That costs a thread and its connections,
    and keeps no process alive (a daemon); it ends when another driver takes the name.

    Raises ConfigurationError at once; while running Fenced, ProgressConflict, InputError and others of ``onceflow.errors``.
    Runs on the driver; executors need onceflow installed. Sources: KIP-98, KIP-447, KIP-664, KIP-890.
    """

    def __init__(
        self,
        topic: str | None = None,
        *,
        name: str,
        bootstrap_servers: str,
        guarantee: str = "exactly_once",
        on_mismatch: str = "refuse",
        compression: str = "lz4",
        transaction_timeout_ms: int = 60_000,
        driver_bytes: int | None = None,
        max_attempts: int = 5,
        patience_s: float = 120.0,
        kafka: Mapping[str, str] | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        mistakes: list[str] = []
        codecs = {codec.name.lower(): codec for codec in Codec}
        self._options = Options(
            name=_checked_name(name, mistakes),
            topic=topic,
            guarantee=_choice(
                {g.value: g for g in Guarantee}, "guarantee", guarantee, mistakes, Guarantee.EXACTLY_ONCE
            ),
            on_mismatch=_choice(
                {m.value: m for m in OnMismatch}, "on_mismatch", on_mismatch, mistakes, OnMismatch.REFUSE
            ),
            codec=_choice(codecs, "compression", compression, mistakes, Codec.LZ4),
            transaction_timeout_ms=_at_least(1000, "transaction_timeout_ms", transaction_timeout_ms, mistakes),
            driver_bytes=None if driver_bytes is None else _at_least(0, "driver_bytes", driver_bytes, mistakes),
            max_attempts=_at_least(1, "max_attempts", max_attempts, mistakes),
            patience_s=_patience(patience_s, mistakes),
            cluster=_cluster(bootstrap_servers, kafka, mistakes),
        )
        if mistakes:
            raise ConfigurationError.of("KafkaSink", mistakes)
        self._on_step = on_step
        self._driver: Driver | None = None
        self._running = threading.Lock()
        self._draining = False
        self._renewal: Renewal | None = None
        self.last: BatchReport | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Called by Spark for each micro-batch."""
        with self._running:
            if self._draining:
                raise Draining(f"pipeline {self._options.name!r} ends; batch {batch_id} was not begun")
            self.last = self._opened().run(batch, batch_id)

    def open(self, *, planned: bool, wait: bool = True) -> bool:
        """Connects and claims the name now: before the query plans its first batch, and not with it.

        ``planned``: the query's checkpoint has batches already (files in its ``offsets``). Whoever planned them had opened a
        sink before, so a cluster that knows of no progress has forgotten it: ProgressGone. Nobody can tell later, for the claim
        of a new name hides it. Without ``open`` only the age of batch 0 says so: one that was planned longer ago than the
        cluster keeps progress. Raises as the first batch does. ``wait=False``: where a batch runs, which claims the name itself,
        nothing is done, and False given.
        """
        if not self._running.acquire(blocking=wait):
            return False
        try:
            self._opened().open(planned=planned)
        finally:
            self._running.release()
        return True

    def _opened(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options, self._on_step)
        if self._renewal is None and self._driver.has_progress:
            self._renewal = Renewal(self._options.name, self._renew, lambda: retention_s(self._options.cluster))
            self._renewal.start()
        return self._driver

    def _renew(self, older_than_s: float) -> None:
        """On the renewal's thread, which may be about to call it when the sink is drained or closed."""
        with self._running:
            if self._driver is not None and self._renewal is not None and not self._draining:
                self._driver.renew(older_than_s)

    def drain(self) -> None:
        """Waits for the running batch and lets none begin after it: then the query can be stopped without an abort."""
        self._draining = True
        self._end_renewal()
        with self._running:
            self._end_renewal()  # the running batch may have begun one

    def go_on(self) -> None:
        """After ``drain``: batches may begin again, those of the query that is started behind the one that was stopped."""
        with self._running:
            self._draining = False
            if self._driver is not None:
                self._opened()

    def close(self) -> None:
        """Closes the connections, once the running batch has ended."""
        self._end_renewal()
        with self._running:
            self._end_renewal()  # the running batch may have begun one
            if self._driver is not None:
                self._driver.close()

    def _end_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None


def _checked_name(name: str, mistakes: list[str]) -> str:
    if not is_pipeline(name):
        mistakes.append(f"name = {name!r}: 1 to 200 letters, digits, '.', '_' or '-'")
    if why_not := taken_by(name):
        mistakes.append(f"name = {name!r}: {why_not}")
    return name


def _choice(
    choices: Mapping[str, _Choice], option: str, value: str, mistakes: list[str], otherwise: _Choice
) -> _Choice:
    if value not in choices:
        mistakes.append(f"{option} = {value!r}: one of {', '.join(choices)}")
    return choices.get(value, otherwise)


def _at_least(least: int, option: str, value: int, mistakes: list[str]) -> int:
    if value < least:
        mistakes.append(f"{option} = {value}: at least {least}")
    return value


def _patience(seconds: float, mistakes: list[str]) -> float:
    if not 0 < seconds < math.inf:
        mistakes.append(f"patience_s = {seconds!r}: a number of seconds above 0")
        return 1.0
    return seconds


def _cluster(bootstrap_servers: str, options: Mapping[str, str] | None, mistakes: list[str]) -> ClusterSettings:
    try:
        return ClusterSettings.of(bootstrap_servers, options)
    except ConfigurationError as error:
        mistakes.extend(error.fields.get("mistakes", (error.message,)))
        return ClusterSettings.of("localhost:9092")
