"""The commit algorithm as a pure state machine: events in, effects out, no I/O, no clock, no randomness.

One machine lives in the driver and owns one name (one transactional id). ``Protocol.handle(event)`` moves it along
``TRANSITIONS`` and returns the one effect to perform next; whoever performs it feeds the answer back as an event. Production
(``coordinator.py``) and a simulator drive the same code.

The steps, numbered as in ARCHITECTURE.md::

    at start   INSPECT -> FENCE -> READ -> CONFIRM -> CLAIM_STORE -> CLAIM_COMMIT -> READY
    a batch    READY -(2 decide)-> [1 REFRESH] -> 3,4 WRITE -> 5 AUDIT -> 6 STORE -> 7 COMMIT -> READY
    an attempt that failed before its commit was sent
      version 2                                            ABORT -> WRITE
      version 1                                            ABORT -> [SETTLE -> CHECK_CLAIM -> RETAKE -> RESOLVE] -> WRITE
    a refused identity, or a commit with unknown outcome   LOOK -> CHECK_CLAIM -> RETAKE -> RESOLVE -> READY or WRITE
    a batch that does not continue the known progress      CHECK_CONFLICT -> READY or STOPPED, or as any batch
    nothing to commit for long                             RENEW -> [REFRESH] -> CLAIM_STORE -> CLAIM_COMMIT -> READY

Why the start fences before it reads: progress that is read first may be overtaken::

    new driver reads progress: N-1 is committed
    old driver commits N
    new driver fences, believes N is still to be done, and writes N a second time

Why a refused driver looks before it fences, and fences by compare-and-set: a transaction that merely timed out and one that
was fenced by a newer driver are refused with the same errors, and the older of two drivers must never fence back::

    old driver's commit is refused
    LOOK: the coordinator shows (producer id, epoch) and state; what is open under another identity than ours is another's, and
          what is committed under the next one where we have asked for no commit
    CHECK_CLAIM: the committed progress names the driver that claimed the name last; not us -> stop
    RETAKE: InitProducerId with the identity seen by LOOK is refused if anybody initialised in between -> stop
    RESOLVE: only now nothing of the old identity can arrive any more, so what progress says is final

Why a driver that rests renews its claim in a transaction of its own: the cluster drops committed offsets, the progress among
them, when nothing was committed for offsets.retention.minutes. What a renewal commits is what is committed, so whether it was
is of no matter to the next batch; but an older driver must not put its claim over a newer one's::

    driver 1 rests; driver 2 takes over, commits three batches, and rests too
    driver 1 renews: under its own epoch, as a batch would be committed, and is refused as a batch would be

Why End is an InitProducerId where it aborts on version 1, and not EndTxn: leaders may not ask the coordinator before they append
(Kafka before 3.6, transaction.partition.verification.enable), and an epoch that is too old is all that keeps a late record out::

    the records of an attempt are under way; nobody answers; EndTxn aborts it, with markers of the attempt's own epoch
    the next attempt has a fresh epoch, of which a leader hears with its first record
    a leader gets the late records first, of the newest epoch that it knows, then those of the next attempt, which commits both

the markers of an InitProducerId carry the next epoch, as those of EndTxn do on version 2 (KIP-890).

Why what was read is compared with what whoever accepts the offsets has: who told it may have been no coordinator any more::

    the others cannot reach the group's coordinator any more (clients can), and another one takes over from it
    driver 1 commits batch N there, and is killed
    driver 2 fences, and is told by the old one, which has not heard of all that, that it coordinates, and that N-1 is committed
    N would be written a second time

What the old one takes it cannot have replicated, and never accepts. Who accepts offsets behind the fence has all that was
committed before the fence, and is asked itself (CLAIM_STORE; STORE, where RESOLVE came before it). If that is something else, the
transaction is ended, and what is committed is read again.

Why nothing is ever aborted after a commit was sent: its answer may be lost while it is durable (KAFKA-17754 shows what a
late EndTxn can do). COMMIT has no way to ABORT in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from onceflow.transaction.messages import (
    Audit,
    Audited,
    Coordinated,
    Describe,
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
    ReadSources,
    Ready,
    Refused,
    Renew,
    Snapshot,
    Sources,
    SourcesRead,
    Start,
    Stop,
    Store,
    Stored,
    Unreachable,
    Write,
    WriteFailed,
    Written,
)
from onceflow.transaction.progress import NO_PROGRESS, Batch, OnMismatch, Progress, Verdict, decide

_ENDED_BY_THE_BROKER = (
    "; the broker had ended the transaction, as it does after transaction_timeout_ms (in a pipeline file transaction_timeout): "
    "raise that if the batch takes longer"
)
_REPLACED = "other progress is committed than was read: whoever told it had been replaced as the group's coordinator"
LAST_EPOCH = 32766  # the coordinator follows it with another producer id and epoch 0 (ProducerIdManager, KIP-360)


class State(Enum):
    """Where the machine is; the name says which answer it waits for."""

    NEW = auto()
    INSPECT = auto()
    FENCE = auto()
    READ = auto()
    CONFIRM = auto()
    CLAIM_STORE = auto()
    CLAIM_COMMIT = auto()
    READY = auto()
    RENEW = auto()
    CHECK_CONFLICT = auto()
    REFRESH = auto()
    WRITE = auto()
    AUDIT = auto()
    STORE = auto()
    COMMIT = auto()
    ABORT = auto()
    SETTLE = auto()
    LOOK = auto()
    CHECK_CLAIM = auto()
    RETAKE = auto()
    RESOLVE = auto()
    BROKEN = auto()  # gave up on something that may mend: the next batch looks first
    STOPPED = auto()  # final


class IllegalMove(AssertionError):
    """An event arrived that the state has no transition for: a bug in the code that drives the machine."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What never changes in a machine's life.

    ``planned``: the checkpoint has batches, and whoever planned them had claimed the name before. So there is progress::

        batch 0 is committed; the driver is killed before Spark notes it, and nobody starts it again for a week
        the cluster has dropped the progress; a start that takes the name for a new one writes batch 0 again
    """

    instance: str  # this driver's own id, new for each machine
    epoch_per_end: bool  # transaction version 2: EndTxn returns the next epoch
    allowed: OnMismatch = OnMismatch.REFUSE
    max_attempts: int = 5
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """All that the machine knows; immutable and hashable, so that a simulator can copy and compare it."""

    state: State = State.NEW
    identity: Identity | None = None
    name: str = ""  # what this driver's claim says
    starts: int = 0
    fresh: bool = False  # no transaction was opened yet under identity
    progress: Progress | None = None  # the newest committed progress that we know of
    only_read: bool = False  # ... and nothing was committed on it since: who told it may have been replaced
    claimed: bool = False  # our claim is committed
    next_empty: bool = False  # LOOK found the epoch after ours, empty: our own lost InitProducerId or another driver's
    seen_claims: frozenset[str] = frozenset()  # that the start found; one may stand until ours is committed
    opened: Identity | None = None  # under which our claim was to be stored, as long as nobody can have claimed since
    committing: Identity | None = None  # under which a commit was to be sent last
    batch: Batch | None = None  # the offered batch that is not decided yet
    sent: bool = False  # ... and a commit of it was sent
    conflict: str = ""  # ... and why it does not continue what is committed, which was not what it was decided on
    attempt: int = 0
    failure: str = ""  # why the running attempt is aborted
    terminal: bool = False  # ... and whether another attempt is pointless
    counts: tuple[tuple[tuple[str, int], int], ...] = ()  # what the writers of the running attempt report
    note: str = ""  # why a batch was taken up although it does not continue the progress
    renewed: Sources | None = None  # the source offsets that a renewal under way commits once more


Step = tuple[Context, Effect]


class Protocol:
    """Holds a ``Context`` and applies ``step`` to it. Not thread-safe; runs on the driver."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.context = Context()

    def handle(self, event: Event) -> Effect:
        """Moves on ``event`` and returns the effect to perform next. Raises IllegalMove."""
        self.context, effect = step(self.settings, self.context, event)
        return effect


def step(settings: Settings, context: Context, event: Event) -> Step:
    """The transition function: (context, event) to (next context, effect). Raises IllegalMove."""
    move = TRANSITIONS.get((context.state, type(event)))
    if move is None:
        raise IllegalMove(f"{context.state.name} has no transition for {event}")
    return move(settings, context, event)


# ---------------------------------------------------------------------------------------------------------------- start


def _inspect(settings: Settings, context: Context, event: Start) -> Step:
    """Each start claims in a name of its own, for an unanswered claim of an earlier start may stand already::

    A claims, gets no answer, and gives up; the claim is committed
    B fences and reads A's claim: that one it may replace
    A starts again, fences B and claims; B's claim is refused; B looks and finds A's claim, which it must not replace
    """
    starts = context.starts + 1
    name = settings.instance if starts == 1 else f"{settings.instance}.{starts}"
    return replace(context, state=State.INSPECT, starts=starts, name=name), Describe()


def _fence(settings: Settings, context: Context, event: Described) -> Step:
    return replace(context, state=State.FENCE), Initialise(expected=None)


def _read(settings: Settings, context: Context, event: Initialised) -> Step:
    return replace(context, state=State.READ, identity=event.identity, fresh=True), ReadProgress()


def _first_read(settings: Settings, context: Context, event: ProgressRead) -> Step:
    if event.progress is None and settings.planned and settings.allowed is not OnMismatch.RESTART:
        return _progress_gone(context, NO_PROGRESS)
    seen = _claims(event.progress)
    return replace(context, state=State.CONFIRM, progress=event.progress, seen_claims=seen), Describe()


def _confirmed(settings: Settings, context: Context, event: Described) -> Step:
    """The claim that the start found must be older than the start, or the newer of two drivers is taken for the older::

        A fences; B fences, reads and claims; A reads, finds B's claim and takes it for the one that stands until its own
        B's next transaction ends; A's claim is refused; A looks: nothing open, and the claim is still the one it found
        A takes the transactional id back, from a driver that started after it

    Nothing of ours is open yet, so whoever changed the identity by now started after us.
    """
    if event.snapshot != Snapshot(Coordinated.EMPTY, context.identity):
        return _fenced(
            context, f"{event.snapshot.identity} holds the transactional id, we began with {context.identity}"
        )
    return _claim(settings, context, context.progress)


def _claim(settings: Settings, context: Context, found: Progress | None) -> Step:
    progress = (found or Progress.empty("")).claimed_by(context.name)
    moved = replace(context, state=State.CLAIM_STORE, progress=progress, fresh=False, opened=None)
    return moved, Store(_owned(context), progress, batch=None, read=ProgressRead(found))


def _claim_again(settings: Settings, context: Context, found: Progress | None) -> Step:
    if context.attempt >= settings.max_attempts:
        return _broken(context), Halt(Stop.EXHAUSTED, f"the name cannot be claimed: {context.failure}")
    seen = context.seen_claims | _claims(found)
    return _claim(settings, replace(context, attempt=context.attempt + 1, seen_claims=seen), found)


def _claims(found: Progress | None) -> frozenset[str]:
    return frozenset() if found is None else frozenset({found.instance})


def _told_otherwise(settings: Settings, context: Context, event: ProgressRead) -> Step:
    """Whoever accepted what was stored has other progress than was read; so the name is none that nobody has claimed. Where there
    is no progress any more, the next read finds that it is gone::

        a driver reads that batch 0 is committed, and sleeps; somebody deletes the topic of the progress
        it wakes and claims; taken for a name that nobody has claimed, batch 0 would be written again
    """
    decided = _decided_again(settings, context, event.progress)
    told = replace(decided, seen_claims=context.seen_claims | {context.name})
    return _claim_refused(settings, told, Refused(_REPLACED))


def _claim_refused(settings: Settings, context: Context, event: Refused) -> Step:
    """Whose claim stands is told by who coordinates: it may be one that the start has not found (``_REPLACED``).

    Only what was opened under our epoch is aborted under the one behind it, and nobody else opens anything under ours. On
    version 1 that is so because an abort is an InitProducerId, and no EndTxn, which would leave the epoch (``questions.end``).
    """
    return _look(settings, replace(context, opened=None if context.claimed else context.identity), event)


def _commit_claim(settings: Settings, context: Context, event: Stored) -> Step:
    return replace(context, state=State.CLAIM_COMMIT, committing=context.identity), End(_owned(context), commit=True)


def _claimed(settings: Settings, context: Context, event: Ended) -> Step:
    after = _renewed(context, event.identity)
    ready = Ready(committed=context.renewed is not None)
    claimed = replace(after, state=State.READY, claimed=True, only_read=False, attempt=0, failure="", renewed=None)
    return claimed, ready


# --------------------------------------------------------------------------------------------------- nothing to commit


def _renew(settings: Settings, context: Context, event: Renew) -> Step:
    return replace(context, state=State.RENEW), ReadSources()


def _sources_read(settings: Settings, context: Context, event: SourcesRead) -> Step:
    """What is committed is that of this driver as long as nobody else came; if it is not, it is looked into, not written over.

    Progress that is gone is put back from memory, as the next batch would do: that nobody came since, the epoch proves, and
    where the coordinator has forgotten that too, REFRESH and LOOK find out.
    """
    if event.progress not in (None, context.progress):
        refused = Refused("the committed progress is not what this driver has committed")
        return _look(settings, replace(context, renewed=()), refused)
    return _attempt(settings, replace(context, attempt=1, renewed=event.sources))


# -------------------------------------------------------------------------------------------------------------- a batch


def _offered(settings: Settings, context: Context, event: Offered) -> Step:
    """Step 2: progress decides."""
    assert context.progress is not None
    decision = decide(context.progress, event.batch, settings.allowed)
    if decision.verdict is Verdict.SKIP:
        return context, Ready(event.batch, committed=False)
    if decision.verdict is Verdict.REFUSE:
        moved = replace(context, state=State.CHECK_CONFLICT, batch=event.batch, failure=decision.reason)
        return moved, ReadProgress()
    return _attempt(settings, replace(context, batch=event.batch, attempt=1, terminal=False, note=decision.reason))


def _checked_conflict(settings: Settings, context: Context, event: ProgressRead) -> Step:
    """A conflict with progress that we only know of old is none, but the sign of another driver::

    driver 1 is interrupted between two batches; driver 2 takes over, and commits the next batch from the same checkpoint
    the query of driver 1 starts again in its process, at the batch after that: beyond the progress that driver 1 knows

    nor with what was read of a coordinator that had been replaced (RESOLVE): what was not committed here is doubted once.
    """
    if not _holds(context, event.progress):
        return _not_ours(context, event.progress)
    assert context.batch is not None
    assert event.progress is not None
    if not context.only_read or decide(event.progress, context.batch, settings.allowed).verdict is Verdict.REFUSE:
        return _at_rest(context), Halt(Stop.CONFLICT, context.failure)
    known = replace(_at_rest(context), progress=event.progress)
    return _offered(settings, known, Offered(context.batch))


def _attempt(settings: Settings, context: Context) -> Step:
    """Step 1, then 3: an attempt always runs under an epoch that no earlier request has used.

    And on version 1 under one that leaves two to abort it with: that of the markers, and the one to go on with::

        the attempt has epoch 32765; the coordinator aborts it under 32766, the last one
        asked for the next, by whom 32765 is all that he knows, it has none left, and fails each time
    """
    if not context.fresh or (not settings.epoch_per_end and _owned(context).epoch >= LAST_EPOCH - 1):
        return replace(context, state=State.REFRESH), Initialise(expected=_owned(context))
    if context.renewed is not None:
        assert context.progress is not None
        moved = replace(context, state=State.CLAIM_STORE, fresh=False)
        return moved, Store(
            _owned(context), context.progress, batch=None, renewed=context.renewed, read=_read_alone(context)
        )
    assert context.batch is not None
    moved = replace(context, state=State.WRITE, fresh=False)
    return moved, Write(_owned(context), context.batch, context.attempt)


def _refreshed(settings: Settings, context: Context, event: Initialised) -> Step:
    """Our next epoch, unless the coordinator had forgotten the transactional id: then it compares nothing::

    driver 1 commits batch 0 and is stopped; driver 2 takes over, commits batches 1 to 3, and ends
    the transactional id expires (transactional.id.expiration.ms, 7 days)
    driver 1 wakes with batch 1, asks with its old identity, and is given another producer id with epoch 0
    taken for its own next epoch, it would write batches 1 to 3 a second time

    so another producer id proves nothing, and what is committed decides: behind the last epoch too, which another one follows in
    any case.
    """
    if event.identity.producer_id != _owned(context).producer_id:
        return _retaken(settings, replace(context, attempt=context.attempt - 1), event)
    return _attempt(settings, replace(context, identity=event.identity, fresh=True))


def _written(settings: Settings, context: Context, event: Written) -> Step:
    counts = {target: count for target, count in event.counts.items() if count}
    if not counts:
        return _store(settings, context)
    return replace(context, state=State.AUDIT, counts=tuple(sorted(counts.items()))), Audit(_owned(context), counts)


def _audited(settings: Settings, context: Context, event: Audited) -> Step:
    """Step 5: what the leaders hold must be what the writers report, partition by partition."""
    wrong = [
        f"{topic}-{p}: {n} written, {event.held.get((topic, p), 0)} held"
        for (topic, p), n in context.counts
        if event.held.get((topic, p), 0) != n
    ]
    if wrong:
        return _abort(context, "the audit failed: " + "; ".join(wrong[:5]), terminal=False)
    return _store(settings, context)


def _store(settings: Settings, context: Context) -> Step:
    """Step 6: progress and source offsets join the transaction."""
    assert context.batch is not None
    assert context.progress is not None
    progress = context.progress.advanced(context.batch, context.name)
    store = Store(_owned(context), progress, context.batch, read=_read_alone(context))
    return replace(context, state=State.STORE), store


def _read_alone(context: Context) -> ProgressRead | None:
    return ProgressRead(context.progress) if context.only_read else None


def _commit(settings: Settings, context: Context, event: Stored) -> Step:
    """Step 7: from here on nothing aborts. What the batch goes on from is known now to be committed."""
    decided = _decided_again(settings, context, context.progress)
    if decided.conflict:
        return _look(settings, decided, Refused(decided.conflict))
    return replace(decided, state=State.COMMIT, sent=True, committing=context.identity), End(
        _owned(context), commit=True
    )


def _decided_again(settings: Settings, context: Context, found: Progress | None) -> Context:
    """By what is committed, where the batch was decided on something else that was read once::

        batch N is committed; Spark loses its plan, and makes another one, of other records
        the next driver is told by a coordinator that was replaced that N-1 is committed: N is the batch that comes next
        whoever accepts its offsets has N, another one: written on top of that, its records would be there twice

    Whoever resumes was compared with what was read as well (``going_on.py``): what it goes on from has to be the same.
    """
    if context.batch is None or found is None:
        return context
    reason = decide(found, context.batch, settings.allowed).reason
    if settings.allowed is OnMismatch.RESTART:
        return replace(context, note=reason)
    return replace(context, conflict="" if reason == context.note else reason)


def _committed(settings: Settings, context: Context, event: Ended) -> Step:
    assert context.batch is not None
    assert context.progress is not None
    progress = context.progress.advanced(context.batch, context.name)
    return _done(replace(_renewed(context, event.identity), progress=progress, only_read=False))


def _done(context: Context) -> Step:
    """The batch is committed: by this driver's commit, or all the while, which was not known when it was offered::

    at most once: batch N is committed, and its records are written behind that; the query starts again, at N
    a coordinator that was replaced has told that N-1 is committed; told that N was committed now, they would be written again
    """
    return _at_rest(context), Ready(context.batch, committed=context.sent, note=context.note)


def _at_rest(context: Context) -> Context:
    forgotten = replace(context, batch=None, sent=False, conflict="", counts=(), attempt=0, failure="", note="")
    return replace(forgotten, state=State.READY)


# ------------------------------------------------------------------------------------------------------ failed attempts


def _write_failed(settings: Settings, context: Context, event: WriteFailed) -> Step:
    """Also where the audit or the offsets are denied for good, or readers wait for a transaction that nobody ends::

    the records are written; the audit is answered TOPIC_AUTHORIZATION_FAILED; the driver raises and stops
    readers see nothing behind the first of those records until the transaction times out
    """
    return _abort(context, event.reason, event.terminal)


def _abort(context: Context, reason: str, terminal: bool) -> Step:
    moved = replace(context, state=State.ABORT, failure=reason, terminal=terminal, counts=())
    return moved, End(_owned(context), commit=False)


def _aborted(settings: Settings, context: Context, event: Ended) -> Step:
    """Version 1 does not tell the epoch that it aborts under: that is looked up, for another attempt once it has aborted."""
    if event.identity is None:
        return replace(context, state=State.SETTLE), Describe(settle=not _is_hopeless(settings, context))
    return _again(settings, _renewed(context, event.identity))


def _settled(settings: Settings, context: Context, event: Described) -> Step:
    """The last error of a batch waits for no markers: the leaders that are to write them may be what it is about.

    It only sees to it that nothing stays open, for a coordinator that is busy has not aborted yet::

        it is adding a partition: the transaction is open, or not even that, when we look, and open a moment later
        it aborts, for us or for a timeout, and has the epoch of that while its log does not: an open transaction, not ours
    """
    seen, own = event.snapshot, _owned(context)
    if seen.state is Coordinated.ONGOING and seen.identity in (own, replace(own, epoch=own.epoch + 1)):
        return replace(context, state=State.RETAKE), Initialise(expected=own)
    if _is_hopeless(settings, context) and seen != Snapshot(Coordinated.EMPTY, own):
        return _again(settings, context)
    return _looked(settings, context, event)


def _nothing_to_abort(settings: Settings, context: Context, event: Initialised) -> Step:
    """Version 1, where nothing was opened: that is a REFRESH, and says as much as one."""
    if event.identity.producer_id != _owned(context).producer_id:
        return _retaken(settings, context, event)
    return _again(settings, replace(context, identity=event.identity, fresh=True))


def _again(settings: Settings, context: Context) -> Step:
    """Another attempt of the same batch, or the error that ends it: nothing of it is visible, nothing is lost."""
    if _is_hopeless(settings, context):
        return _broken(context), Halt(Stop.REJECTED if context.terminal else Stop.EXHAUSTED, context.failure)
    return _attempt(settings, replace(context, attempt=context.attempt + 1, failure=""))


def _is_hopeless(settings: Settings, context: Context) -> bool:
    """Whether the batch that failed is not tried again."""
    return context.terminal or context.attempt >= settings.max_attempts


# ------------------------------------------------------------------------------------------- refused: find out, take back


def _look(settings: Settings, context: Context, event: Refused) -> Step:
    failure = context.failure or event.reason
    return replace(context, state=State.LOOK, fresh=False, failure=failure, counts=()), Describe()


def _look_again(settings: Settings, context: Context, event: Start) -> Step:
    if not context.claimed:
        return _inspect(settings, context, event)
    return replace(context, state=State.LOOK, fresh=False), Describe()


def _looked(settings: Settings, context: Context, event: Described) -> Step:
    """Ours is what we had, and the epoch after it; anything else was initialised by a driver that started after us, unless the
    coordinator has forgotten which is ours.

    The next epoch is ours in two ways: the coordinator ends a transaction under it (a timeout, a commit of version 2), and
    an InitProducerId whose answer we never got leaves it empty. The second is asked for again with the epoch that we had,
    which the broker takes for the retry that it is, or refuses if somebody else's InitProducerId made that epoch.
    """
    seen, own = event.snapshot, context.identity
    if seen.state is Coordinated.COMPLETING:
        return context, Describe(settle=True)
    forgotten = settings.epoch_per_end and is_forgotten(seen, own)
    if seen.state is not Coordinated.ABSENT and not forgotten and not _descends(settings, context, seen):
        return _fenced(context, f"{seen.identity} holds the transactional id, we had {own}")
    next_empty = seen.state is Coordinated.EMPTY and seen.identity != own
    opened = _still_opened(context, seen)
    known = replace(context, identity=own if next_empty else seen.identity, next_empty=next_empty, opened=opened)
    if seen.state is Coordinated.ABORTED and seen.identity != own and context.state is State.LOOK and not forgotten:
        known = replace(known, failure=f"{context.failure}{_ENDED_BY_THE_BROKER}")
    if seen.state is Coordinated.ONGOING:
        # The claim cannot be read yet: our own open transaction may hold an offset that makes it unstable.
        return replace(known, state=State.RETAKE), Initialise(expected=own)
    return replace(known, state=State.CHECK_CLAIM), ReadProgress()


def _still_opened(context: Context, seen: Snapshot) -> Identity | None:
    """Under which identity our claim was to be stored, if nobody can have claimed since: then whichever claim stands is older
    than our fence, also one that the start has not found, for it was told by a coordinator that had been replaced::

        driver 1 claims, and is killed; driver 2 fences, and is told by the old coordinator of the claim before that
        its own is not answered there, and times out; the new coordinator tells of driver 1's: that is no newer driver

    Where our transaction was aborted, its epoch is nobody's: another driver's InitProducerId brings that about first, and gives
    the one behind it, or another producer id. That may be what follows the last epoch, and passes for ours::

        driver 1 stores its claim under epoch 32766; driver 2 fences, and is given another producer id, epoch 0
        driver 1 looks, and finds what may be its own next identity, empty; then driver 2 claims, by which driver 1 knows better
    """
    was = context.opened
    if was is None or seen.identity == was:
        return was
    aborted = seen.state is Coordinated.ABORTED and seen.identity == replace(was, epoch=was.epoch + 1)
    return was if aborted else None


def is_forgotten(seen: Snapshot, own: Identity | None) -> bool:
    """Whether ours is a producer id that the coordinator has given, and does not know any more (Kafka before 4.3)::

        COMMIT in the last epoch is answered with the next producer id, and epoch 0; the markers are not written yet
        the coordinator moves; the new one has not heard of that id: it completes the transaction, and goes on with the old one

    Another driver that has come as far has claimed the name before, and the claim is read next.
    """
    if own is None or seen.identity is None:
        return False
    followed = own.epoch == 0 and seen.identity.producer_id != own.producer_id
    ended = seen.state in (Coordinated.COMMITTED, Coordinated.ABORTED)
    return followed and ended and seen.identity.epoch > LAST_EPOCH


def _descends(settings: Settings, context: Context, seen: Snapshot) -> bool:
    """Whether the identity may be ours, or what the coordinator has made of ours.

    What is committed under the next one is another driver's, where we have asked for no commit under ours; on version 1 always,
    for there a commit leaves the epoch as it is. Else two could hold one epoch, for an InitProducerId that comes from the epoch
    before is answered with the current one, as a repetition::

        driver 1 rests under epoch 4; driver 2, of version 1, fences, claims under epoch 5, and rests
        driver 1 wakes and is refused; a group coordinator that had been replaced tells that the claim is still its own
        it takes epoch 5 for its own, asks with it, and is given epoch 6; driver 2 asks with its epoch 5, and is given 6, too
        what driver 1 stores is committed with driver 2's batch, over its progress: the next driver writes that batch again

    Left is the last epoch: behind a commit of ours under it, not answered and aborted, a driver of version 1 may claim under what
    could be ours. Only a replaced group coordinator as well makes us take it for that.
    """
    own = context.identity
    if own is None or seen.identity is None:
        return False
    if seen.identity == own:
        return True
    may_be_committed = settings.epoch_per_end and context.committing == own
    if seen.state is Coordinated.ONGOING or (seen.state is Coordinated.COMMITTED and not may_be_committed):
        return False
    if own.epoch >= LAST_EPOCH:
        return seen.identity.epoch == 0 or seen.identity == Identity(own.producer_id, own.epoch + 1)
    return seen.identity == Identity(own.producer_id, own.epoch + 1)


def _checked_claim(settings: Settings, context: Context, event: ProgressRead) -> Step:
    """Fences by compare-and-set, but for an answer that is lost with the last epoch::

    REFRESH asks with epoch 32765; the coordinator makes it 32766; the answer is lost
    asked again with 32765, the coordinator has no epoch left to give, and fails (UNKNOWN_SERVER_ERROR) each time
    asked with 32766 as if that were ours, it gives another producer id, and gives the same to whoever holds 32766

    Only a new start gets a producer id of its own. Should 32766 be that of a driver which started after us and has not claimed
    yet, we fence it, and it stops: once in 32767 epochs the older of two may win; never both.
    """
    if not _holds(context, event.progress):
        return _not_ours(context, event.progress)
    nothing_refused = context.claimed and context.batch is None and context.renewed is None
    if context.next_empty and _owned(context).epoch == LAST_EPOCH - 1 and nothing_refused:
        return _inspect(settings, replace(context, claimed=False), Start())
    return replace(context, state=State.RETAKE), Initialise(expected=context.identity)


def _holds(context: Context, progress: Progress | None) -> bool:
    """Whether the committed claim is one under which we may go on."""
    if progress is None:
        return "" in tolerated_claims(context)
    return context.opened is not None or progress.instance in tolerated_claims(context)


def _not_ours(context: Context, progress: Progress | None) -> Step:
    if progress is None:
        return _progress_gone(context, "nobody can tell whether another driver took over meanwhile")
    return _fenced(context, f"driver {progress.instance} has claimed the name, we are {context.name}")


def tolerated_claims(context: Context) -> set[str]:
    """The claims under which we may go on: our own, and before it is committed those that the start found, or none at all."""
    return {context.name} if context.claimed else {context.name, *(context.seen_claims or {""})}


def _retake_refused(settings: Settings, context: Context, event: Refused) -> Step:
    """Another look tells whether somebody initialised the transactional id, or our own open transaction was in the way.

    InitProducerId on an open transaction aborts it under epoch + 1 and asks to come again, but the second request still
    carries the epoch that is now outdated.
    """
    if context.next_empty:
        return _fenced(context, f"the transactional id was taken over: {event.reason}")
    if context.attempt > settings.max_attempts:
        return _broken(context), Halt(Stop.UNREACHABLE, "the transactional id changes hands again and again")
    return _look(settings, replace(context, attempt=context.attempt + 1), event)


def _retaken(settings: Settings, context: Context, event: Initialised) -> Step:
    """Another producer id proves nothing: the transactional id may have expired, after another driver's claim.

    Behind the last epoch it was compared, but that looks the same: there the newest driver may stop, and a restart goes on.
    """
    compared = context.identity is not None and event.identity.producer_id == context.identity.producer_id
    known = replace(context, identity=event.identity, fresh=True, opened=context.opened if compared else None)
    return replace(known, state=State.RESOLVE), ReadProgress()


def _resolved(settings: Settings, context: Context, event: ProgressRead) -> Step:
    """The identity is fenced off and new: what progress says now is final, and decides the batch in doubt."""
    if not _holds(context, event.progress):
        return _not_ours(context, event.progress)
    if not context.claimed:
        return _claim_again(settings, context, event.progress)
    known = replace(context, progress=event.progress, only_read=True)
    if known.batch is None:
        return replace(known, state=State.READY, attempt=0, failure="", renewed=None), Ready()
    if event.progress is not None and event.progress.contains(known.batch):
        return _done(known)
    if known.conflict:
        return _at_rest(known), Halt(Stop.CONFLICT, known.conflict)
    return _again(settings, known)


def _fenced(context: Context, reason: str) -> Step:
    return replace(context, state=State.STOPPED, batch=None, failure=reason), Halt(Stop.FENCED, reason)


def _progress_gone(context: Context, why: str) -> Step:
    """Somebody may bring it back, or another driver come: the next batch looks first."""
    return _broken(context), Halt(Stop.GONE, why)


def _refuse_to_go_on(settings: Settings, context: Context, event: Start | Offered | Renew) -> Step:
    return context, Halt(Stop.FENCED, context.failure)


# ---------------------------------------------------------------------------------------------------------- unreachable


def _unreachable(settings: Settings, context: Context, event: Unreachable) -> Step:
    return _broken(context), Halt(Stop.UNREACHABLE, event.reason)


def _outcome_unknown(settings: Settings, context: Context, event: Unreachable) -> Step:
    """The commit was sent. It is neither aborted nor guessed: the next Start looks, fences and reads."""
    return _broken(context), Halt(Stop.OUTCOME_UNKNOWN, event.reason)


def _broken(context: Context) -> Context:
    return replace(_at_rest(context), state=State.BROKEN, fresh=False, renewed=None)


def _owned(context: Context) -> Identity:
    assert context.identity is not None
    return context.identity


def _renewed(context: Context, identity: Identity | None) -> Context:
    """The context after a transaction ended: version 2 gave a fresh identity, version 1 keeps the used one.

    Of the epoch behind the last one nothing may be opened: a transaction there can be neither ended nor aborted (KAFKA-20090)::

        the attempt has epoch 32766, the last one; it times out, and the coordinator aborts it under 32767
        ABORT is answered as a repeated one, with that epoch (Kafka before 4.3)
    """
    fresh = identity is not None and identity.epoch <= LAST_EPOCH
    return replace(context, identity=identity or context.identity, fresh=fresh)


# ---------------------------------------------------------------------------------------------------------------- table

Move = Callable[[Settings, Context, Any], Step]

TRANSITIONS: dict[tuple[State, type], Move] = {
    (State.NEW, Start): _inspect,
    (State.INSPECT, Described): _fence,
    (State.FENCE, Initialised): _read,
    (State.READ, ProgressRead): _first_read,
    (State.CONFIRM, Described): _confirmed,
    (State.CLAIM_STORE, Stored): _commit_claim,
    (State.CLAIM_STORE, WriteFailed): lambda s, c, e: _claim_refused(s, c, Refused(e.reason)),
    (State.CLAIM_STORE, Refused): _claim_refused,
    (State.CLAIM_STORE, ProgressRead): _told_otherwise,
    (State.CLAIM_COMMIT, Ended): _claimed,
    (State.CLAIM_COMMIT, Refused): _look,
    (State.READY, Offered): _offered,
    (State.READY, Start): _look_again,
    (State.READY, Renew): _renew,
    (State.RENEW, SourcesRead): _sources_read,
    (State.CHECK_CONFLICT, ProgressRead): _checked_conflict,
    (State.REFRESH, Initialised): _refreshed,
    (State.REFRESH, Refused): _look,
    (State.WRITE, Written): _written,
    (State.WRITE, WriteFailed): _write_failed,
    (State.WRITE, Refused): _look,
    (State.AUDIT, Audited): _audited,
    (State.AUDIT, WriteFailed): _write_failed,
    (State.AUDIT, Refused): _look,
    (State.STORE, Stored): _commit,
    (State.STORE, WriteFailed): _write_failed,
    (State.STORE, Refused): _look,
    (State.STORE, ProgressRead): _told_otherwise,
    (State.COMMIT, Ended): _committed,
    (State.COMMIT, Refused): _look,
    (State.COMMIT, Unreachable): _outcome_unknown,
    (State.ABORT, Ended): _aborted,
    (State.ABORT, Initialised): _nothing_to_abort,
    (State.ABORT, Refused): _look,
    (State.SETTLE, Described): _settled,
    (State.LOOK, Described): _looked,
    (State.CHECK_CLAIM, ProgressRead): _checked_claim,
    (State.RETAKE, Initialised): _retaken,
    (State.RETAKE, Refused): _retake_refused,
    (State.RESOLVE, ProgressRead): _resolved,
    (State.BROKEN, Start): _look_again,
    (State.STOPPED, Start): _refuse_to_go_on,
    (State.STOPPED, Offered): _refuse_to_go_on,
    (State.STOPPED, Renew): _refuse_to_go_on,
}

_WAITING = set(State) - {State.NEW, State.READY, State.COMMIT, State.BROKEN, State.STOPPED}
TRANSITIONS.update({(state, Unreachable): _unreachable for state in _WAITING})
