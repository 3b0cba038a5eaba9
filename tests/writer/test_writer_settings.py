"""What may be set on a writer, and what is refused because it would lose, repeat or reorder."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from onceflow.errors import ConfigurationError
from onceflow.writer.settings import HARMLESS, REFUSED, SAFE_ONLY, WriterSettings
from onceflow.writer.writer import Writer

SERVERS = "127.0.0.1:9092"


def mistakes(kafka: dict[str, object], transactional_id: str | None = None, servers: str = SERVERS) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        WriterSettings.of(servers, kafka, transactional_id)
    found = caught.value.fields["mistakes"]
    assert isinstance(found, tuple)
    return found


UNSAFE: list[tuple[str, object]] = [
    ("acks", 0),
    ("acks", 1),
    ("request.required.acks", "1"),
    ("enable.idempotence", False),
    ("enable.gapless.guarantee", False),
    ("retries", 3),
    ("message.send.max.retries", 0),
    ("max.in.flight.requests.per.connection", 6),
    ("max.in.flight", 1000000),
    ("queuing.strategy", "lifo"),
    ("partitioner", "consistent_random"),
    ("partitioner.class", "x"),
    ("isolation.level", "read_uncommitted"),
    ("delivery.timeout.ms", 0),
    ("message.timeout.ms", 0),
    ("delivery.timeout.ms", 86_400_000),  # by then a broker has forgotten the producer
    *((name, "x") for name in REFUSED),
]


@pytest.mark.parametrize(("name", "value"), UNSAFE)
def test_what_would_lose_repeat_or_reorder_is_refused_by_name(name: str, value: object) -> None:
    assert any(text.startswith(f"{name}: ") for text in mistakes({name: value}))


def test_all_mistakes_are_named_at_once() -> None:
    found = mistakes({"acks": 1, "retries": 0, "linger.ms": "soon", "nonsense": 1, "compression.type": "zip"}, "", "a")
    assert len(found) == 7
    for name in (
        "acks",
        "retries",
        "linger.ms",
        "nonsense",
        "compression.type",
        "transactional_id",
        "bootstrap_servers",
    ):
        assert any(text.startswith(name) for text in found), name


def test_an_option_that_is_not_set_is_named_and_no_text() -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": None}
    assert mistakes({**login}) == ("sasl.password: is None (an environment variable that is not set?)",)


def test_one_setting_under_two_names_is_refused() -> None:
    assert "keep one" in mistakes({"linger.ms": 1, "queue.buffering.max.ms": 2})[0]
    assert "keep one" in mistakes({"delivery.timeout.ms": 1, "message.timeout.ms": 2})[0]


@pytest.mark.parametrize(
    ("linger", "delivery"),
    [
        ({"linger.ms": 2000}, {"delivery.timeout.ms": 2000}),
        ({"queue.buffering.max.ms": 3000}, {"message.timeout.ms": 2000}),
        ({"linger.ms": 120_000}, {}),
    ],
)
def test_events_that_linger_until_they_are_given_up_are_refused(
    linger: dict[str, object], delivery: dict[str, object]
) -> None:
    assert "linger.ms: must be less than delivery.timeout.ms" in mistakes({**linger, **delivery})[0]
    WriterSettings.of(SERVERS, {**linger, "delivery.timeout.ms": 120_001}, None)


def test_names_that_kafka_would_not_tell_apart_are_refused() -> None:
    """Two services, ``tx\\0one`` and ``tx\\0two``, would fence each other: both are ``tx``."""
    assert mistakes({}, "tx\0one") == ("transactional_id: 'tx\\x00one' has a NUL, where librdkafka cuts names off",)


def test_a_transaction_timeout_needs_a_transactional_id() -> None:
    assert "transaction.timeout.ms" in mistakes({"transaction.timeout.ms": 1000})[0]


@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_what_is_always_on_cannot_be_turned_off_by_any_accepted_setting(transactional_id: str | None) -> None:
    given: dict[str, object] = {name: max(safe) for name, (safe, _) in SAFE_ONLY.items()}
    for one in ("request.required.acks", "message.send.max.retries"):
        del given[one]
    options = WriterSettings.of(SERVERS, {**given, "linger.ms": 7, "delivery.timeout.ms": 5000}, transactional_id)
    found = options.for_producer()
    assert found["enable.idempotence"] is True
    assert (found["acks"], found["partitioner"], found["message.timeout.ms"]) == ("all", "murmur2_random", 0)
    assert found["enable.gapless.guarantee"] is (transactional_id is None)
    assert found.get("transactional.id") == transactional_id
    assert (found["linger.ms"], options.delivery_timeout_s) == (7, 5.0)


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_harmless_settings_reach_librdkafka_which_knows_them(name: str) -> None:
    meant = HARMLESS[name][0]
    value = {"compression.type": "lz4", "socket.keepalive.enable": "true"}.get(
        meant, 1000 if "backoff" in name else 4000
    )
    value = 5 if meant in ("compression.level", "max.in.flight.requests.per.connection") else value
    found = WriterSettings.of(SERVERS, {name: value}, None).for_producer()
    assert str(found[meant]) == str(value)
    Producer({**found, "log_level": 0})


@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_a_certificate_file_that_cannot_be_read_is_a_mistake_of_the_settings(transactional_id: str | None) -> None:
    kafka = {"security.protocol": "SSL", "ssl.truststore.location": "/nowhere/ca.pem"}
    shop = Writer(bootstrap_servers=SERVERS, kafka=kafka, transactional_id=transactional_id)
    with pytest.raises(ConfigurationError, match=r"the writer's settings(?s:.*)ssl\.ca\.location failed"):
        shop.open()


def test_no_secret_is_shown() -> None:
    kafka = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "hunter2",
    }
    settings = WriterSettings.of(SERVERS, kafka, None)
    assert "hunter2" not in repr(settings)
    assert settings.for_producer()["sasl.password"] == "hunter2"
