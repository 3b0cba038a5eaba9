"""A sink beside its driver: its options, and who comes when to the lock that batches, renewals and its end share.

The driver here needs neither cluster nor Spark; with the real one sinks are tried in ``tests/test_driver.py``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from onceflow.errors import ConfigurationError, Draining
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction import sink
from onceflow.transaction.compression import Codec
from onceflow.transaction.coordinator import OnStep
from onceflow.transaction.driver import BatchReport, Driver, Options
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.progress import OnMismatch
from onceflow.transaction.renewing import Renewal
from onceflow.transaction.sink import KafkaSink

PATIENCE_S = 60.0
FRAME = cast("DataFrame", "a frame")
SERVERS = "localhost:1"
KEPT_S = 80.0

# ---------------------------------------------------------------------------------------------------------------- options


def a_sink(**options: Any) -> KafkaSink:
    return KafkaSink("out", **{"name": "p", "bootstrap_servers": SERVERS, **options})


def test_what_nobody_says_has_a_default() -> None:
    assert a_sink()._options == Options(
        name="p",
        topic="out",
        guarantee=Guarantee.EXACTLY_ONCE,
        on_mismatch=OnMismatch.REFUSE,
        codec=Codec.LZ4,
        transaction_timeout_ms=60_000,
        driver_bytes=None,
        max_attempts=5,
        patience_s=120.0,
        cluster=ClusterSettings.of(SERVERS, {}),
    )


def test_what_is_said_counts() -> None:
    """The least that there may be of each."""
    tls = {"security.protocol": "SSL"}
    said = a_sink(
        guarantee="at_most_once",
        on_mismatch="resume",
        compression="zstd",
        transaction_timeout_ms=1000,
        driver_bytes=0,
        max_attempts=1,
        patience_s=0.5,
        kafka=tls,
    )
    cluster = ClusterSettings.of(SERVERS, tls)
    assert cluster != ClusterSettings.of(SERVERS, {})
    assert said._options == Options(
        "p", "out", Guarantee.AT_MOST_ONCE, OnMismatch.RESUME, Codec.ZSTD, 1000, 0, 1, 0.5, cluster
    )


def mistakes(**options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        a_sink(**options)
    assert refused.value.fields["where"] == "KafkaSink"
    return cast("tuple[str, ...]", refused.value.fields["mistakes"])


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("name", "", "name = '': 1 to 200 letters, digits, '.', '_' or '-'"),
        (
            "name",
            "outbox-orders",
            "name = 'outbox-orders': its transactional id is that of the outbox 'orders'; choose another one",
        ),
        ("guarantee", "twice", "guarantee = 'twice': one of exactly_once, at_least_once, at_most_once"),
        ("on_mismatch", "ignore", "on_mismatch = 'ignore': one of refuse, resume, restart"),
        ("compression", "LZ4", "compression = 'LZ4': one of none, gzip, snappy, lz4, zstd"),
        ("transaction_timeout_ms", 999, "transaction_timeout_ms = 999: at least 1000"),
        ("driver_bytes", -1, "driver_bytes = -1: at least 0"),
        ("max_attempts", 0, "max_attempts = 0: at least 1"),
        ("patience_s", 0, "patience_s = 0: a number of seconds above 0"),
        ("patience_s", -0.5, "patience_s = -0.5: a number of seconds above 0"),
        ("patience_s", math.inf, "patience_s = inf: a number of seconds above 0"),
        ("patience_s", math.nan, "patience_s = nan: a number of seconds above 0"),
    ],
)
def test_a_mistake_is_told_with_what_may_stand_there(option: str, value: object, told: str) -> None:
    assert mistakes(**{option: value}) == (told,)


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {"acks": "0", "enable.idempotence": "false"}
    of_the_cluster = cluster_mistakes(wrong)
    assert len(of_the_cluster) > 1
    assert mistakes(max_attempts=0, patience_s=0, kafka=wrong) == (
        "max_attempts = 0: at least 1",
        "patience_s = 0: a number of seconds above 0",
        *of_the_cluster,
    )


def cluster_mistakes(options: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        ClusterSettings.of(SERVERS, options)
    return cast("tuple[str, ...]", refused.value.fields["mistakes"])


# ---------------------------------------------------------------------------------------------------------------- batches


class Noted(Driver):
    """What it was asked for, in order."""

    def __init__(self, options: Options, on_step: OnStep | None) -> None:
        super().__init__(options, on_step)
        self.heard: list[tuple[object, ...]] = []

    def open(self, *, planned: bool) -> None:
        self.heard.append(("open", planned))

    def run(self, frame: DataFrame, batch_id: int) -> BatchReport:
        self.heard.append(("run", frame, batch_id))
        return BatchReport(batch_id, True, 3, 0.5)

    def renew(self, older_than_s: float) -> None:
        self.heard.append(("renew", older_than_s))

    def close(self) -> None:
        self.heard.append(("close",))


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "Driver", Noted)
    monkeypatch.setattr(sink, "retention_s", lambda cluster: {ClusterSettings.of(SERVERS, {}): KEPT_S}[cluster])


@pytest.fixture
def used() -> Iterator[KafkaSink]:
    found = a_sink()
    yield found
    if found._renewal is not None:
        found._renewal._stopped.set()


def heard(used: KafkaSink) -> list[tuple[object, ...]]:
    assert isinstance(used._driver, Noted)
    return used._driver.heard


def renewal(used: KafkaSink) -> Renewal:
    assert used._renewal is not None
    return used._renewal


def test_a_batch_goes_to_the_driver_and_its_report_is_kept(used: KafkaSink) -> None:
    assert used.last is None
    for number in (0, 1):
        used(FRAME, number)
        assert used.last == BatchReport(number, True, 3, 0.5)
    assert heard(used) == [("run", FRAME, 0), ("run", FRAME, 1)]
    assert not used._running.locked()


def test_the_driver_has_the_options_and_tells_the_steps() -> None:
    steps: list[tuple[str, int]] = []
    used = a_sink(on_step=lambda step, batch_id: steps.append((step, batch_id)), guarantee="at_least_once")
    driver = used._opened()
    assert driver._options is used._options
    assert driver._on_step is not None
    driver._on_step("WRITE", 4)
    assert steps == [("WRITE", 4)]
    assert used._opened() is driver


def test_a_sink_that_drains_begins_no_batch_until_it_goes_on(used: KafkaSink) -> None:
    used(FRAME, 6)
    used.drain()
    with pytest.raises(Draining, match="pipeline 'p' ends; batch 7 was not begun"):
        used(FRAME, 7)
    assert heard(used) == [("run", FRAME, 6)]
    used.go_on()
    used(FRAME, 7)
    assert heard(used) == [("run", FRAME, 6), ("run", FRAME, 7)]


@pytest.mark.parametrize("planned", [False, True])
def test_opening_is_told_to_the_driver_and_leaves_the_lock_free(planned: bool, used: KafkaSink) -> None:
    for _ in range(2):
        assert used.open(planned=planned, wait=False) is True
    assert heard(used) == [("open", planned)] * 2


class Taken:
    """A lock that a batch holds for ever: who waits for it hangs."""

    def acquire(self, *, blocking: bool = True) -> bool:
        assert not blocking, "it hangs"
        return False

    def release(self) -> None:
        raise AssertionError("it is another's")


def test_where_a_batch_runs_who_does_not_wait_opens_nothing(used: KafkaSink) -> None:
    used._running = Taken()  # type: ignore[assignment]
    assert used.open(planned=False, wait=False) is False
    assert used._driver is None


class Shared:
    """A lock. ``came`` is set when somebody was there whom it did not let in at once; ``first`` is done by who had it before."""

    def __init__(self, first: Callable[[], object] = lambda: None) -> None:
        self._lock = threading.Lock()
        self.came = threading.Event()
        self._first = first

    def acquire(self, *, blocking: bool = True) -> bool:
        at_once = self._lock.acquire(blocking=False)
        self.came.set()
        return at_once or (blocking and self._lock.acquire(timeout=PATIENCE_S))

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        assert self.acquire()
        first, self._first = self._first, lambda: None
        first()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_who_opens_waits_for_the_batch_that_runs(used: KafkaSink) -> None:
    used._running = lock = Shared()  # type: ignore[assignment]
    lock._lock.acquire()
    opened: list[bool] = []
    opening = threading.Thread(target=lambda: opened.append(used.open(planned=False)))
    opening.start()
    assert lock.came.wait(PATIENCE_S)
    lock.release()
    opening.join(PATIENCE_S)
    assert opened == [True]


# --------------------------------------------------------------------------------------------------------------- renewals


def test_an_opened_sink_renews_on_one_thread_what_the_cluster_would_drop(used: KafkaSink) -> None:
    used._opened()
    first = renewal(used)
    assert first._thread.is_alive()
    assert first._between_s() == KEPT_S / 8
    assert first._look(5.0)
    assert heard(used) == [("renew", 5.0)]
    used._opened()
    assert renewal(used) is first


def test_where_there_is_no_progress_none_is_renewed() -> None:
    used = a_sink(guarantee="at_least_once")
    used(FRAME, 0)
    assert used._renewal is None


def test_what_was_never_opened_is_not_renewed_and_goes_on_and_ends_all_the_same(used: KafkaSink) -> None:
    used._renew(0.0)
    for end in (used.drain, used.go_on, used.close):
        end()
    assert used._driver is None


@pytest.mark.parametrize("end", [KafkaSink.drain, KafkaSink.close])
def test_an_end_stops_the_renewal(end: Callable[[KafkaSink], None], used: KafkaSink) -> None:
    used._opened()
    ended = renewal(used)
    end(used)
    assert ended._stopped.is_set()
    assert used._renewal is None
    used._renew(0.0)  # its thread was about to
    assert heard(used) == ([("close",)] if end is KafkaSink.close else [])


@pytest.mark.parametrize("end", [KafkaSink.drain, KafkaSink.close])
def test_an_end_that_waits_for_a_batch_has_stopped_the_renewal(end: Callable[[KafkaSink], None]) -> None:
    """Which waits for the lock as well, and may be the first to get it."""
    used = a_sink()
    used._opened()
    ended = renewal(used)
    used._running = lock = Shared()  # type: ignore[assignment]
    lock._lock.acquire()
    ending = threading.Thread(target=end, args=(used,))
    ending.start()
    assert lock.came.wait(PATIENCE_S)
    stopped = ended._stopped.is_set()
    lock.release()
    ending.join(PATIENCE_S)
    assert stopped


@pytest.mark.parametrize("end", [KafkaSink.drain, KafkaSink.close])
def test_an_end_stops_the_renewal_that_the_running_batch_has_begun(end: Callable[[KafkaSink], None]) -> None:
    """::

    a sink's first batch has the lock; the sink is closed, which finds no renewal, and waits
    the batch begins one, and ends
    """
    used = a_sink()
    used._running = Shared(used._opened)  # type: ignore[assignment]
    end(used)
    assert used._renewal is None
    assert used._driver is not None


def test_while_a_sink_begins_to_drain_nothing_is_renewed(used: KafkaSink) -> None:
    """It waits for the lock, which a renewal may have first: of the one that the last batch has begun."""
    used._opened()
    used._draining = True
    used._renew(0.0)
    assert heard(used) == []


def test_what_goes_on_renews_again(used: KafkaSink) -> None:
    used._opened()
    used.drain()
    used.go_on()
    assert renewal(used)._thread.is_alive()
    used._renew(3.0)
    assert heard(used) == [("renew", 3.0)]
