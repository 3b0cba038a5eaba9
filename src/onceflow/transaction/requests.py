"""The requests of the commit algorithm, one method for each effect that talks to a coordinator or a partition leader.

What is asked and what an answer means is in ``questions.py``; here a question is sent and repeated until it is answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from onceflow.kafka.client import Again, KafkaClient
from onceflow.transaction.messages import Audited, Counts, Event, Identity, Refused, Stored, WriteFailed
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import (
    ANCHOR_PARTITION,
    ANCHOR_TOPIC,
    At,
    Committed,
    Question,
    Questions,
    describe_producers,
    idempotent_init,
    read_held,
    transactional_id,
)

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
    def _questions(self) -> Questions:
        return Questions(self.name, self.version, self.timeout_ms)

    def describe(self, settle: bool) -> Event:
        """DescribeTransactions; with ``settle`` until the transaction is no longer completing."""
        return self._ask(self._questions.describe(settle=settle))

    def initialise(self, expected: Identity | None) -> Event:
        """InitProducerId: aborts what is open, then answers with a fresh epoch."""
        return self._ask(self._questions.initialise(expected))

    def end(self, identity: Identity, commit: bool) -> Event:
        """EndTxn, the same request until it is answered."""
        return self._ask(self._questions.end(identity, commit=commit))

    def read_progress(self) -> Event:
        """OffsetFetch, once no transaction on the group is open."""
        return self._ask(self._questions.progress())

    def read_offsets(self, *, stable: bool = True) -> tuple[Progress | None, dict[At, int]]:
        """The progress record and the committed source offsets; ``stable`` waits for an open transaction on them to end."""
        found = self._ask(self._questions.committed(stable=stable))
        assert isinstance(found, Committed), found
        return found.progress, dict(found.offsets)

    def store(self, identity: Identity, progress: Progress, source: Mapping[At, int]) -> Event:
        """TxnOffsetCommit of the progress record and of source offsets."""
        for question in self._questions.store(identity, progress, source):
            event = self._ask(question)
            if not isinstance(event, Stored):
                break
        return event

    def audit(self, identity: Identity, counts: Counts) -> Event:
        """DescribeProducers: LastSequence + 1 of our identity is the number of records the leader holds."""
        held: dict[At, int] = {}
        self.client.repeat(lambda: self._audit_rest(identity, set(counts) - set(held), held), "DescribeProducers")
        return Audited(held)

    def _audit_rest(self, identity: Identity, rest: set[At], held: dict[At, int]) -> None:
        topics = self.client.topics({topic for topic, _ in rest})
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic, partition in sorted(rest):
            leader = topics[topic].leaders[partition]
            by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
        try:
            for leader, wanted in by_leader.items():
                read_held(self.client.ask(leader, describe_producers(wanted)), identity, held)
        except Again as again:
            if again.moved:
                self.client.topics(topics, refresh=True)
            raise

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
        if source:
            self._ask(self._questions.plain_offsets(source))

    # ---------------------------------------------------------------------------------------------------------- asking

    def _ask(self, question: Question[T]) -> T | Refused | WriteFailed:
        """Asks until there is an answer that can be read."""
        found: T | Refused | WriteFailed = self.client.repeat(
            lambda: self._ask_once(question), type(question.request).__name__
        )
        return found

    def _ask_once(self, question: Question[T]) -> T | Refused | WriteFailed:
        answer = self.client.ask_coordinator(question.kind, self.id, question.request)
        try:
            return question.read(answer)
        except Again as again:
            if again.moved:
                self.client.forget_coordinator(question.kind, self.id)
            raise
