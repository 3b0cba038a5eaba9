"""The thread that renews what a resting pipeline has committed: when it looks, and what ends it. Here without a thread."""

from __future__ import annotations

import threading

import pytest

from onceflow.errors import AuthenticationFailed, BrokerUnreachable, Fenced, NotAuthorized, RequestFailed
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.renewing import LONGEST_RETENTION_S, Renewal, retention_s


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


def test_it_looks_again_and_again_and_renews_after_a_quarter_of_the_retention_at_the_latest() -> None:
    """What is younger than the time between two looks is renewed by the next: by then it is as old as two of them."""
    ages: list[float] = []
    assert waits(Renewal("orders", ages.append, lambda: 800.0), times=4) == [5.0, 100.0, 100.0, 100.0, 100.0]
    assert ages == [100.0, 100.0, 100.0]


def test_who_is_stopped_before_the_first_look_asks_nothing() -> None:
    asked: list[float] = []

    def retention_s() -> float:
        asked.append(0.0)
        return 800.0

    assert waits(Renewal("orders", asked.append, retention_s), times=0) == [5.0]
    assert asked == []


@pytest.mark.parametrize("retention_s", [LONGEST_RETENTION_S, 10 * LONGEST_RETENTION_S])
def test_a_long_retention_is_not_relied_on(retention_s: float) -> None:
    renewal = Renewal("orders", lambda age_s: None, lambda: retention_s)
    assert waits(renewal, times=1) == [5.0, 3 * 3600.0]


def test_the_retention_is_asked_again_until_it_is_answered() -> None:
    """Brokers that are restarting when it is asked first: it counted as the longest one for as long as the driver ran."""
    answers: list[float | Exception] = [BrokerUnreachable("nobody answers"), IndexError("no broker"), 3600.0]
    ages: list[float] = []

    def asked() -> float:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert waits(Renewal("orders", ages.append, asked), times=4) == [5.0, 60.0, 60.0, 450.0, 450.0]
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


@pytest.mark.parametrize(("options", "patience_s"), [({}, 10.0), ({"patience_s": 0.1}, 0.1)])
def test_the_brokers_are_waited_for_as_long_as_is_said(
    options: dict[str, float], patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that asks is one of a driver: it renews nothing meanwhile."""
    waited: list[float] = []

    def asked(self: ClusterAdmin, cluster: ClusterSettings, patience_s: float = 60.0) -> None:
        waited.append(patience_s)

    monkeypatch.setattr(ClusterAdmin, "__init__", asked)
    monkeypatch.setattr(ClusterAdmin, "broker_setting", lambda self, name: "60")
    assert retention_s(ClusterSettings.of("localhost:1", {}), **options) == 3600.0
    assert waited == [patience_s]


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
    looked: list[int] = []
    errors = [BrokerUnreachable("nobody answers"), ValueError("odd")]

    def renew(age_s: float) -> None:
        looked.append(len(errors))
        if errors:
            raise errors.pop(0)

    waits(Renewal("orders", renew, lambda: 800.0), times=4)
    assert looked == [2, 1, 0]
    assert "pipeline orders rests, and its progress could not be renewed: " in caplog.text
    assert "nobody answers" in caplog.text


def test_a_name_that_was_lost_is_left_alone() -> None:
    asked: list[float] = []

    def renew(age_s: float) -> None:
        asked.append(age_s)
        raise Fenced("another driver took over")

    assert waits(Renewal("orders", renew, lambda: 800.0), times=4) == [5.0, 100.0]
    assert asked == [100.0]
