"""TLS and SASL for real: every client library that onceflow uses, against a broker that asks for them."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.protocol.metadata import MetadataRequest
from tests.command_line import await_markers
from tests.conftest import create_topic

from onceflow.broker import EmbeddedBroker
from onceflow.broker.home import BrokerState
from onceflow.broker.settings import HOST, as_properties, free_ports
from onceflow.cli.records import read_committed, send_lines
from onceflow.config import load
from onceflow.errors import AuthenticationFailed, ConfigurationError
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.client import Again, KafkaClient
from onceflow.kafka.options import LOGIN_MODULES
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline import Control, run
from onceflow.transaction.requests import Requests
from onceflow.writer.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = 'p"a\\s s$'  # what quoting gets wrong
PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-512"


class SecuredBroker(EmbeddedBroker):
    """An embedded broker with listeners for TLS and for logins beside its own."""

    def __init__(self, directory: Path, pki: Path) -> None:
        super().__init__(directory, heap_mb=256)
        ports = free_ports(3)
        self.ports = dict(zip(("SSL", "SASL_PLAINTEXT", "SASL_SSL"), ports, strict=True))
        self.pki = pki

    def _write_settings(self, state: BrokerState) -> Mapping[str, str]:
        properties = {**super()._write_settings(state), **self._more(state)}
        self._home.properties.write_text(as_properties(properties))
        return properties

    def _more(self, state: BrokerState) -> dict[str, str]:
        listeners = {"BROKER": state.port, "CONTROLLER": state.controller_port, **self.ports}
        protocols = {"BROKER": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **{name: name for name in self.ports}}
        login = f'{LOGIN_MODULES[PLAIN]} required user_alice="{_escaped(PASSWORD)}";'
        logins = {
            f"listener.name.{name}.{option}": value
            for name in ("sasl_plaintext", "sasl_ssl")
            for option, value in {
                "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM}",
                "plain.sasl.jaas.config": login,
                "scram-sha-512.sasl.jaas.config": f"{LOGIN_MODULES[SCRAM]} required;",
            }.items()
        }
        return {
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "advertised.listeners": ",".join(f"{n}://{HOST}:{p}" for n, p in listeners.items() if n != "CONTROLLER"),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.pki / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.pki / "ca.crt"),
            "listener.name.ssl.ssl.client.auth": "required",
            **logins,
        }

    def servers(self, protocol: str) -> str:
        return f"{HOST}:{self.ports[protocol]}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=60)


def make_pki(directory: Path) -> None:
    """Two authorities, and a key with a certificate of the first one for the broker and for a client."""
    for name in ("ca", "other"):
        subject = ["-subj", f"/CN={name}", "-days", "2", "-nodes"]
        _openssl(
            directory, "req", "-x509", "-newkey", "rsa:2048", *subject, "-keyout", f"{name}.key", "-out", f"{name}.crt"
        )
    for name in ("broker", "client"):
        _openssl(directory, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        (directory / "san").write_text(f"subjectAltName=IP:{HOST}")
        _openssl(directory, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                 "-days", "2", "-extfile", "san", "-out", f"{name}.crt")  # fmt: skip
        pem = (directory / f"{name}.key").read_text() + (directory / f"{name}.crt").read_text()
        (directory / f"{name}.pem").write_text(pem)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    pki = tmp_path_factory.mktemp("pki")
    make_pki(pki)
    with SecuredBroker(tmp_path_factory.mktemp("secured"), pki) as broker:
        make_user(broker, "alice", PASSWORD)
        for topic in ("in", "out"):
            create_topic(broker, topic)
        yield broker


def make_user(secured: SecuredBroker, name: str, password: str) -> None:
    admin = AdminClient({"bootstrap.servers": secured.bootstrap_servers})
    credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion(name, credentials, password.encode())
    for done in admin.alter_user_scram_credentials([upsertion]).values():
        done.result(timeout=30)


def at(secured: SecuredBroker, options: Mapping[str, str]) -> ClusterSettings:
    """The listener without TLS."""
    return ClusterSettings.of(secured.servers("SASL_PLAINTEXT"), {"security.protocol": "SASL_PLAINTEXT", **options})


def login(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password}


def settings_for(secured: SecuredBroker, kind: str) -> ClusterSettings:
    trust = {"ssl.truststore.location": str(secured.pki / "ca.crt")}
    options = {
        "tls": ("SSL", {**trust, "ssl.keystore.location": str(secured.pki / "client.pem")}),
        "plain": ("SASL_PLAINTEXT", login(PLAIN)),
        "scram": ("SASL_PLAINTEXT", login(SCRAM)),
        "scram over tls": ("SASL_SSL", {**trust, **login(SCRAM)}),
    }
    protocol, more = options[kind]
    return ClusterSettings.of(secured.servers(protocol), {"security.protocol": protocol, **more})


@pytest.mark.parametrize("kind", ["tls", "plain", "scram", "scram over tls"])
def test_all_three_libraries_get_in(secured: SecuredBroker, spark: SparkSession, kind: str) -> None:
    settings = settings_for(secured, kind)
    assert "in" in ClusterAdmin(settings).partitions()
    with KafkaClient(settings.for_protocol(), patience_s=20) as client:
        assert client.topics(["in"])["in"].partition_count == 1
    assert send_lines(settings, "in", [kind], key=None) == 1
    frame = spark.read.format("kafka").options(**settings.for_spark()).option("subscribe", "in").load()
    assert kind in [row.value.decode() for row in frame.select("value").collect()]


@pytest.mark.parametrize("kind", ["tls", "plain", "scram", "scram over tls"])
def test_a_writer_gets_in_with_its_producer_and_the_ledger_of_its_transactions(
    secured: SecuredBroker, kind: str
) -> None:
    settings = settings_for(secured, kind)
    name = kind.replace(" ", "-")
    options = dict(settings.options)
    with Writer(
        bootstrap_servers=settings.bootstrap_servers, source="s", transactional_id=name, kafka=options
    ) as writer:
        with writer.transaction(progress="1"):
            writer.send("in", f"written with {kind}", id="1")
        assert writer.progress == "1"
    await_markers(settings, "in")
    assert f"written with {kind}" in [record.value for record in read_committed(settings, "in")]


def test_a_server_silent_in_its_tls_handshake_is_passed_over(secured: SecuredBroker) -> None:
    with socket.create_server((HOST, 0)) as silent:
        options = settings_for(secured, "tls").for_protocol()
        options["bootstrap_servers"].insert(0, f"{HOST}:{silent.getsockname()[1]}")
        with KafkaClient(options, patience_s=60) as client:
            assert client.topics(["in"])["in"].partition_count == 1


def test_a_pipeline_runs_over_tls_and_scram(secured: SecuredBroker, spark: SparkSession, tmp_path: Path) -> None:
    plan = tmp_path / "pipeline.toml"
    plan.write_text(f"""
name = "secured"
[trigger]
available_now = true
[kafka]
bootstrap_servers = "{secured.servers("SASL_SSL")}"
security.protocol = "SASL_SSL"
ssl.truststore.location = "{secured.pki / "ca.crt"}"
sasl.mechanism = "{SCRAM}"
sasl.username = "alice"
sasl.password = "${{PASSWORD}}"
[[source]]
name = "lines"
topics = ["in"]
format = "raw"
[[sink]]
from = "lines"
topic = "out"
value = "concat('seen ', value)"
""")
    settings = settings_for(secured, "scram over tls")
    send_lines(settings, "in", ["over tls"], key=None)
    run(load(plan, {"PASSWORD": PASSWORD}), tell=lambda _: None, control=Control())
    await_markers(settings, "out")
    assert "seen over tls" in [record.value for record in read_committed(settings, "out")]


def _ask_admin(settings: ClusterSettings) -> None:
    ClusterAdmin(settings, patience_s=20).partitions()


def _open_client(settings: ClusterSettings) -> None:
    """So patient that a test in which it waits for that long has failed."""
    with KafkaClient(settings.for_protocol(), patience_s=10_000):
        pass


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ask", [_ask_admin, _open_client])
@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM])
def test_a_wrong_password_is_refused_at_once_and_not_shown(
    secured: SecuredBroker, mechanism: str, ask: Callable[[ClusterSettings], None]
) -> None:
    settings = at(secured, login(mechanism, "wr0ng-secret"))
    with pytest.raises(AuthenticationFailed, match="refused the credentials") as caught:
        ask(settings)
    assert settings.bootstrap_servers in caught.value.message
    assert "wr0ng-secret" not in f"{caught.value} {caught.value.fields}"
    assert "sasl.mechanism" in caught.value.action


@pytest.mark.timeout(120)
def test_a_mechanism_that_the_broker_does_not_have_is_refused_too(secured: SecuredBroker) -> None:
    with pytest.raises(AuthenticationFailed, match="refused the credentials") as caught:
        _open_client(at(secured, login("SCRAM-SHA-256")))
    assert "sasl.mechanism" in caught.value.action


def test_a_login_that_was_taken_and_is_refused_later_is_tried_again_until_the_patience_ends(
    secured: SecuredBroker,
) -> None:
    """By a broker that restarts and does not know it yet, say. Here the password changes, and changes back."""
    change_password(secured, "bob", PASSWORD)
    with KafkaClient(login_of(secured, "bob").for_protocol(), patience_s=60) as client:
        change_password(secured, "bob", "another one")
        with pytest.raises(Again, match="refused the credentials"):
            client.ask(None, _METADATA)
        client.patience_s = 0.5
        with pytest.raises(AuthenticationFailed, match="refused the credentials"):
            client.transaction_version()
        with pytest.raises(AuthenticationFailed, match="refused the credentials"):
            Requests(client, "bobs", 2, 10_000).read_progress()
        client.patience_s = 60
        change_password(secured, "bob", PASSWORD)
        assert client.transaction_version() == 2


_METADATA = MetadataRequest(topics=[], allow_auto_topic_creation=False, max_version=9, min_version=4)


def login_of(secured: SecuredBroker, user: str, password: str = PASSWORD) -> ClusterSettings:
    return at(secured, {**login(SCRAM, password), "sasl.username": user})


def change_password(secured: SecuredBroker, user: str, password: str) -> None:
    """And waits until the broker takes it."""
    make_user(secured, user, password)
    for _ in range(1000):
        with suppress(AuthenticationFailed):
            _ask_admin(login_of(secured, user, password))
            return
    raise AssertionError("the broker does not take the new password")


def test_a_certificate_of_an_unknown_authority_is_not_trusted(secured: SecuredBroker) -> None:
    options = {"security.protocol": "SSL", "ssl.truststore.location": str(secured.pki / "other.crt")}
    with pytest.raises(AuthenticationFailed, match="certificate verify failed") as caught:  # more follows, most times
        _ask_admin(ClusterSettings.of(secured.servers("SSL"), options))
    assert "ssl.truststore.location" in caught.value.action


def test_a_client_without_the_certificate_that_the_broker_wants_is_told(secured: SecuredBroker) -> None:
    options = {"security.protocol": "SSL", "ssl.truststore.location": str(secured.pki / "ca.crt")}
    with pytest.raises(AuthenticationFailed, match=r"certificate|handshake") as caught:
        _ask_admin(ClusterSettings.of(secured.servers("SSL"), options))
    assert "ssl.keystore.location" in caught.value.action


def test_a_certificate_file_that_is_missing_is_a_mistake_with_its_line(
    secured: SecuredBroker, spark: SparkSession, tmp_path: Path
) -> None:
    plan = tmp_path / "pipeline.toml"
    plan.write_text(f"""name = "p"
[kafka]
bootstrap_servers = "{secured.servers("SSL")}"
security.protocol = "SSL"
ssl.truststore.location = "/absent/ca.pem"
[[source]]
name = "lines"
topics = ["in"]
format = "raw"
[[sink]]
from = "lines"
topic = "out"
value = "value"
""")
    with pytest.raises(
        ConfigurationError, match=r"pipeline.toml:5: kafka.ssl.truststore.location: /absent/ca.pem cannot"
    ):
        run(load(plan, {}), tell=lambda _: None, control=Control())
