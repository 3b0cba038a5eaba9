"""A transactional call into librdkafka that ends, whatever librdkafka does.

These calls take a timeout, and do not always keep it (2.16)::

    a connection is lost while produced events are on their way
    send_offsets_to_transaction(..., timeout) waits for the events' partitions to be drained and registered again
    the request that would wake it was dropped with the connection: it returns neither then nor later

So the caller stops waiting when its time is over (``onceflow.bounded``). The abandoned thread can do no harm: the writer goes on
with a new producer under the same id, whose InitProducerId aborts what was open, and fences all that the old one may still send.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from onceflow.bounded import returned_within

log = logging.getLogger("onceflow.writer")


def bounded(question: Callable[..., object], arguments: tuple[Any, ...], timeout_s: float) -> None:
    """Calls ``question``; raises what it raises, and KafkaException (_TIMED_OUT, not retriable) if it does not return in time."""
    name = getattr(question, "__name__", "call")
    if not returned_within(timeout_s, partial(question, *arguments), f"onceflow-writer-{name}", log.info):
        late = f"{name} did not return within {timeout_s:g} s"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, late))  # noqa: SLF001  confluent-kafka's name of the code
