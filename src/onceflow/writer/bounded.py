"""A call into librdkafka that ends, whatever librdkafka does.

Its transactional calls take a timeout, and do not always keep it (2.16)::

    a connection is lost while produced events are on their way
    send_offsets_to_transaction(..., timeout) waits for the events' partitions to be drained and registered again
    the request that would wake it was dropped with the connection: it returns neither then nor later

So each runs on a thread of its own, and the caller stops waiting when its time is over. The abandoned thread keeps its
producer until the process ends. It can do no harm: the writer goes on with a new producer under the same id, whose
InitProducerId aborts what was open, and everything that the old one may still send is refused as fenced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException


def bounded(question: Callable[..., object], arguments: tuple[Any, ...], timeout_s: float) -> None:
    """Calls ``question``; raises what it raises, and KafkaException (_TIMED_OUT, not retriable) if it does not return in time."""
    outcome: list[BaseException | None] = []

    def call() -> None:
        try:
            question(*arguments)
        except BaseException as error:  # noqa: BLE001  raised again where the caller is
            outcome.append(error)
        else:
            outcome.append(None)

    name = getattr(question, "__name__", "call")
    thread = threading.Thread(target=call, name=f"onceflow-writer-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not outcome:
        late = f"{name} did not return within {timeout_s:g} s"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, late))  # noqa: SLF001  confluent-kafka's name of the code
    if outcome[0] is not None:
        raise outcome[0]
