"""Undefended variants: the production protocol without one of its defences. Each shows that a fault of the simulator bites.

Where another defence finds out what the missing one would have prevented, a variant inherits from that which lacks the other, and
breaks where that does not.

A variant stands between the machine and whoever drives it, and answers in the broker's place or asks for something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onceflow.kafka import codes
from onceflow.transaction.messages import (
    Audit,
    Audited,
    Coordinated,
    Described,
    Effect,
    End,
    Ended,
    Event,
    Halt,
    Identity,
    Initialise,
    Initialised,
    Offered,
    ProgressRead,
    ReadProgress,
    Ready,
    Refused,
    Renew,
    Snapshot,
    Start,
    Stop,
    Store,
    Stored,
    Unreachable,
    Written,
)
from onceflow.transaction.progress import OnMismatch, Progress
from onceflow.transaction.protocol import LAST_EPOCH, IllegalMove, Protocol, Settings, State, is_forgotten
from onceflow.transaction.questions import ANCHOR_PARTITION, ANCHOR_TOPIC, Committed, Question, Questions, UnknownTopic
from onceflow.verify.simulator.world import Variant
from onceflow.verify.simulator.writer import Rules


class NoAudit(Protocol):
    """Believes its writers."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        return super().handle(Audited(effect.counts)) if isinstance(effect, Audit) else effect


class OneEpoch(NoAudit):
    """Version 1 without a fresh epoch per batch: a late EndTxn meets the next transaction (KAFKA-17754)."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        identity = self.context.identity
        if self.context.state is State.REFRESH and identity is not None:
            return super().handle(Initialised(identity))
        return effect


class AbortAfterCommit(Protocol):
    """A commit that is not answered is aborted, and the batch written again."""

    def handle(self, event: Event) -> Effect:
        state, identity = self.context.state, self.context.identity
        if state is State.COMMIT and isinstance(event, Unreachable) and identity is not None:
            self.context = replace(self.context, state=State.ABORT, failure=event.reason)
            return End(identity, commit=False)
        if state is State.ABORT and isinstance(event, Refused) and identity is not None:
            event = Ended(replace(identity, epoch=identity.epoch + 1))  # as an abort of version 2 is answered
        return super().handle(event)


class AbortsUnderItsEpoch(Questions):
    """Version 1: aborts by EndTxn, whose markers leave leaders with the epoch of the attempt: late records of it are welcome."""

    def end(self, identity: Identity, *, commit: bool) -> Question[Event]:
        return self.end_txn(identity, commit=commit)


class BelievesWhatIsRead(Protocol):
    """Does not compare what it has read with what whoever accepts its offsets has."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        return replace(effect, read=None) if isinstance(effect, Store) else effect


class StopsForAnOlderClaim(Protocol):
    """Takes whichever claim it has not found at its start for that of a newer driver, also where none can have come."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        self.context = replace(self.context, opened=None)
        return effect


class TakesAnotherCommitForItsOwn(Protocol):
    """Takes what is committed under the next epoch for its own transaction, which the broker has aborted.

    No run of the simulator tells it from production on version 2, for none has drivers of both versions.
    """

    def handle(self, event: Event) -> Effect:
        if isinstance(event, Described) and event.snapshot.state is Coordinated.COMMITTED:
            event = Described(replace(event.snapshot, state=Coordinated.ABORTED))
        return super().handle(event)


class NoClaim(BelievesWhatIsRead, TakesAnotherCommitForItsOwn):
    """Does not ask who claimed the name; on version 1 what is committed under the next epoch would tell it as well."""

    def handle(self, event: Event) -> Effect:
        if isinstance(event, ProgressRead) and event.progress is not None:
            event = ProgressRead(event.progress.claimed_by(self.context.name))
        return super().handle(event)


class GoesOnWithoutClaim(BelievesWhatIsRead):
    """Takes committed progress that is gone for its own."""

    def handle(self, event: Event) -> Effect:
        if self.context.claimed and isinstance(event, ProgressRead) and event.progress is None:
            event = ProgressRead(self.context.progress)
        return super().handle(event)


class FencesBack(NoClaim):
    """Takes the name back from whoever has it."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.LOOK and isinstance(event, Described):
            settled = event.snapshot.state is not Coordinated.COMPLETING
            event = Described(Snapshot(Coordinated.ABORTED, self.context.identity)) if settled else event
        effect = super().handle(event)
        return Initialise(None) if self.context.state is State.RETAKE else effect


class ProgressBeforeFence(BelievesWhatIsRead):
    """Reads the progress first and fences then; what it has read is compared with nothing, or that would find it out."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._early: Progress | None = None
        self._reading = False

    def handle(self, event: Event) -> Effect:
        if isinstance(event, Start) and self.context.state is State.NEW:
            self._reading = True
            return ReadProgress()
        if self._reading and isinstance(event, ProgressRead):
            self._reading, self._early = False, event.progress
            return super().handle(Start())
        if self._reading:
            self._reading = False
            super().handle(Start())
        if self.context.state is State.READ and isinstance(event, ProgressRead):
            event = ProgressRead(self._early)
        return super().handle(event)


class NoConfirm(TakesAnotherCommitForItsOwn):
    """Does not look whether another driver fenced it while it read the progress, nor takes its commit for another's then."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.CONFIRM and isinstance(event, Described):
            event = Described(Snapshot(Coordinated.EMPTY, self.context.identity))
        return super().handle(event)


class TrustsBatchIds(Protocol):
    """Skips a batch whose id is committed, without looking what is in it."""

    def handle(self, event: Event) -> Effect:
        progress = self.context.progress if self.context.state is State.READY else None
        if isinstance(event, Offered) and progress is not None and event.batch.id < progress.next_batch:
            return Ready(event.batch)
        return super().handle(event)


class RefusedIsAborted(BelievesWhatIsRead):
    """Takes a refused commit for an abort: does not let the progress decide, neither when it reads it nor when it stores."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.RESOLVE and isinstance(event, ProgressRead) and self.context.batch is not None:
            known = self.context.progress
            event = ProgressRead(known.claimed_by(self.context.name) if known else None)
        return super().handle(event)


class TrustsNewIdentity(Protocol):
    """Takes whatever identity it is given for its own next epoch, also from a coordinator that had forgotten the id."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.REFRESH and isinstance(event, Initialised):
            self.context = replace(self.context, identity=event.identity)
        return super().handle(event)


class TrustsWhatFollowsTheLastEpoch(TrustsNewIdentity):
    """The same, only behind the last epoch of a producer id, where another one is due: not so if the id was forgotten."""

    def handle(self, event: Event) -> Effect:
        own = self.context.identity
        return super().handle(event) if own is not None and own.epoch >= LAST_EPOCH else Protocol.handle(self, event)


class TakesAnotherIdForAnotherDriver(Protocol):
    """Stops where it goes on under another producer id than it fenced with: also when that one is forgotten, or used up."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._fenced_with = 0

    def handle(self, event: Event) -> Effect:
        given = event.identity if isinstance(event, Initialised | Ended) else None
        if given is not None and self.context.state is State.FENCE:
            self._fenced_with = given.producer_id
        elif given is not None and given.producer_id != self._fenced_with:
            self.context = replace(self.context, state=State.STOPPED)
            return Halt(Stop.FENCED, f"{given} follows producer {self._fenced_with}")
        return super().handle(event)


class RenewsAtAnyPrice(Protocol):
    """Takes the name for a renewal, from whoever has it by now, and puts what it knows over what is committed."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.READY and isinstance(event, Renew):
            self.context = replace(self.context, state=State.REFRESH, fresh=False, attempt=1, renewed=())
            return Initialise(None)
        return super().handle(event)


class UnknownIsCommitted(Protocol):
    """Takes a commit without an answer for done."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.COMMIT and isinstance(event, Refused | Unreachable):
            event = Ended(None)
        return super().handle(event)


class RepeatsEmptyEpoch(Protocol):
    """Version 1: goes on under the epoch of a batch without records, as if nothing had happened under it."""

    def handle(self, event: Event) -> Effect:
        was_empty = self.context.state is State.COMMIT and not self.context.counts
        effect = super().handle(event)
        if was_empty and isinstance(effect, Ready):
            self.context = replace(self.context, fresh=True)
        return effect


class ForgetsEmpty(Protocol):
    """Takes a batch without records for done at its second attempt: there is nothing to commit, but for the progress."""

    def handle(self, event: Event) -> Effect:
        empty = isinstance(event, Written) and not any(event.counts.values())
        if not empty or self.context.attempt == 1:
            return super().handle(event)
        done = Ready(self.context.batch, committed=True)
        self.context = replace(self.context, state=State.READY, batch=None, attempt=0)
        return done


class ReportsOldConflicts(Protocol):
    """Compares a batch with the progress that it knows, and reports a conflict without asking whether that is still so::

    driver 1 is interrupted between two batches; driver 2 takes over, and commits the next one from the same checkpoint
    the query of driver 1 starts again in its process, at the batch after that: a conflict, where nothing is wrong
    """

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        if self.context.state is State.CHECK_CONFLICT:
            return super().handle(ProgressRead(self.context.progress))
        return effect


class GivesUpAndGoesOn(ReportsOldConflicts):
    """Nor does it look before it takes the next batch, after it gave one up."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        gave_up = isinstance(effect, Halt) and effect.stop in (Stop.REJECTED, Stop.EXHAUSTED)
        if gave_up and self.context.claimed:
            self.context = replace(self.context, state=State.READY)
        return effect


class AsksAgainForTheLastEpoch(Protocol):
    """Asks for its next epoch once more, also where the answer that was lost gave the last one there is."""

    def handle(self, event: Event) -> Effect:
        before = self.context
        effect = super().handle(event)
        if before.state is State.CHECK_CLAIM and self.context.state is State.INSPECT:
            self.context = replace(before, state=State.RETAKE)
            return Initialise(before.identity)
        return effect


class GoesOnBehindTheLastEpoch(Protocol):
    """Opens a transaction under the epoch that an abort in the last one leaves on Kafka before 4.3."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        identity = self.context.identity
        if self.context.state is State.REFRESH and identity is not None and identity.epoch > LAST_EPOCH:
            return super().handle(Initialised(identity))
        return effect


class TakesAForgottenIdForAnotherDriver(Protocol):
    """Stops where a coordinator that has moved does not know the producer id that the last epoch was followed by."""

    def handle(self, event: Event) -> Effect:
        own, looks = self.context.identity, self.context.state is State.LOOK
        if looks and isinstance(event, Described) and is_forgotten(event.snapshot, own):
            self.context = replace(self.context, state=State.STOPPED)
            return Halt(Stop.FENCED, f"{event.snapshot.identity} holds the transactional id, we had {own}")
        return super().handle(event)


class RenewsTheBatchBefore(Protocol):
    """Renews the source offsets of the newest batch, and the progress of the one before: the next start is refused."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        if isinstance(effect, Store) and effect.renewed and effect.progress.next_batch:
            old = effect.progress
            return replace(effect, progress=replace(old, next_batch=old.next_batch - 1, ends=old.ends[:-1]))
        return effect


class ForgetsSources(Protocol):
    """Further attempts commit no source offsets, as if those of the one that was aborted were still there."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        if isinstance(effect, Store) and effect.batch is not None and self.context.attempt > 1:
            return replace(effect, batch=None)
        return effect


class ForgetsProgress(Protocol):
    """Further attempts commit no progress but the claim, as if that of the one that was aborted were still there."""

    def handle(self, event: Event) -> Effect:
        effect = super().handle(event)
        if isinstance(effect, Store) and effect.batch is not None and self.context.attempt > 1:
            return replace(effect, progress=Progress.empty(self.context.name))
        return effect


class StartsAgainAfterItWasFenced(Protocol):
    """A start makes it forget that another driver took over."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.STOPPED and isinstance(event, Start):
            self.context = replace(self.context, state=State.READY)
            return Ready()
        return super().handle(event)


class ExpectsAnAnswer(Protocol):
    """Its table has no row for a commit that nobody answers."""

    def handle(self, event: Event) -> Effect:
        if self.context.state is State.COMMIT and isinstance(event, Unreachable):
            raise IllegalMove(f"COMMIT has no transition for {event}")
        return super().handle(event)


class AsksTheUserAgain(Protocol):
    """Reports a conflict and, when the user has said what to do about it, reports it once more."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(replace(settings, allowed=OnMismatch.REFUSE))


class TrustsTheOffsets(Questions):
    """Takes all source offsets that are committed for those of the newest batch, whatever that has noted of them."""

    def committed(self, *, stable: bool) -> Question[Committed]:
        asked = super().committed(stable=stable)
        return Question(asked.kind, asked.request, self._without_mark)

    def _without_mark(self, answer: Any) -> Committed:
        found = self._committed(answer)
        return replace(
            found, progress=found.progress and replace(found.progress, sources=""), newest=frozenset(found.offsets)
        )


class LooksAtTheFirstPartition(Questions):
    """Takes what the first partition is answered that it asked for, which is the progress, for the answer of all."""

    def _stored(self, answer: Any) -> Event:
        told = {(topic.name, part.partition_index): part for topic in answer.topics for part in topic.partitions}
        code = told[ANCHOR_TOPIC, ANCHOR_PARTITION].error_code
        if code == codes.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(ANCHOR_TOPIC)
        self._check(code, "the offset of the progress")
        return Stored()


class DoubtsWhoHasResumed(Protocol):
    """Refuses the second batch of a query that was resumed, which continues the first: the user has to resume once more."""

    def handle(self, event: Event) -> Effect:
        resumed = self.settings.allowed is OnMismatch.RESUME
        if resumed and self.context.state is State.READY and isinstance(event, Offered) and event.batch.id == 1:
            return Halt(Stop.CONFLICT, "a resumed query offers its second batch")
        return super().handle(event)


VARIANTS: Mapping[str, Variant] = {
    "no audit": Variant(NoAudit),
    "no fresh epoch": Variant(OneEpoch, rules=Rules(continue_sequences=True)),
    "abort after commit": Variant(AbortAfterCommit),
    "aborts under the epoch of the attempt": Variant(questions=AbortsUnderItsEpoch),
    "no claim": Variant(NoClaim),
    "goes on without a claim": Variant(GoesOnWithoutClaim),
    "fences back": Variant(FencesBack),
    "progress before fence": Variant(ProgressBeforeFence),
    "believes what is read": Variant(BelievesWhatIsRead),
    "believes where it begins": Variant(compares_beginnings=False),
    "stops for an older claim": Variant(StopsForAnOlderClaim),
    "takes another commit for its own": Variant(TakesAnotherCommitForItsOwn),
    "no confirmation": Variant(NoConfirm),
    "trusts batch ids": Variant(TrustsBatchIds),
    "refused is aborted": Variant(RefusedIsAborted),
    "trusts a new identity": Variant(TrustsNewIdentity),
    "trusts what follows the last epoch": Variant(TrustsWhatFollowsTheLastEpoch),
    "takes another producer id for another driver": Variant(TakesAnotherIdForAnotherDriver),
    "reports old conflicts": Variant(ReportsOldConflicts),
    "gives up and goes on": Variant(GivesUpAndGoesOn),
    "asks again for the last epoch": Variant(AsksAgainForTheLastEpoch),
    "goes on behind the last epoch": Variant(GoesOnBehindTheLastEpoch),
    "takes a forgotten producer id for another driver": Variant(TakesAForgottenIdForAnotherDriver),
    "renews at any price": Variant(RenewsAtAnyPrice),
    "renews the batch before": Variant(RenewsTheBatchBefore),
    "doubts who has resumed": Variant(DoubtsWhoHasResumed),
    "forgets the source offsets": Variant(ForgetsSources),
    "forgets the progress": Variant(ForgetsProgress),
    "starts again after it was fenced": Variant(StartsAgainAfterItWasFenced),
    "expects an answer": Variant(ExpectsAnAnswer),
    "asks the user again": Variant(AsksTheUserAgain),
    "trusts the offsets": Variant(questions=TrustsTheOffsets, compares_beginnings=False),
    "looks at the first partition": Variant(questions=LooksAtTheFirstPartition),
    "enrols once": Variant(rules=Rules(enrol_once=True)),
    "unknown is committed": Variant(UnknownIsCommitted),
    "repeats the epoch of an empty batch": Variant(RepeatsEmptyEpoch),
    "forgets an empty batch": Variant(ForgetsEmpty),
    "looks for nobody again": Variant(looks_again=False),
    "does not trust offsets": Variant(trusts_offsets=False),
    "takes a name without progress for new": Variant(compares_new_names=False),
    "retried tasks write": Variant(rules=Rules(retry_tasks=True)),
}
"""By name. ``tests/verify/simulator/test_variants.py`` names the faults that break each."""
