"""What a writer of transactions raises: each error says what is the matter, with which id, and what to do about it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import KafkaError

from onceflow.errors import (
    BrokerUnreachable,
    DeliveryFailed,
    Fenced,
    NotAuthorized,
    OnceflowError,
    OutcomeForgotten,
    OutcomeUnknown,
    TransactionAborted,
)
from onceflow.kafka.rights import is_denied, tells_of_denial

AGAIN = "run the block again; a consumer whose events it sends is sought back to its committed offsets first"
_RIGHTS = "grant WRITE on the topics that it writes, and READ on the group and on the topics whose offsets it commits"
EXPIRED = {KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID}


@dataclass(frozen=True, slots=True)
class Refusals:
    """Of one transactional id. ``group`` has its marker, ``rights`` is what that needs; the times are as for ``Transactions``."""

    id: str
    group: str
    rights: str
    patience_s: float
    timeout_s: float

    def fenced(self, reason: str) -> Fenced:
        """Another writer has the id."""
        return Fenced(
            f"another writer took over the transactional id {self.id!r}: {reason}",
            action="nothing, if the other is meant to run; it carries on. Never give one id to two services",
            transactional_id=self.id,
        )

    def unclaimed(self, error: KafkaError, overdue: str) -> OnceflowError:
        """A claim, or a probe, that was not made: only what is fatal to the producer tells of another one.

        Where the coordinator aborts a transaction that was open for too long, librdkafka says the same as of a fence: ``overdue``
        is what is known of other writers then, and else empty.
        """
        if is_denied(error):
            return NotAuthorized(
                f"the transactional id {self.id!r} was not claimed: {error.str()}",
                action=self.rights,
            )
        if not error.fatal():
            return self.unsure(error.str())
        if overdue:
            return BrokerUnreachable(
                f"the transactional id {self.id!r} was not claimed: that took longer than its transaction may "
                f"({self.timeout_s:g} s), and {overdue}: {error.str()}",
                action="start again; if it comes again, look why the brokers are slow, or raise transaction.timeout.ms",
            )
        return self.fenced(f"the claim was refused: {error.str()}")

    def unsure(self, reason: str) -> BrokerUnreachable:
        """The same, and nobody else need have anything to do with it."""
        return BrokerUnreachable(
            f"the transactional id {self.id!r} was not claimed: {reason}",
            action="check that the brokers run and are reachable, and start again",
        )

    def outdated(self) -> BrokerUnreachable:
        """Nobody has answered who is up to date."""
        return BrokerUnreachable(
            f"the marker of the transactional id {self.id!r}: for {self.patience_s:g} s whoever answered for the group "
            f"{self.group} did not know what was committed just before: a broker that is cut off from the others, which "
            "have replaced it as the group's coordinator",
            action="look which broker the others miss (kafka-metadata-quorum.sh describe --replication), mend its network or "
            "stop it, and start again",
        )

    def unknown(self, number: int, reason: str) -> OutcomeUnknown:
        """Whether the transaction ``number`` is committed; it will be known."""
        return OutcomeUnknown(
            f"the commit of transaction {number} of {self.id!r} was sent, and whether it was made is not known "
            f"yet: {reason}",
            action="call writer.settle(), which finds out; or read Writer.progress at the next start",
            transactional_id=self.id,
            transaction=number,
        )

    def forgotten(self, number: int) -> OutcomeForgotten:
        """The same, and it will not."""
        return OutcomeForgotten(
            f"the commit of transaction {number} of {self.id!r} was sent, and nobody can tell whether it was made: "
            "the marker that would tell is gone (the cluster drops it when nothing was committed for offsets.retention.minutes)",
            action="look in the topics for the block's events, by their ids; then make a new writer. Its progress may be empty",
            transactional_id=self.id,
            transaction=number,
        )

    def aborted(self, reason: str, told: DeliveryFailed | None = None) -> OnceflowError:
        """What to raise when the open transaction cannot go on; the caller aborts it. No repetition grants a missing right.

        ``told`` names the events that failed, by sources and ids: whether a right is lacking is not read out of its text.
        """
        denied = tells_of_denial(reason) or (told is not None and bool(told.fields.get("denied")))
        why = "; ".join(text for text in (reason, told.message if told else "") if text)
        return (NotAuthorized if denied else TransactionAborted)(
            f"a transaction of {self.id!r} was aborted: {why}",
            action=_RIGHTS if denied else AGAIN,
            transactional_id=self.id,
        )


def told_reason(error: KafkaError) -> str:
    """The reason for which a transaction must be aborted; empty for any other error."""
    return said(error) if error.txn_requires_abort() else ""


def said(error: KafkaError) -> str:
    """What the broker said, and what it means where its words do not tell."""
    expired = "its producer id has expired (transactional.id.expiration.ms): " if error.code() in EXPIRED else ""
    return expired + error.str()
