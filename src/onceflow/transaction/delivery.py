"""How each guarantee delivers a batch: what is written, committed and looked at, and in which order."""

from __future__ import annotations

import logging
from collections.abc import Callable

from onceflow.errors import AttemptsExhausted, OnceflowError
from onceflow.transaction.coordinator import TransactionCoordinator
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.idempotent import IdempotentIdentity
from onceflow.transaction.messages import Counts, Identity
from onceflow.transaction.producer import Target
from onceflow.transaction.requests import Requests
from onceflow.transaction.source_topics import SourceTopics
from onceflow.transaction.streaming_query import MicroBatch

log = logging.getLogger(__name__)


class Delivery:
    """Delivers the batches of the pipeline ``name`` under its guarantee; a write outside of a transaction has ``max_attempts``.

    ``topics_of`` looks which topics a batch is read from, and may refuse them; ``committed`` hears of each commit of progress.
    Not thread-safe.
    """

    def __init__(
        self,
        name: str,
        guarantee: Guarantee,
        max_attempts: int,
        requests: Requests,
        coordinator: TransactionCoordinator,
        topics_of: Callable[[MicroBatch], SourceTopics],
        committed: Callable[[], None],
    ) -> None:
        self._name = name
        self._guarantee = guarantee
        self._max_attempts = max_attempts
        self._requests = requests
        self._coordinator = coordinator
        self._topics_of = topics_of
        self._committed = committed
        self._idempotent = IdempotentIdentity(requests.idempotent_identity)

    def deliver(self, offered: MicroBatch, write: Callable[[Target], Counts]) -> bool:
        """Whether it wrote the batch; if not, an earlier run had committed it.

        ``write``: the whole batch, to where a target says. Raises an OnceflowError, or what ``write`` raised.
        """
        match self._guarantee:
            case Guarantee.EXACTLY_ONCE:
                return self._exactly_once(offered, write)
            case Guarantee.AT_MOST_ONCE:
                return self._at_most_once(offered, write)
            case Guarantee.AT_LEAST_ONCE:
                return self._at_least_once(offered, write)

    def _exactly_once(self, offered: MicroBatch, write: Callable[[Target], Counts]) -> bool:
        """Records, progress and offsets in one transaction."""
        return self._commit(offered, lambda identity: write(self._transactional(identity)))

    def _at_most_once(self, offered: MicroBatch, write: Callable[[Target], Counts]) -> bool:
        """Progress first, records after it and once: a crash in between loses them, nothing repeats them."""
        committed = self._commit(offered, lambda identity: {})
        if committed:
            self._write_plain(write, attempts=1)
        return committed

    def _at_least_once(self, offered: MicroBatch, write: Callable[[Target], Counts]) -> bool:
        """Records at once visible, offsets after them: a crash in between repeats them, nothing loses them."""
        topics = self._topics_of(offered)
        self._write_plain(write, self._max_attempts)
        topics.check_unchanged()
        self._requests.commit_offsets(offered.kafka_end())
        return True

    def _commit(self, offered: MicroBatch, write: Callable[[Identity], Counts]) -> bool:
        self._coordinator.ensure_started()
        topics = self._topics_of(offered)

        def write_unchanged(identity: Identity, attempt: int) -> Counts:
            counts = write(identity)
            topics.check_unchanged()
            return counts

        ready = self._coordinator.commit(topics.marked(offered).batch, offered.kafka_end(), write_unchanged)
        if ready.committed:
            self._committed()
        if ready.note:
            log.warning(
                "pipeline %s took up batch %d, as on_mismatch allows: %s", self._name, offered.batch.id, ready.note
            )
        return ready.committed

    def _write_plain(self, write: Callable[[Target], Counts], attempts: int) -> None:
        """Outside of any transaction; each attempt has an epoch of its own. Errors tell what comes of the batch."""
        outcome = self._guarantee.of_a_write_that_failed
        for attempt in range(1, attempts + 1):
            try:
                write(self._plain())
                return
            except (AttemptFailed, IdentityRefused) as error:
                log.warning("attempt %d failed: %s", attempt, error)
                if isinstance(error, IdentityRefused):
                    self._idempotent.forget()
                cause = error
            except OnceflowError as error:
                error.action = "; ".join(filter(None, [error.action, outcome]))
                raise
        raise AttemptsExhausted(
            f"pipeline {self._name!r}: the write failed {attempts} times, last: {cause}",
            action=f"see the cause; {outcome}",
        ) from cause

    def _transactional(self, identity: Identity) -> Target:
        return Target(identity, self._requests.id, self._requests.version)

    def _plain(self) -> Target:
        return Target(self._idempotent.next(), None, self._requests.version)
