"""The requests of the commit algorithm, one method for each effect that talks to a coordinator or a partition leader.

What is asked and what an answer means is in ``questions.py``, how long and of whom it is asked in ``asking.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from onceflow.kafka.client import KafkaClient
from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Counts, Event, Identity, ProgressRead
from onceflow.transaction.performing import Performer
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import (
    ANCHOR_PARTITION,
    ANCHOR_TOPIC,
    At,
    Committed,
    Questions,
    idempotent_init,
    transactional_id,
)
from onceflow.transaction.talk import Pace, Talk

__all__ = ["ANCHOR_PARTITION", "ANCHOR_TOPIC", "Requests", "transactional_id"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one pipeline. ``version`` is the cluster's transaction version (1 or 2)."""

    client: KafkaClient
    name: str
    version: int
    timeout_ms: int

    @property
    def id(self) -> str:
        return transactional_id(self.name)

    @property
    def _asking(self) -> Asking:
        return Asking(Questions(self.name, self.version, self.timeout_ms), Pace.real(self.client.patience_s))

    def describe(self, settle: bool) -> Event:
        """DescribeTransactions; with ``settle`` until the transaction is no longer completing."""
        return self._run(self._asking.describe(settle))

    def initialise(self, expected: Identity | None) -> Event:
        """InitProducerId: aborts what is open, then answers with a fresh epoch."""
        return self._run(self._asking.initialise(expected))

    def end(self, identity: Identity, commit: bool) -> Event:
        """EndTxn, or the InitProducerId that aborts on version 1; the same request until it is answered."""
        return self._run(self._asking.end(identity, commit))

    def read_progress(self) -> Event:
        """OffsetFetch, once no transaction on the group is open."""
        return self._run(self._asking.read_progress())

    def read_sources(self) -> Event:
        """OffsetFetch of everything, once no transaction on the group is open."""
        return self._run(self._asking.read_sources())

    def read_committed(self, *, stable: bool = True) -> Committed:
        """The progress record and the committed source offsets; ``stable`` waits for an open transaction on them to end."""
        return self._run(self._asking.read_committed(stable=stable))

    def read_claimed(self, claimed: Progress | None) -> Committed:
        """As a stable ``read_committed``, once the progress is what this driver has ``claimed``."""
        return self._run(self._asking.read_claimed(claimed))

    def forget_group(self) -> None:
        """Whoever coordinates the group is looked up before it is asked again."""
        self._run(self._asking.forget_group())

    def store(
        self, identity: Identity, progress: Progress, source: Mapping[At, int], read: ProgressRead | None = None
    ) -> Event:
        """TxnOffsetCommit of the progress record and of source offsets, unless other progress is committed than was ``read``."""
        return self._run(self._asking.store(identity, progress, source, read))

    def audit(self, identity: Identity, counts: Counts) -> Event:
        """DescribeProducers: LastSequence + 1 of our identity is the number of records the leader holds."""
        return self._run(self._asking.audit(identity, counts))

    # ---------------------------------------------------------------------------------------------- without transaction

    def idempotent_identity(self) -> Identity:
        """An identity for an idempotent producer."""

        def once() -> Identity:
            answer = self.client.ask(None, idempotent_init())
            self.client.check(answer.error_code, "InitProducerId")
            return Identity(answer.producer_id, answer.producer_epoch)

        identity: Identity = self.client.repeat(once, "InitProducerId")
        return identity

    def commit_offsets(self, source: Mapping[At, int]) -> None:
        """OffsetCommit of source offsets, outside of any transaction."""
        asking = self._asking
        for question in asking.questions.plain_offsets(source):
            self._run(asking.ask(question))

    # ---------------------------------------------------------------------------------------------------------- asking

    def _run(self, talk: Talk[T]) -> T:
        return Performer(self.client, self.id).run(talk)
