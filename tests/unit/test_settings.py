"""ClusterSettings: one set of options, three client libraries, no secret in sight."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.manager import KafkaConnectionManager

from onceflow.errors import ConfigurationError
from onceflow.kafka import jaas
from onceflow.kafka.options import KNOWN, REFUSED, REFUSED_VALUES, SECRETS
from onceflow.kafka.settings import ClusterSettings

PASSWORD = "s3cr3t-Pa$$"
SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": PASSWORD,
}
TLS = {
    "security.protocol": "SSL",
    "ssl.truststore.location": "/pki/ca.pem",
    "ssl.keystore.location": "/pki/client.pem",
    "ssl.key.password": PASSWORD,
    "ssl.endpoint.identification.algorithm": "",
}
printable = st.text(min_size=1).filter(str.isprintable)


def mistakes_in(servers: str, options: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        ClusterSettings.of(servers, options)
    found = caught.value.fields["mistakes"]
    assert isinstance(found, tuple)
    return found


def test_plain_settings_name_the_servers_for_all_three_libraries() -> None:
    settings = ClusterSettings.of(" a:9092, b:9093 ,")
    assert settings.for_protocol() == {"bootstrap_servers": ["a:9092", "b:9093"]}
    assert settings.for_librdkafka() == {
        "bootstrap.servers": "a:9092,b:9093",
        "allow.auto.create.topics": False,
    }
    assert settings.for_spark() == {"kafka.bootstrap.servers": "a:9092,b:9093"}


def test_who_looks_for_new_partitions_more_often_does_so_with_every_library() -> None:
    """librdkafka has another name for it, and looks once an hour at least."""
    often = ClusterSettings.of("a:9092", {"metadata.max.age.ms": "5000"})
    assert often.for_protocol()["metadata_max_age_ms"] == 5000
    assert often.for_librdkafka()["topic.metadata.refresh.interval.ms"] == 5000
    assert often.for_spark()["kafka.metadata.max.age.ms"] == "5000"
    seldom = ClusterSettings.of("a:9092", {"metadata.max.age.ms": "7200000"})
    assert seldom.for_librdkafka()["topic.metadata.refresh.interval.ms"] == 3_600_000


def test_user_name_and_password_reach_every_library() -> None:
    settings = ClusterSettings.of("a:9092", SASL)
    protocol, librdkafka, spark = settings.for_protocol(), settings.for_librdkafka(), settings.for_spark()
    assert (protocol["sasl_plain_username"], protocol["sasl_plain_password"]) == ("alice", PASSWORD)
    assert (librdkafka["sasl.username"], librdkafka["sasl.password"]) == ("alice", PASSWORD)
    login = jaas.parse(spark["kafka.sasl.jaas.config"])
    assert (login.username, login.password) == ("alice", PASSWORD)
    assert login.module.endswith("ScramLoginModule")
    assert "kafka.sasl.username" not in spark
    assert "kafka.sasl.password" not in spark


def test_a_jaas_text_reaches_the_libraries_that_know_no_jaas() -> None:
    text = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="bob" password="{PASSWORD}";'
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": text}
    settings = ClusterSettings.of("a:9092", options)
    assert settings.for_protocol()["sasl_plain_password"] == PASSWORD
    assert settings.for_librdkafka()["sasl.username"] == "bob"
    assert "sasl.jaas.config" not in settings.for_librdkafka()
    assert settings.for_spark()["kafka.sasl.jaas.config"] == text


def test_pem_files_reach_every_library() -> None:
    settings = ClusterSettings.of("a:9092", TLS)
    protocol, librdkafka, spark = settings.for_protocol(), settings.for_librdkafka(), settings.for_spark()
    assert (protocol["ssl_cafile"], protocol["ssl_certfile"]) == ("/pki/ca.pem", "/pki/client.pem")
    assert protocol["ssl_check_hostname"] is False
    assert protocol["ssl_password"] == PASSWORD
    assert librdkafka["ssl.key.location"] == librdkafka["ssl.certificate.location"] == "/pki/client.pem"
    assert librdkafka["ssl.endpoint.identification.algorithm"] == "none"
    assert spark["kafka.ssl.truststore.type"] == spark["kafka.ssl.keystore.type"] == "PEM"


def test_numbers_are_numbers_in_python_and_text_in_java() -> None:
    settings = ClusterSettings.of("a:9092", {"request.timeout.ms": 5000})
    assert settings.for_protocol()["request_timeout_ms"] == 5000
    assert settings.for_librdkafka()["socket.timeout.ms"] == 5000
    assert settings.for_spark()["kafka.request.timeout.ms"] == "5000"


def test_every_name_exists_in_the_library_it_is_given_to(tmp_path: Path) -> None:
    unknown = {o.protocol for o in KNOWN.values()} - {None} - set(KafkaConnectionManager.DEFAULT_CONFIG)
    assert not unknown, "kafka-python would ignore these without a word"
    AdminClient(ClusterSettings.of("localhost:1", SASL | {"client.rack": "r", "client.id": "i"}).for_librdkafka())
    numbers = {n: 60_000 for n in KNOWN if n.endswith(".ms")}
    AdminClient(ClusterSettings.of("localhost:1", {**numbers}).for_librdkafka())  # refuses names it does not know


@pytest.mark.parametrize("name", [name for name in KNOWN if name.endswith(".ms")])
def test_no_number_is_taken_that_librdkafka_refuses(name: str) -> None:
    """Java takes more. A client that cannot be made would be found out while the pipeline runs."""
    for value in ("1", "10", "999", "1000", "300000", "300001", "3600001", "86400001", str(2**31 - 1), str(2**31)):
        try:
            settings = ClusterSettings.of("localhost:1", {name: value})
        except ConfigurationError:
            continue
        largest = {"reconnect.backoff.max.ms": 3_600_000} if name == "reconnect.backoff.ms" else {}
        AdminClient({"reconnect.backoff.ms": 1, **largest, **settings.for_librdkafka()})


@pytest.mark.parametrize("options", [SASL, TLS], ids=["sasl", "tls"])
def test_secrets_never_show(options: dict[str, str]) -> None:
    settings = ClusterSettings.of("a:9092", options)
    for shown in (repr(settings), str(settings), f"{settings}", str(settings.redacted())):
        assert PASSWORD not in shown
        assert "a:9092" in shown


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_secrets_never_show_in_a_mistake(name: str) -> None:
    wrong: dict[str, object] = {"security.protocol": "SASL_SSL", "sasl.mechanism": "x", name: PASSWORD}
    assert PASSWORD not in str(mistakes_in("nowhere", wrong))


def test_settings_pickle_and_compare_by_value() -> None:
    settings = ClusterSettings.of("a:9092", SASL)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(ClusterSettings.of("a:9092", dict(reversed(SASL.items())))) == hash(settings)


def test_all_mistakes_come_at_once() -> None:
    found = mistakes_in(
        "localhost",
        {"acks": "1", "request.timeout.ms": "soon", "sasl.mechanismus": "PLAIN", "security.protocol": "TLS"},
    )
    assert len(found) == 5
    assert any("did you mean sasl.mechanism?" in text for text in found)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_break_the_guarantee_is_refused_with_the_reason(name: str) -> None:
    (mistake,) = mistakes_in("a:9092", {name: "x"})
    assert mistake == f"{name}: cannot be set: {REFUSED[name]}"


@pytest.mark.parametrize(("name", "value"), sorted(REFUSED_VALUES))
def test_values_that_python_cannot_serve_say_what_can(name: str, value: str) -> None:
    assert any(REFUSED_VALUES[name, value] in text for text in mistakes_in("a:9092", {name: value}))


@pytest.mark.parametrize(
    ("servers", "options", "part"),
    [
        ("", {}, "is empty"),
        ("host:99999", {}, "'host:99999' is not host:port"),
        ("::1:9092", {}, "is not host:port"),
        ("a:1", {"security.protocol": "SSL", "ssl.truststore.location": "/x/ca.jks"}, "use a PEM file"),
        ("a:1", {"ssl.truststore.location": "/x/ca.pem"}, "set security.protocol to SSL"),
        ("a:1", {"sasl.username": "u"}, "has no effect with security.protocol PLAINTEXT"),
        ("a:1", {"security.protocol": "SASL_SSL"}, "sasl.mechanism: is missing"),
        ("a:1", {**SASL, "sasl.password": ""}, "sasl.password: is missing"),
        ("a:1", {**SASL, "sasl.password": "a\n"}, "control character"),
        ("a:1", {**SASL, "sasl.jaas.config": "x"}, "keep one of them"),
        ("a:1", {"security.protocol": "SSL", "ssl.key.password": "x"}, "no ssl.keystore.location"),
        ("a:1", {"kafka.client.id": "x"}, "leave out the prefix"),
        ("a:1", {"request.timeout.ms": 600_000}, "600000' must be from 10 to 300,000"),
        ("a:1", {**SASL, "sasl.password": None}, "sasl.password: is None (an environment variable that is not set?)"),
        ("a:1", {"client.id": None}, "client.id: is None"),
    ],
)
def test_a_mistake_says_what_is_wrong(servers: str, options: dict[str, object], part: str) -> None:
    assert any(part in text for text in mistakes_in(servers, options)), mistakes_in(servers, options)


@pytest.mark.parametrize("servers", ["[::1]:9092", "kafka-0.kafka:9092", "10.0.0.1:1,b:65535"])
def test_addresses_of_every_kind_are_taken(servers: str) -> None:
    assert ClusterSettings.of(servers).bootstrap_servers == servers


def test_certificate_files_are_looked_at_only_when_asked(tmp_path: Path) -> None:
    text = tmp_path / "notes.pem"
    text.write_text("no certificate")
    options = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(text),
        "ssl.keystore.location": str(tmp_path / "absent.pem"),
    }
    found = ClusterSettings.of("a:9092", options).unreadable_files()
    assert [name for name, _ in found] == ["ssl.truststore.location", "ssl.keystore.location"]
    assert "holds no PEM block" in found[0][1]
    assert "No such file" in found[1][1]


@given(username=printable, password=printable)
def test_jaas_carries_any_printable_user_name_and_password(username: str, password: str) -> None:
    login = jaas.parse(jaas.write("a.b.PlainLoginModule", username, password))
    assert (login.module, login.username, login.password) == ("a.b.PlainLoginModule", username, password)


@pytest.mark.parametrize(
    "text",
    ["", "Module required", 'M required username="a";', 'M required username="a" password="b"', 'M required x"y;'],
)
def test_a_jaas_text_that_is_none_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|has no") as caught:
        jaas.parse(text)
    assert not text or text not in str(caught.value)
