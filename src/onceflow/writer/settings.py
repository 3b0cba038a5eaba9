"""What may be set on a writer, and what may not, because it would lose, repeat or reorder events.

Names are Java's, as everywhere in onceflow; librdkafka's own name is taken too where the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.errors import ConfigurationError
from onceflow.kafka.names import no_nul
from onceflow.kafka.settings import ClusterSettings
from onceflow.kafka.settings_check import mistakes_of
from onceflow.writer.misuse import not_utf8, settings_mistakes

DELIVERY_TIMEOUT_MS = 120_000
LONGEST_DELIVERY_MS = 12 * 3_600_000  # brokers forget a producer's sequences after a day (producer.id.expiration.ms)
TRANSACTION_TIMEOUT_MS = 60_000


def _whole(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None
        if number < least:
            raise ValueError(f"must be at least {least}")
        return number

    return convert


def _one_of(*allowed: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return convert


def _at_once(text: str) -> int:
    if text not in frozenset("12345"):
        raise ValueError("must be 1 to 5: the broker recognises repetitions of the last 5 only")
    return int(text)


_IN_FLIGHT = ("max.in.flight.requests.per.connection", _at_once)
_CODECS = _one_of("none", "gzip", "snappy", "lz4", "zstd")

HARMLESS: dict[str, tuple[str, Callable[[str], int | str]]] = {
    "compression.type": ("compression.type", _CODECS),
    "compression.codec": ("compression.type", _CODECS),
    "compression.level": ("compression.level", _whole(-1)),
    "linger.ms": ("linger.ms", _whole(0)),
    "queue.buffering.max.ms": ("linger.ms", _whole(0)),
    "batch.size": ("batch.size", _whole(1)),
    "batch.num.messages": ("batch.num.messages", _whole(1)),
    "max.request.size": ("message.max.bytes", _whole(1000)),
    "message.max.bytes": ("message.max.bytes", _whole(1000)),
    "queue.buffering.max.messages": ("queue.buffering.max.messages", _whole(1)),
    "queue.buffering.max.kbytes": ("queue.buffering.max.kbytes", _whole(1)),
    "sticky.partitioning.linger.ms": ("sticky.partitioning.linger.ms", _whole(0)),
    "max.in.flight.requests.per.connection": _IN_FLIGHT,
    "max.in.flight": _IN_FLIGHT,
    "retry.backoff.ms": ("retry.backoff.ms", _whole(1)),
    "retry.backoff.max.ms": ("retry.backoff.max.ms", _whole(1)),
    "send.buffer.bytes": ("socket.send.buffer.bytes", _whole(0)),
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", _whole(0)),
    "socket.keepalive.enable": ("socket.keepalive.enable", _one_of("true", "false")),
}
"""Option to (librdkafka's name, check): speed and size, not what is written how often."""

_TIMEOUTS = {
    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    "message.timeout.ms": DELIVERY_TIMEOUT_MS,
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
}

_WITHOUT_END = (
    "retries end with delivery.timeout.ms and not by count, or an event would be given up while there is time"
)
_ORDER = "one key's events stay in order only as long as every producer places it by Kafka's murmur2"

SAFE_ONLY: dict[str, tuple[frozenset[str], str]] = {
    "acks": (frozenset({"all", "-1"}), "an event that one broker alone has is lost with that broker; only all is safe"),
    "request.required.acks": (frozenset({"all", "-1"}), "only all is safe: less loses events with a broker"),
    "enable.idempotence": (frozenset({"true"}), "without it a repeated request writes its events twice"),
    "enable.gapless.guarantee": (frozenset({"true"}), "without it later events overtake one that was refused"),
    "retries": (frozenset({"2147483647"}), _WITHOUT_END),
    "message.send.max.retries": (frozenset({"2147483647"}), _WITHOUT_END),
    "queuing.strategy": (frozenset({"fifo"}), "anything but fifo reorders events"),
    "partitioner": (frozenset({"murmur2_random"}), _ORDER),
    "isolation.level": (frozenset({"read_committed"}), "what was consumed must not be what is aborted later"),
}
"""Option to (the values that are safe, why no other is)."""

REFUSED: dict[str, str] = {
    "transactional.id": "give it as transactional_id",
    "bootstrap.servers": "give it as bootstrap_servers",
    "partitioner.class": _ORDER,
    "interceptor.classes": "an interceptor can change or drop events behind the writer's back",
    "plugin.library.paths": "a plugin can change or drop events behind the writer's back",
    "key.serializer": "keys are bytes or text",
    "value.serializer": "values are bytes or text",
    "max.block.ms": "send waits for room up to delivery.timeout.ms",
    "buffer.memory": "give it as queue.buffering.max.kbytes",
    "delivery.report.only.error": "every event's delivery is reported",
    "dr_cb": "every event has a Delivery: use that",
    "on_delivery": "every event has a Delivery: use that",
    "transaction.two.phase.commit.enable": "a prepared transaction would hold up readers without end",
    "allow.auto.create.topics": "a topic that a typing error creates swallows events: create topics on purpose",
}
"""Never set: option to why not, and what to do instead."""

_ALWAYS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "acks": "all",
    "partitioner": "murmur2_random",
    # The delivery timeout is the writer's own, over all that is outstanding (see sender.py); librdkafka's, of each event
    # alone, would let later events overtake.
    "message.timeout.ms": 0,
}


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Checked settings of one writer. ``repr`` shows no secret, because ``cluster`` does not."""

    cluster: ClusterSettings
    transactional_id: str | None
    delivery_timeout_s: float
    transaction_timeout_ms: int
    producer: tuple[tuple[str, int | str], ...]

    @classmethod
    def of(
        cls, bootstrap_servers: str, kafka: Mapping[str, object], transactional_id: str | None, source: str = ""
    ) -> WriterSettings:
        """Settings of ``host:port,...`` and options. No I/O. Raises ConfigurationError with every mistake, ``source``'s too."""
        wrong_kinds = settings_mistakes(bootstrap_servers, kafka, transactional_id, source)
        if wrong_kinds:
            raise ConfigurationError.of("the writer's settings", wrong_kinds)
        options = {name: _text(value) for name, value in kafka.items()}
        own = {name: value for name, value in options.items() if _is_producers(name)}
        connection = {name: value for name, value in options.items() if name not in own}
        found = [text for name, text in mistakes_of(bootstrap_servers, connection)]
        found += [f"{name}: {text}" for name, value in own.items() for text in _mistakes(name, value)]
        if transactional_id == "":
            found.append("transactional_id: is empty; give a name that is this service's alone, or None")
        found += [text for text in [no_nul("transactional_id", transactional_id or "")] if text]
        found += [f"source: {problem}" for problem in [not_utf8("it", source)] if problem]
        found += _contradictions(own, transactional_id)
        if found:
            raise ConfigurationError.of("the writer's settings", found)
        timeouts = {name: int(own[name]) for name in _TIMEOUTS if name in own}
        delivery_ms = timeouts.get("delivery.timeout.ms", timeouts.get("message.timeout.ms", DELIVERY_TIMEOUT_MS))
        return cls(
            ClusterSettings.of(bootstrap_servers, connection),
            transactional_id,
            delivery_ms / 1000,
            timeouts.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
            tuple((HARMLESS[name][0], HARMLESS[name][1](value)) for name, value in own.items() if name in HARMLESS),
        )

    def for_producer(self) -> dict[str, Any]:
        """confluent-kafka's configuration. Holds secrets."""
        found = {**self.cluster.for_librdkafka(), **dict(self.producer), **_ALWAYS}
        if self.transactional_id is not None:
            found |= {
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": self.transaction_timeout_ms,
                # A refused event aborts the transaction; it need not end the producer too.
                "enable.gapless.guarantee": False,
            }
        return found


def _is_producers(name: str) -> bool:
    return name in HARMLESS or name in SAFE_ONLY or name in REFUSED or name in _TIMEOUTS


def _mistakes(name: str, value: str) -> list[str]:
    if name in REFUSED:
        return [f"cannot be set: {REFUSED[name]}"]
    if name in SAFE_ONLY:
        safe, why = SAFE_ONLY[name]
        return [] if value in safe else [f"{value!r} is refused: {why}"]
    convert = _whole(1) if name in _TIMEOUTS else HARMLESS[name][1]
    try:
        number = convert(value)
    except ValueError as error:
        return [f"{value!r} {error}"]
    if _TIMEOUTS.get(name) == DELIVERY_TIMEOUT_MS and int(number) > LONGEST_DELIVERY_MS:
        return [
            f"{value!r} is more than {LONGEST_DELIVERY_MS}: brokers forget a producer, and would take a repetition for new"
        ]
    return []


def _contradictions(own: Mapping[str, str], transactional_id: str | None) -> list[str]:
    found = []
    if "transaction.timeout.ms" in own and transactional_id is None:
        found.append("transaction.timeout.ms: has no effect without transactional_id")
    names: dict[str, str] = {"message.timeout.ms": "delivery.timeout.ms"} if "delivery.timeout.ms" in own else {}
    for name in own:
        meant = HARMLESS[name][0] if name in HARMLESS else name
        if names.setdefault(meant, name) != name:
            found.append(f"{name}: is the same as {names[meant]}; keep one of them")
    return found + _lingering(own)


def _lingering(own: Mapping[str, str]) -> list[str]:
    """An event that waits for company until it counts as overdue is given up, and with it the writer."""
    linger = own.get("linger.ms", own.get("queue.buffering.max.ms", ""))
    delivery = own.get("delivery.timeout.ms", own.get("message.timeout.ms", str(DELIVERY_TIMEOUT_MS)))
    if not (linger.isdecimal() and delivery.isdecimal()) or int(linger) < int(delivery):  # no numbers: named already
        return []
    return [f"linger.ms: must be less than delivery.timeout.ms ({delivery}), or events are given up while they linger"]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
