"""Step 4: produces chunks under one identity, in order per partition, up to five batches of a partition in flight.

What is sent when, and what becomes of each answer, is decided in ``producing.py`` and ``lane.py``, on the caller's thread; the
client's I/O thread only delivers answers to a queue.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

from onceflow.kafka.client import KafkaClient
from onceflow.transaction.chunk import Chunk, seal
from onceflow.transaction.messages import Counts
from onceflow.transaction.performing import Performer
from onceflow.transaction.producing import Answered, Await, Producing, Send, Target
from onceflow.transaction.talk import Pace

__all__ = ["BatchProducer", "Target"]

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.001, 1.0


class BatchProducer(Producing):
    """Writes the chunks of one attempt. ``submit`` as they come (blocks while too much is buffered), then ``finish``.

    Raises IdentityRefused, AttemptFailed, BrokerUnreachable (no answer for the client's patience), NotAuthorized, or
    InputError when a broker refuses the records themselves. After an error the attempt must be aborted. ``on_request`` is
    called before each produce request, for tests that stop in the middle of a write.
    """

    def __init__(self, client: KafkaClient, target: Target, on_request: Callable[[], None] | None = None) -> None:
        super().__init__(target, Pace.real(client.patience_s))
        self._performer = _Sender(client, target.transactional_id or "", on_request or (lambda: None))

    def submit(self, topic: str, chunk: Chunk) -> None:
        """Takes over one chunk; its records follow all earlier ones of the same partition."""

        def sealed(base_sequence: int) -> bytes:
            identity, transactional = self._target.identity, self._target.transactional_id is not None
            return seal(chunk, identity.producer_id, identity.epoch, base_sequence, transactional=transactional)

        self._performer.run(self.submitted(topic, chunk.partition, chunk.count, sealed))

    def finish(self) -> Counts:
        """Waits until every record is acknowledged; the acknowledged records per (topic, partition)."""
        return self._performer.run(self.finished())


class _Sender(Performer):
    """Also sends produce requests, and waits for what becomes of them."""

    def __init__(self, client: KafkaClient, transactional_id: str, on_request: Callable[[], None]) -> None:
        super().__init__(client, transactional_id)
        self._on_request = on_request
        self._answers: queue.SimpleQueue[Answered] = queue.SimpleQueue()

    def perform(self, turn: Any) -> Any:
        match turn:
            case Send(leader, request, batches):
                self._on_request()
                self.client.send(leader, request, lambda answer: self._answers.put(Answered(leader, batches, answer)))
                return None
            case Await(until):
                return self._next_answer(until)
        return super().perform(turn)

    def _next_answer(self, until: float | None) -> Answered | None:
        longest = _LONGEST_WAIT_S if until is None else min(until - time.monotonic(), _LONGEST_WAIT_S)
        try:
            return self._answers.get(timeout=max(_SHORTEST_WAIT_S, longest))
        except queue.Empty:
            return None
