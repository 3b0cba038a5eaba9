"""What a sink's renewal must not disturb: batches, an end, a name without progress. It runs on a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import cast

import pytest
from pyspark.sql import DataFrame

from onceflow.errors import Draining
from onceflow.transaction import renewing, sink
from onceflow.transaction.coordinator import OnStep
from onceflow.transaction.driver import BatchReport, Driver, Options
from onceflow.transaction.renewing import Renewal
from onceflow.transaction.sink import KafkaSink

NO_FRAME = cast("DataFrame", None)
PATIENCE_S = 60.0
SOON_S = 0.08


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewing, "_FIRST_LOOK_S", 0.0)


def test_it_looks_on_a_thread_of_its_own_until_it_is_stopped() -> None:
    ages: queue.SimpleQueue[float] = queue.SimpleQueue()
    renewal = Renewal("orders", ages.put, lambda: SOON_S)
    renewal.start()
    assert {ages.get(timeout=PATIENCE_S) for _ in range(3)} == {SOON_S / 8}
    renewal.stop()
    renewal._thread.join(PATIENCE_S)
    assert not renewal._thread.is_alive()


class Noted(Driver):
    """Needs no cluster. A batch waits until it may end; ``done`` is what was done, in order."""

    def __init__(self, options: Options, on_step: OnStep | None) -> None:
        super().__init__(options, on_step)
        self.done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.may_end = threading.Event()

    def open(self, *, planned: bool) -> None:
        self.done.put(f"open, {'planned' if planned else 'new'}")

    def run(self, _: DataFrame, batch_id: int) -> BatchReport:
        self.done.put("batch begins")
        assert self.may_end.wait(PATIENCE_S)
        self.done.put("batch ends")
        return BatchReport(batch_id, True, 0, 0.0)

    def renew(self, _: float) -> None:
        self.done.put("renewed")


class Awaited:
    """A lock that tells when the renewal comes to it while it is taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.renewal_waits = threading.Event()

    def __enter__(self) -> None:
        if self._lock.locked() and threading.current_thread().name == "onceflow-renewal":
            self.renewal_waits.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "Driver", Noted)
    monkeypatch.setattr(sink, "retention_s", lambda cluster: SOON_S)


def noted(used: KafkaSink) -> Noted:
    assert isinstance(used._driver, Noted)
    return used._driver


def forget(used: KafkaSink) -> None:
    """What was done so far."""
    while not noted(used).done.empty():
        noted(used).done.get()


def a_sink(**options: str) -> KafkaSink:
    return KafkaSink("out", name="p", bootstrap_servers="localhost:1", **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("planned", "told"), [(False, "open, new"), (True, "open, planned")])
def test_a_sink_that_is_opened_renews_before_its_first_batch(planned: bool, told: str) -> None:
    used = a_sink()
    used.open(planned=planned)
    assert [noted(used).done.get(timeout=PATIENCE_S) for _ in range(2)] == [told, "renewed"]
    used.close()


@pytest.mark.usefixtures("often")
def test_a_sink_that_was_closed_is_told_of_what_is_planned_by_then() -> None:
    used = a_sink()
    used.open(planned=False)
    used.close()
    forget(used)
    used.open(planned=True)
    assert noted(used).done.get(timeout=PATIENCE_S) == "open, planned"
    used.close()


@pytest.mark.usefixtures("often")
def test_no_renewal_comes_between_the_steps_of_a_batch() -> None:
    used = a_sink()
    used._running = lock = Awaited()  # type: ignore[assignment]
    driver = used._opened()
    assert isinstance(driver, Noted)
    batch = threading.Thread(target=used, args=(NO_FRAME, 0), name="batch")
    batch.start()
    while driver.done.get(timeout=PATIENCE_S) != "batch begins":
        pass  # a renewal was first
    assert lock.renewal_waits.wait(PATIENCE_S)
    driver.may_end.set()
    assert [driver.done.get(timeout=PATIENCE_S) for _ in range(2)] == ["batch ends", "renewed"]
    used.close()
    batch.join()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("end", [KafkaSink.drain, KafkaSink.close])
def test_a_sink_that_ends_renews_nothing_any_more(end: Callable[[KafkaSink], None]) -> None:
    used = a_sink()
    used.open(planned=False)
    renewal = used._renewal
    assert renewal is not None
    end(used)
    renewal._thread.join(PATIENCE_S)
    assert not renewal._thread.is_alive()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("end", [KafkaSink.drain, KafkaSink.close])
def test_what_has_ended_is_not_renewed(end: Callable[[KafkaSink], None]) -> None:
    """By a thread that was about to begin it."""
    used = a_sink()
    used.open(planned=False)
    end(used)
    forget(used)
    used._renew(0.0)
    assert noted(used).done.empty()


@pytest.mark.usefixtures("often")
def test_what_is_drained_begins_no_batch() -> None:
    used = a_sink()
    used.open(planned=False)
    used.drain()
    with pytest.raises(Draining):
        used(NO_FRAME, 0)


@pytest.mark.usefixtures("often")
def test_at_least_once_has_no_progress_to_renew() -> None:
    used = a_sink(guarantee="at_least_once")
    used.open(planned=False)
    assert used._renewal is None
