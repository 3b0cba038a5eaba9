"""What topics take at most: ``max.message.bytes``, which a broker compares with a whole batch and not with an event.

librdkafka does not split a batch that is refused (Java's producer does)::

    a topic takes 20 000 bytes; 1000 events of 100 bytes are sent, and go into one batch of up to batch.size (1 000 000)
    the broker refuses the batch, and with it 1000 events of which each alone would be taken

So batches are kept below the smallest limit of the topics that the writer has met, and an event is refused for its size where it
exceeds the limit alone. Whoever meets a topic first asks, and the others wait::

    two threads send their first events there at the same moment; one asks, the other finds that it was asked for, and goes on
    it fills a batch of up to batch.size before the answer comes, and the broker refuses that

Nobody tells the limit where the principal may not see a topic's settings (DESCRIBE_CONFIGS), or where no broker answers in time::

    a topic takes 20 000 bytes, which nobody tells; 1000 events of 100 bytes are refused with their batch
    a service that leaves out what is refused leaves out 1000 events of which each alone would be taken

So an event is at fault only where it was alone in its batch, because it is larger than a batch may be; with compression, where an
event's size does not tell, it is the same. Each batch that is refused for a limit that nobody tells makes those of the next
producer smaller, until they fit or an event is alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from onceflow.writer.heard_log import LOG
from onceflow.writer.identity import WireHeaders

LARGEST = 1_000_000  # librdkafka's default of batch.size and of message.max.bytes
_PATIENCE_S = 5.0
_FEWER = 10  # times less than in a refused batch is in the next ones, where nobody tells what would be taken
_FRAMING_BYTES = 1024  # what a batch adds to the key, value and headers of an event; more only with very many headers
_BATCH_BYTES = 61  # a batch of message format v2 without its records

Data = bytes | str | None


class TopicLimits:
    """What the topics take that one writer has met, for all its producers. ``connection``: how to ask.

    ``batch_bytes`` is what a batch may have: the configured ``batch.size``, or what the smallest topic takes.
    """

    def __init__(self, connection: Callable[[], Mapping[str, Any]], producer: Mapping[str, Any]) -> None:
        self._connection = connection
        self._event_bytes = int(producer.get("message.max.bytes", LARGEST))
        self.batch_bytes = min(int(producer.get("batch.size", LARGEST)), self._event_bytes)
        self._is_plain = producer.get("compression.type", "none") == "none"
        self._harmless = self._event_bytes + _FRAMING_BYTES
        self._one_asks = threading.RLock()  # a signal's handler may send as well
        self._asked: set[str] = set()
        self._doubted: set[str] = set()
        self.of: dict[str, int] = {}  # each topic of which it is known
        # Those that do not take everything that the writer may send; what a batch may have, where nobody tells more.
        self.tight: dict[str, int] = {}

    def learn(self, topic: str) -> None:
        """Asks for the topic's limit, unless it is known; waits while another thread asks."""
        with self._one_asks:
            if topic in self._asked:
                return
            with suppress(TimeoutError):  # the next producer asks again
                limit = _limit_of(topic, self._connection())
                self._asked.add(topic)
                if limit is not None:
                    self._bound(topic, limit)
            if topic not in self.of and self.batch_bytes < self._event_bytes:
                self.tight[topic] = self.batch_bytes

    def _bound(self, topic: str, limit: int) -> None:
        self.of[topic] = limit
        if limit >= self._harmless and topic not in self._doubted:
            self.tight.pop(topic, None)
            return
        self.tight[topic] = limit
        self.batch_bytes = max(1, min(self.batch_bytes, limit))

    def doubt(self, topic: str) -> None:
        """A batch was too large: the limit may have been lowered, and is asked for before the next producer's first event."""
        self._asked.discard(topic)
        self._doubted.add(topic)  # every event is weighed from then on: framing may be what makes one too large

    def refused_batch(self, topic: str, batch_bytes: int) -> str:
        """Why a batch of up to ``batch_bytes`` was refused. Where nobody tells the limit, the next producer's are smaller."""
        said = "its batch was larger than the topic's max.message.bytes"
        limit = self.of.get(topic)
        if limit is not None:
            return f"{said}; batch.size of at most {limit} avoids that"
        self.batch_bytes = max(1, min(self.batch_bytes, batch_bytes // _FEWER))
        return f"{said}, which nobody tells; grant DESCRIBE_CONFIGS on the topic, or set batch.size to what it takes"

    def is_exact(self, topic: str) -> bool:
        """Whether an event's size tells if the topic takes it."""
        return self._is_plain and topic in self.of


def _limit_of(topic: str, connection: Mapping[str, Any]) -> int | None:
    """None where nobody may tell. Raises TimeoutError where nobody answers."""
    try:
        client = AdminClient(dict(connection), logger=LOG)  # named, so that it lives until it is answered
        asked = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], request_timeout=_PATIENCE_S)
        return int(next(iter(asked.values())).result(_PATIENCE_S)["max.message.bytes"].value)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001  confluent-kafka's name of the code
            raise TimeoutError from None
        return None
    except KeyError:
        return None


def size_alone(value: Data, key: Data, headers: WireHeaders) -> int:
    """The bytes of a batch of this one event, uncompressed, as a broker counts them."""
    body = 3 + _framed(key) + _framed(value) + _number(len(headers))  # 3: attributes, and both deltas, which are 0
    body += sum(_framed(name) + _framed(held) for name, held in headers)
    return _BATCH_BYTES + _number(body) + body


def _framed(data: Data) -> int:
    if data is None:
        return 1
    size = len(data.encode() if isinstance(data, str) else data)
    return _number(size) + size


def _number(number: int) -> int:
    """The bytes of a whole number from 0 as a varint, which has 7 bits a byte and the sign in the first one."""
    return max(1, -(-(number << 1).bit_length() // 7))
