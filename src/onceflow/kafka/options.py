"""The client options that onceflow knows, by their Java names: how others call them, and which are refused and why.

The names are those of Kafka's own documentation (consumer, producer and admin client configuration), because every user
and every hosting service has them at hand. Three libraries read them: Spark's connector as they are, kafka-python and
librdkafka under names of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Converter = Callable[[str], str | int | bool]


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name in kafka-python and in librdkafka (None: nothing like it), and its value."""

    protocol: str | None = None
    librdkafka: str | None = None
    convert: Converter = str
    spark: bool = True
    secret: bool = False


def _between(least: int, most: int) -> Converter:
    """What librdkafka takes; Java, and kafka-python, take more."""

    def convert(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"must be from {least:,} to {most:,} (librdkafka takes nothing else)")
        return number

    return convert


def _one_of(*allowed: str) -> Converter:
    def convert(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(name or '(empty)' for name in allowed)}")
        return text

    return convert


_LARGEST = 2**31 - 1
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000

REFRESH_INTERVAL = "topic.metadata.refresh.interval.ms"
REFRESHED_WITHIN_MS = _HOUR_MS  # librdkafka takes nothing longer

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

KNOWN: dict[str, Option] = {
    "security.protocol": Option("security_protocol", "security.protocol", _one_of(*SECURITY_PROTOCOLS)),
    "sasl.mechanism": Option("sasl_mechanism", "sasl.mechanism", _one_of(*LOGIN_MODULES)),
    "sasl.username": Option("sasl_plain_username", "sasl.username", spark=False),
    "sasl.password": Option("sasl_plain_password", "sasl.password", spark=False, secret=True),
    "sasl.jaas.config": Option(secret=True),
    "ssl.truststore.location": Option("ssl_cafile", "ssl.ca.location"),
    "ssl.truststore.type": Option(convert=_one_of("PEM")),
    "ssl.keystore.location": Option("ssl_certfile", "ssl.certificate.location"),
    "ssl.keystore.type": Option(convert=_one_of("PEM")),
    "ssl.key.password": Option("ssl_password", "ssl.key.password", secret=True),
    "ssl.endpoint.identification.algorithm": Option(
        "ssl_check_hostname", "ssl.endpoint.identification.algorithm", _one_of("https", "")
    ),
    "client.id": Option("client_id", "client.id"),
    "client.rack": Option(None, "client.rack"),
    "client.dns.lookup": Option(
        "client_dns_lookup",
        "client.dns.lookup",
        _one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    ),
    "request.timeout.ms": Option("request_timeout_ms", "socket.timeout.ms", _between(10, 300_000)),
    "connections.max.idle.ms": Option("connections_max_idle_ms", "connections.max.idle.ms", _between(1, _LARGEST)),
    # Java looks so often for new partitions; librdkafka has another name for that, and its own metadata.max.age.ms is a cache's.
    "metadata.max.age.ms": Option("metadata_max_age_ms", REFRESH_INTERVAL, _between(1, _DAY_MS)),
    "reconnect.backoff.ms": Option("reconnect_backoff_ms", "reconnect.backoff.ms", _between(1, _HOUR_MS)),
    "reconnect.backoff.max.ms": Option("reconnect_backoff_max_ms", "reconnect.backoff.max.ms", _between(1, _HOUR_MS)),
    "socket.connection.setup.timeout.ms": Option(
        "socket_connection_setup_timeout_ms", "socket.connection.setup.timeout.ms", _between(1000, _LARGEST)
    ),
}

SECRETS = frozenset(name for name, option in KNOWN.items() if option.secret)

_OWN_PRODUCER = "onceflow writes ready record batches itself, there is no producer to set"
_OWN_GROUP = "the group is derived from the pipeline's name; another one would separate the progress from its pipeline"
_OWN_CODEC = "onceflow and Spark read and write bytes; convert in SQL"
_SOURCE_ONLY = "it belongs to a source: set it in the source's options, with the prefix kafka."
_PEM = "Java key stores cannot be read from Python: use PEM files"

REFUSED: dict[str, str] = {
    "bootstrap.servers": "give it as bootstrap_servers",
    "enable.idempotence": f"exactly once needs it on; {_OWN_PRODUCER}",
    "acks": f"a transaction needs acks=all; {_OWN_PRODUCER}",
    "retries": f"a repeated write must carry its old sequence numbers; {_OWN_PRODUCER}",
    "max.in.flight.requests.per.connection": f"more than 5 breaks the broker's duplicate check; {_OWN_PRODUCER}",
    "transactional.id": "it is derived from the pipeline's name, so that a new driver fences the old one",
    "transaction.timeout.ms": "give it as transaction_timeout (KafkaSink: transaction_timeout_ms)",
    "transaction.two.phase.commit.enable": "a prepared transaction would hold up readers without end",
    "isolation.level": "sources always read committed records only; anything else reads what may be aborted",
    "group.id": _OWN_GROUP,
    "group.instance.id": _OWN_GROUP,
    "group.protocol": _OWN_GROUP,
    "enable.auto.commit": "offsets are committed in the batch's transaction; an automatic commit would run ahead of it",
    "auto.commit.interval.ms": "offsets are committed in the batch's transaction",
    "auto.offset.reset": "a silent jump loses or repeats records; give starting_offsets",
    "key.serializer": _OWN_CODEC,
    "value.serializer": _OWN_CODEC,
    "key.deserializer": _OWN_CODEC,
    "value.deserializer": _OWN_CODEC,
    "interceptor.classes": "an interceptor can change or drop records behind the transaction's back",
    "partitioner.class": "the same key must always go to the same partition: onceflow uses Kafka's murmur2",
    "compression.type": "give it as compression",
    "linger.ms": _OWN_PRODUCER,
    "batch.size": _OWN_PRODUCER,
    "buffer.memory": _OWN_PRODUCER,
    "max.block.ms": _OWN_PRODUCER,
    "delivery.timeout.ms": _OWN_PRODUCER,
    "max.request.size": f"the topic's max.message.bytes decides; {_OWN_PRODUCER}",
    "ssl.truststore.password": "a PEM trust store has no password",
    "ssl.keystore.password": "a PEM key store has no password, its key may have one: ssl.key.password",
    "ssl.truststore.certificates": "save the certificates in a PEM file and name it in ssl.truststore.location",
    "ssl.keystore.certificate.chain": "save chain and key in one PEM file and name it in ssl.keystore.location",
    "ssl.keystore.key": "save chain and key in one PEM file and name it in ssl.keystore.location",
    "fetch.max.wait.ms": _SOURCE_ONLY,
    "fetch.min.bytes": _SOURCE_ONLY,
    "fetch.max.bytes": _SOURCE_ONLY,
    "max.partition.fetch.bytes": _SOURCE_ONLY,
    "max.poll.records": _SOURCE_ONLY,
    "receive.buffer.bytes": _SOURCE_ONLY,
}

_LOGINS = "PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 are, and TLS certificates"
_JAVA_STORES = ("JKS", "PKCS12", "BCFKS")

REFUSED_VALUES: dict[tuple[str, str], str] = {
    **{(f"ssl.{store}.type", kind): _PEM for store in ("truststore", "keystore") for kind in _JAVA_STORES},
    ("sasl.mechanism", "GSSAPI"): f"Kerberos is not supported; {_LOGINS}",
    ("sasl.mechanism", "OAUTHBEARER"): f"not supported; {_LOGINS}",
}
