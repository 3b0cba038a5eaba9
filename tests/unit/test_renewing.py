"""The thread that renews what a resting pipeline has committed: when it looks, what ends it, and what it must not disturb."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import cast

import pytest
from pyspark.sql import DataFrame

from onceflow.errors import AuthenticationFailed, BrokerUnreachable, Draining, Fenced, NotAuthorized, RequestFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction import renewing, sink
from onceflow.transaction.coordinator import OnStep
from onceflow.transaction.driver import BatchReport, Driver, Options
from onceflow.transaction.renewing import LONGEST_RETENTION_S, Renewal, retention_s
from onceflow.transaction.sink import KafkaSink

NO_FRAME = cast("DataFrame", None)
PATIENCE_S = 60.0
SOON_S = 0.08


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewing, "_FIRST_LOOK_S", 0.0)


def started(renew: Callable[[float], None], retention_s: float = SOON_S) -> Renewal:
    renewal = Renewal("orders", renew, lambda: retention_s)
    renewal.start()
    return renewal


def test_it_looks_again_and_again_and_renews_after_a_quarter_of_the_retention_at_the_latest() -> None:
    """What is younger than the time between two looks is renewed by the next: by then it is as old as two of them."""
    ages: queue.SimpleQueue[float] = queue.SimpleQueue()
    renewal = started(ages.put)
    assert {ages.get(timeout=PATIENCE_S) for _ in range(3)} == {SOON_S / 8}
    renewal.stop()
    renewal._thread.join(PATIENCE_S)
    assert not renewal._thread.is_alive()


class Clock(threading.Event):
    """Notes how long somebody waits, and is set after some times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._times = times

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return len(self.waited) > self._times


def waits(renewal: Renewal, times: int) -> list[float]:
    renewal._stopped = clock = Clock(times)
    renewal._run()
    return clock.waited


@pytest.mark.parametrize("retention_s", [LONGEST_RETENTION_S, 10 * LONGEST_RETENTION_S])
def test_a_long_retention_is_not_relied_on(retention_s: float) -> None:
    renewal = Renewal("orders", lambda age_s: None, lambda: retention_s)
    assert waits(renewal, times=1) == [0.0, 3 * 3600.0]


def test_the_retention_is_asked_again_until_it_is_answered() -> None:
    """Brokers that are restarting when it is asked first: it counted as the longest one for as long as the driver ran."""
    answers: list[float | Exception] = [BrokerUnreachable("nobody answers"), IndexError("no broker"), 3600.0]
    ages: list[float] = []

    def asked() -> float:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert waits(Renewal("orders", ages.append, asked), times=4) == [0.0, 60.0, 60.0, 450.0, 450.0]
    assert ages == [60.0, 450.0, 450.0], "while nobody answers it is renewed each minute"
    assert answers == [], "and not asked again"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("60", 3600.0),
        (None, LONGEST_RETENTION_S),
        (RequestFailed("odd"), LONGEST_RETENTION_S),
        (NotAuthorized("no"), LONGEST_RETENTION_S),
    ],
)
def test_what_a_broker_does_not_tell_is_not_what_nobody_answered(
    shown: str | Exception | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broker_setting(_: object, name: str) -> str | None:
        if isinstance(shown, Exception):
            raise shown
        return shown

    monkeypatch.setattr(ClusterAdmin, "broker_setting", broker_setting)
    assert retention_s(ClusterSettings.of("localhost:1", {})) == expected


def test_brokers_that_do_not_answer_may_tell_later() -> None:
    with pytest.raises(BrokerUnreachable):
        retention_s(ClusterSettings.of("localhost:1", {}), patience_s=0.1)


def test_brokers_that_refuse_a_login_just_now_may_tell_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for brokers that do not tell, they would never be asked again, and 24 hours be assumed for as long as it runs."""

    def refused(_: object, name: str) -> str | None:
        raise AuthenticationFailed("not yet known")

    monkeypatch.setattr(ClusterAdmin, "broker_setting", refused)
    with pytest.raises(AuthenticationFailed):
        retention_s(ClusterSettings.of("localhost:1", {}))


def test_what_fails_is_tried_again_by_the_next_look(caplog: pytest.LogCaptureFixture) -> None:
    looked: queue.SimpleQueue[int] = queue.SimpleQueue()
    errors = [BrokerUnreachable("nobody answers"), ValueError("odd")]

    def renew(age_s: float) -> None:
        looked.put(len(errors))
        if errors:
            raise errors.pop(0)

    renewal = started(renew)
    assert [looked.get(timeout=PATIENCE_S) for _ in range(3)] == [2, 1, 0]
    renewal.stop()
    assert "pipeline orders rests, and its progress could not be renewed: " in caplog.text
    assert "nobody answers" in caplog.text


def test_a_name_that_was_lost_is_left_alone() -> None:
    asked: list[float] = []

    def renew(age_s: float) -> None:
        asked.append(age_s)
        raise Fenced("another driver took over")

    renewal = started(renew)
    renewal._thread.join(PATIENCE_S)
    assert not renewal._thread.is_alive()
    assert len(asked) == 1


# ------------------------------------------------------------------------------------------------------------- the sink


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
    while not noted(used).done.empty():
        noted(used).done.get()
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
def test_what_is_drained_is_not_renewed() -> None:
    used = a_sink()
    used.open(planned=False)
    used.drain()
    while not noted(used).done.empty():
        noted(used).done.get()
    used._renew(0.0)
    assert noted(used).done.empty()
    with pytest.raises(Draining):
        used(NO_FRAME, 0)


@pytest.mark.usefixtures("often")
def test_at_least_once_has_no_progress_to_renew() -> None:
    used = a_sink(guarantee="at_least_once")
    used.open(planned=False)
    assert used._renewal is None
