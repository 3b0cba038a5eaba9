"""Topics that are made are there for whoever asks next; a broker that does not answer is told as that, and another one asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from tests.frozen import frozen

from onceflow.broker import EmbeddedBroker
from onceflow.broker.settings import HOST
from onceflow.config import load
from onceflow.errors import BrokerUnreachable, ConfigurationError
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.preflight import check_cluster

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


@pytest.fixture
def made_late(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic that is made after the first look at all topics; with it an admin that looks."""
    real = ClusterAdmin.partitions
    maker = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    name = f"made-late-{uuid4().hex}"

    def late(admin: ClusterAdmin) -> Partitions:
        known = real(admin)
        if admin is not maker and name not in known:
            maker.create_topics([name], partitions=2)
        return known

    monkeypatch.setattr(ClusterAdmin, "partitions", late)
    return name


def test_one_that_no_broker_has_heard_of_yet_is_not_missing(broker: EmbeddedBroker, made_late: str) -> None:
    admin = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    assert admin.missing([made_late, "never-made"]) == ["never-made"]
    assert admin.missing([made_late]) == []


def test_a_plan_may_name_one_that_no_broker_has_heard_of_yet(
    broker: EmbeddedBroker, made_late: str, tmp_path: Path
) -> None:
    settings = ClusterSettings.of(broker.bootstrap_servers)
    plan = tmp_path / "pipeline.toml"
    plan.write_text(
        f'name = "p"\n[kafka]\nbootstrap_servers = "{broker.bootstrap_servers}"\n[[source]]\nname = "s"\n'
        f'topics = ["{made_late}"]\nformat = "raw"\n[[sink]]\nfrom = "s"\ntopic = "never-made"\nvalue = "value"\n'
    )
    found = check_cluster(load(plan, {}), settings, ClusterAdmin(settings))
    assert ([each.topic for each in found.missing], found.error) == (["never-made"], None)
    assert found.known[made_late] == (0, 1)


def test_one_that_exists_is_left_as_it_is(broker: EmbeddedBroker) -> None:
    admin = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    admin.create_topics(["made-once"], partitions=2)
    admin.create_topics(["made-once", "made-now"], partitions=3)
    found = admin.partitions()
    assert (len(found["made-once"]), len(found["made-now"])) == (2, 3)


def test_whoever_has_more_patience_than_librdkafka_has_that_of_librdkafka(broker: EmbeddedBroker) -> None:
    """A reader or a sink may wait for days for its brokers; a single question of more than an hour was refused."""
    admin, name = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers), patience_s=10**6), f"patient-{uuid4().hex}"
    admin.create_topics([name], partitions=2)
    assert admin.missing([name, "never-made"]) == ["never-made"]
    assert admin.end_offsets([(name, 0)]) == {(name, 0): 0}
    assert admin.broker_settings()


# ---------------------------------------------------------------------------------------------- brokers that do not answer


@pytest.fixture
def hangs_up() -> Iterator[str]:
    """The address of a load balancer whose brokers are all down: it takes each connection, and closes it."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # the test is over
                while True:
                    with listener.accept()[0] as connection:
                        connection.recv(1)  # what is left unread makes the end a reset

        threading.Thread(target=serve, daemon=True).start()
        yield f"{HOST}:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_a_tls_handshake_that_is_hung_up_on_is_no_refused_certificate(hangs_up: str) -> None:
    """An outage that is waited out; as refused credentials it would end a pipeline for good."""
    settings = ClusterSettings.of(hangs_up, {"security.protocol": "SSL"})
    with pytest.raises(BrokerUnreachable, match=r"Disconnected"):
        ClusterAdmin(settings, patience_s=5.0).partitions()


def test_why_a_connection_could_not_be_had_is_forgotten_once_it_is(broker: EmbeddedBroker) -> None:
    """A handshake that failed long ago is not why a question is not answered in time today."""
    admin = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    admin._problems.append(confluent_kafka.KafkaError(confluent_kafka.KafkaError._SSL, "certificate verify failed"))
    admin.partitions()
    timed_out = confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT)
    assert isinstance(admin._translated(timed_out, "anything"), BrokerUnreachable)


def test_a_value_that_librdkafka_does_not_take_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words have a colon in some errors only."""
    monkeypatch.setattr(ClusterSettings, "for_librdkafka", lambda _: {"socket.timeout.ms": 600_000})
    with pytest.raises(ConfigurationError, match=r'"socket.timeout.ms" value 600000 is outside allowed range'):
        ClusterAdmin(ClusterSettings.of("localhost:1")).partitions()


@pytest.fixture
def hurried(broker: EmbeddedBroker) -> ClusterAdmin:
    """Is connected, and has little patience from now on."""
    admin = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    admin._connect()
    admin._patience_s = 0.3
    return admin


def metadata_with(*broker_ids: int) -> Any:
    return lambda timeout_s: SimpleNamespace(brokers=dict.fromkeys(broker_ids))


def test_a_broker_that_is_gone_and_still_in_the_metadata_is_passed_over(
    hurried: ClusterAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka waits for it, a minute unless told otherwise; a relay that rests asks, and ended with a bare TimeoutError."""
    [real] = hurried._metadata(10).brokers
    hurried._patience_s = 5.0
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
    monkeypatch.setattr(hurried, "missing", lambda names, **_asked: list(names))
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
