"""Client options that a reader does not take from ``kafka``, each with the reader's own reason or its own name for it."""

from __future__ import annotations

_OFFSETS = (
    "the store has the position; the reader commits offsets behind it, and an automatic commit would run ahead of it"
)
_SERIALIZERS = "keys and values are bytes: the handler reads them"
_FETCHING = "the reader fetches as its handler takes events; give batch_size"
_PRODUCER = "a reader writes dead letters alone, each acknowledged by all replicas before the event counts as handled"

REFUSED: dict[str, str] = {
    "enable.auto.commit": _OFFSETS,
    "enable.auto.offset.store": _OFFSETS,
    "auto.commit.interval.ms": _OFFSETS,
    "auto.offset.reset": "a silent jump loses or repeats events; start and lost_store say where a group begins",
    "isolation.level": "a reader always reads committed records only; anything else may be aborted later",
    "group.id": "give it as group",
    "group.instance.id": "give it as group_instance_id",
    "group.protocol": "give it as group_protocol",
    "session.timeout.ms": "give it as session_timeout_s",
    "heartbeat.interval.ms": "it is a third of session_timeout_s",
    "max.poll.interval.ms": "give it as max_poll_interval_s",
    "max.poll.records": "give it as batch_size",
    "partition.assignment.strategy": "rebalances are cooperative, so that a reader keeps what it does not have to give up",
    "interceptor.classes": "an interceptor can change or drop events behind the reader's back",
    "key.deserializer": _SERIALIZERS,
    "value.deserializer": _SERIALIZERS,
    "fetch.max.wait.ms": _FETCHING,
    "fetch.min.bytes": _FETCHING,
    "fetch.max.bytes": _FETCHING,
    "max.partition.fetch.bytes": _FETCHING,
    "acks": _PRODUCER,
    "enable.idempotence": _PRODUCER,
    "retries": _PRODUCER,
    "transactional.id": _PRODUCER,
}
"""Option to why not, and what to give instead."""
