"""Topics that are made are there for whoever asks next; a broker that does not answer is told as that, and another one asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from onceflow.broker import EmbeddedBroker
from onceflow.errors import BrokerUnreachable
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings

Partitions = dict[str, tuple[int, ...]]


def test_topics_are_waited_for_until_a_broker_has_heard_of_them(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has made them, and the broker that is asked first does not know it yet."""
    names = {"heard-of", "heard-of-too"}
    answers: list[Partitions] = []
    real = ClusterAdmin.partitions

    def late(admin: ClusterAdmin) -> Partitions:
        known = real(admin)
        answers.append({} if len(answers) < 2 else known)
        return answers[-1]

    monkeypatch.setattr(ClusterAdmin, "partitions", late)
    ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers)).create_topics(names, partitions=2)
    assert len(answers) >= 3
    assert names <= answers[-1].keys()


def test_one_that_exists_is_left_as_it_is(broker: EmbeddedBroker) -> None:
    admin = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    admin.create_topics(["made-once"], partitions=2)
    admin.create_topics(["made-once", "made-now"], partitions=3)
    found = admin.partitions()
    assert (len(found["made-once"]), len(found["made-now"])) == (2, 3)


# ---------------------------------------------------------------------------------------------- brokers that do not answer


@pytest.fixture
def hurried(broker: EmbeddedBroker) -> ClusterAdmin:
    """Is connected, and has little patience from now on."""
    admin = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    admin._connect()
    admin._patience_s = 0.3
    return admin


@contextmanager
def frozen(broker: EmbeddedBroker) -> Iterator[None]:
    """For a moment: a broker may be silent for seconds before its cluster goes on without it."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def metadata_with(*broker_ids: int) -> Any:
    return lambda timeout_s: SimpleNamespace(brokers=dict.fromkeys(broker_ids))


def test_a_broker_that_is_gone_and_still_in_the_metadata_is_passed_over(
    hurried: ClusterAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka waits for it, a minute unless told otherwise; a relay that rests asks, and ended with a bare TimeoutError."""
    [real] = hurried._metadata(10).brokers
    hurried._patience_s = 2.0
    monkeypatch.setattr(hurried, "_metadata", metadata_with(real - 1, real, real + 1))
    assert hurried.broker_setting("node.id") == str(real)


@pytest.mark.parametrize("others", [(), (98, 99)], ids=["none in the metadata", "none that answers"])
def test_where_no_broker_answers_that_is_told(
    hurried: ClusterAdmin, monkeypatch: pytest.MonkeyPatch, others: tuple[int, ...]
) -> None:
    monkeypatch.setattr(hurried, "_metadata", metadata_with(*others))
    with pytest.raises(BrokerUnreachable):
        hurried.broker_setting("node.id")


def test_topics_that_a_frozen_broker_does_not_make_are_told_in_time(
    broker: EmbeddedBroker, hurried: ClusterAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hurried, "missing", lambda names, needed: list(names))
    with frozen(broker), pytest.raises(BrokerUnreachable):
        hurried.create_topics(["not-made-in-time"], partitions=1)


@pytest.mark.parametrize("code", ["REQUEST_TIMED_OUT", "_TIMED_OUT"])
def test_an_answer_that_the_time_is_over_is_retriable(hurried: ClusterAdmin, code: str) -> None:
    """A broker gives it as well, of whom it asked in turn."""
    asked: Future[None] = Future()
    asked.set_exception(KafkaException(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, code))))
    with pytest.raises(BrokerUnreachable, match="imed out"):
        hurried._result(asked, "anything")


def test_a_question_that_is_never_answered_ends_as_unreachable(
    hurried: ClusterAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by librdkafka, which has a bound of its own."""
    monkeypatch.setattr("onceflow.kafka.admin._GRACE_S", 0.0)
    hurried._patience_s = 0.0
    with pytest.raises(BrokerUnreachable):
        hurried._result(Future[None](), "anything")
