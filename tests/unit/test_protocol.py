"""The commit protocol, event by event: each case is one life of the machine, and together they reach every row of its table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
from onceflow.transaction.progress import Batch, OnMismatch, Progress
from onceflow.transaction.protocol import LAST_EPOCH, TRANSITIONS, IllegalMove, Protocol, Settings, State

ABSENT, EMPTY, ONGOING = Coordinated.ABSENT, Coordinated.EMPTY, Coordinated.ONGOING
COMPLETING, COMMITTED, ABORTED = Coordinated.COMPLETING, Coordinated.COMMITTED, Coordinated.ABORTED
BATCH = Batch(0, "q", "", "d0")
OTHER = Identity(7, 40)
ANEW = Identity(8, 0)  # what a coordinator gives that does not know the transactional id
ANOTHER = Identity(9, 0)
COUNTS = {("out", 0): 3, ("out", 1): 0}
CLAIM = Progress.empty("me")
DONE = CLAIM.advanced(BATCH, "me")
SOURCES = ((("in", 0), 3), (("in", 1), 5))


def at(epoch: int) -> Identity:
    return Identity(7, epoch)


def seen(state: Coordinated, identity: Identity | None) -> Described:
    return Described(Snapshot(state, identity))


class Life:
    """A machine, and which rows of the table it has used."""

    def __init__(
        self, version: int = 1, attempts: int = 3, allowed: OnMismatch = OnMismatch.REFUSE, planned: bool = False
    ) -> None:
        self.version = version
        self.rows: set[tuple[State, type]] = set()
        settings = Settings("me", epoch_per_end=version == 2, allowed=allowed, max_attempts=attempts, planned=planned)
        self.machine = Protocol(settings)
        self.effect: Effect | None = None

    def hear(self, *events: Event) -> Effect:
        for event in events:
            self.rows.add((self.state, type(event)))
            self.effect = self.machine.handle(event)
        assert self.effect is not None
        return self.effect

    @property
    def state(self) -> State:
        return self.machine.context.state

    def ended(self, epoch: int) -> Ended:
        return Ended(at(epoch) if self.version == 2 else None)

    def fenced(self, found: Progress | None = None) -> Life:
        """Up to the claim: the identity is epoch 1."""
        self.hear(Start(), seen(ABSENT, None), Initialised(at(1)), ProgressRead(found), seen(EMPTY, at(1)))
        return self

    def ready(self, found: Progress | None = None) -> Life:
        """Ready for a batch; version 2 has epoch 2."""
        self.fenced(found).hear(Stored(), self.ended(2))
        return self

    def writing(self) -> Life:
        """In the write of BATCH under epoch 2."""
        self.ready().hear(Offered(BATCH))
        if self.version == 1:
            self.hear(Initialised(at(2)))
        return self

    def storing(self) -> Life:
        self.writing().hear(Written(COUNTS), Audited({("out", 0): 3}))
        return self

    def committing(self) -> Life:
        self.storing().hear(Stored())
        return self

    def renewing(self, found: Progress | None = DONE) -> Life:
        """Has committed DONE, rests, and has read what is committed."""
        self.ready(DONE.claimed_by("before")).hear(Renew(), SourcesRead(found, SOURCES))
        return self

    def looks_first(self, epoch: int) -> Effect:
        """After a batch was given up, its next offer: another driver may have committed it. The effect of the offer."""
        assert self.state is State.BROKEN
        assert self.hear(Start()) == Describe()
        self.hear(seen(ABORTED, at(epoch)), ProgressRead(CLAIM), Initialised(at(epoch + 1)), ProgressRead(CLAIM))
        return self.hear(Offered(BATCH))


def claim(identity: Identity, progress: Progress, found: Progress | None) -> Store:
    """What stands there when it is accepted has to be what was found."""
    return Store(identity, progress, batch=None, read=ProgressRead(found))


def halted(effect: Effect, stop: Stop, reason: str = "") -> None:
    assert isinstance(effect, Halt)
    assert effect.stop is stop
    assert reason in effect.reason


# ---------------------------------------------------------------------------------------------------------------- start


def start_in_order() -> Life:
    life = Life()
    assert life.hear(Start()) == Describe()
    assert life.hear(seen(ONGOING, OTHER)) == Initialise(expected=None)
    assert life.hear(Initialised(at(1))) == ReadProgress()
    old = DONE.claimed_by("other")
    assert life.hear(ProgressRead(old)) == Describe()
    assert life.hear(seen(EMPTY, at(1))) == claim(at(1), DONE, old)
    assert life.hear(Stored()) == End(at(1), commit=True)
    assert life.hear(Ended(None)) == Ready()
    assert life.machine.context.progress == DONE
    return life


def first_start_claims_an_unused_name() -> Life:
    life = Life().fenced(None)
    assert life.effect == claim(at(1), CLAIM, None)
    return life


def start_whose_checkpoint_has_batches_needs_progress() -> Life:
    life = Life(planned=True)
    assert life.hear(Start(), seen(ABSENT, None), Initialised(at(1))) == ReadProgress()
    halted(life.hear(ProgressRead(None)), Stop.GONE, "but the checkpoint has batches")
    assert life.hear(Start()) == Describe()
    halted(life.hear(seen(EMPTY, at(1)), Initialised(at(2)), ProgressRead(None)), Stop.GONE)  # it has claimed nothing
    return life


def start_whose_checkpoint_has_batches_finds_the_claim_that_came_before_them() -> Life:
    life = Life(planned=True).fenced(CLAIM.claimed_by("before"))
    assert life.effect == claim(at(1), CLAIM, CLAIM.claimed_by("before"))
    return life


def start_over_takes_the_name_whatever_the_checkpoint_has() -> Life:
    life = Life(planned=True, allowed=OnMismatch.RESTART).fenced(None)
    assert life.effect == claim(at(1), CLAIM, None)
    return life


def start_overtaken_by_another_start() -> Life:
    life = Life()
    life.hear(Start(), seen(ABSENT, None), Initialised(at(1)), ProgressRead(None))
    halted(life.hear(seen(EMPTY, at(2))), Stop.FENCED, "we began with")
    return life


def start_whose_claim_timed_out() -> Life:
    life = Life().fenced(DONE.claimed_by("before"))
    assert life.hear(Stored()) == End(at(1), commit=True)
    assert life.hear(Refused("timed out")) == Describe()
    assert life.hear(seen(ABORTED, at(2))) == ReadProgress()
    assert life.hear(ProgressRead(DONE.claimed_by("before"))) == Initialise(expected=at(2))
    assert life.hear(Initialised(at(3))) == ReadProgress()
    assert life.hear(ProgressRead(DONE.claimed_by("before"))) == claim(at(3), DONE, DONE.claimed_by("before"))
    assert life.hear(Stored()) == End(at(3), commit=True)
    assert life.hear(Ended(None)) == Ready()
    return life


def start_whose_claim_was_committed_although_it_looked_refused() -> Life:
    life = Life().fenced(None)
    life.hear(Stored(), Refused("fenced?"), seen(COMMITTED, at(1)))
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(1))
    return life


def start_that_another_claim_overtook() -> Life:
    life = Life().fenced(None)
    halted(life.hear(Refused("fenced"), seen(COMMITTED, at(2))), Stop.FENCED, "holds the transactional id")
    return life


def start_that_another_claim_overtook_since_the_id_was_forgotten() -> Life:
    life = Life().fenced(None)
    life.hear(Refused("unknown"), seen(ABSENT, None))
    halted(life.hear(ProgressRead(DONE.claimed_by("newer"))), Stop.FENCED, "driver newer has claimed the name")
    return life


def start_that_another_claim_overtook_at_the_last_moment() -> Life:
    life = Life().fenced(None)
    life.hear(Refused("unknown"), seen(ABSENT, None), ProgressRead(None), Initialised(ANEW))
    halted(life.hear(ProgressRead(DONE.claimed_by("newer"))), Stop.FENCED, "driver newer has claimed the name")
    return life


def start_whose_claim_is_refused_again_and_again() -> Life:
    life = Life(attempts=3).fenced(None)
    for epoch in (2, 4, 6):
        life.hear(WriteFailed(terminal=False, reason="abortable"), seen(ABORTED, at(epoch)), ProgressRead(None))
        assert isinstance(life.hear(Initialised(at(epoch + 1)), ProgressRead(None)), Store)
    life.hear(WriteFailed(terminal=False, reason="abortable"), seen(ABORTED, at(8)), ProgressRead(None))
    halted(life.hear(Initialised(at(9)), ProgressRead(None)), Stop.EXHAUSTED, "cannot be claimed")
    return life


def start_that_was_told_what_was_committed_once() -> Life:
    """By a coordinator that had been replaced: the claim that really stands is older than our fence all the same."""
    life = Life().fenced(CLAIM.claimed_by("first"))
    before = DONE.claimed_by("second")
    assert life.hear(ProgressRead(before)) == Describe()
    assert life.hear(seen(ONGOING, at(1))) == Initialise(expected=at(1))
    assert life.hear(Initialised(at(3))) == ReadProgress()
    assert life.hear(ProgressRead(before)) == claim(at(3), DONE, before)
    assert life.hear(Stored()) == End(at(3), commit=True)
    assert life.hear(Ended(None)) == Ready()
    assert life.hear(Offered(BATCH)) == Ready(BATCH, committed=False)
    return life


def start_that_was_told_of_progress_that_is_gone_since() -> Life:
    life = Life().fenced(DONE.claimed_by("first"))
    assert life.hear(ProgressRead(None)) == Describe()
    assert life.hear(seen(ONGOING, at(1))) == Initialise(expected=at(1))
    halted(life.hear(Initialised(at(3)), ProgressRead(None)), Stop.GONE)
    return life


def start_whose_progress_was_gone_for_a_moment() -> Life:
    """The next read finds it again, and the claim that the start found stands there."""
    before = DONE.claimed_by("before")
    life = Life().fenced(before)
    life.hear(ProgressRead(None), seen(ONGOING, at(1)), Initialised(at(3)))
    assert life.hear(ProgressRead(before)) == claim(at(3), DONE, before)
    return life


def start_that_is_told_so_again() -> Life:
    """The old one is named again: the claim that it tells is as old as it was, and is compared once more."""
    first, before = CLAIM.claimed_by("first"), DONE.claimed_by("second")
    life = Life().fenced(first)
    life.hear(ProgressRead(before), seen(ONGOING, at(1)), Initialised(at(3)))
    assert life.hear(ProgressRead(first)) == claim(at(3), CLAIM, first)
    life.hear(ProgressRead(before), seen(ONGOING, at(3)), Initialised(at(5)))
    assert life.hear(ProgressRead(before)) == claim(at(5), DONE, before)
    life.hear(Stored(), Refused("timed out"), seen(ABORTED, at(6)))
    assert life.hear(ProgressRead(first)) == Initialise(expected=at(6)), "both are older than our fence"
    assert life.hear(Initialised(at(7)), ProgressRead(before)) == claim(at(7), DONE, before)
    return life


def start_whose_claim_timed_out_while_who_was_replaced_did_not_answer_version_1() -> Life:
    """The epoch behind ours is that of an abort, so ours was open: the claim that another coordinator tells is older."""
    before = DONE.claimed_by("second")
    life = Life(1).fenced(CLAIM.claimed_by("first"))
    assert life.hear(Refused("timed out")) == Describe()
    assert life.hear(seen(ABORTED, at(2))) == ReadProgress()
    assert life.hear(ProgressRead(before)) == Initialise(expected=at(2))
    assert life.hear(Initialised(at(3)), ProgressRead(before)) == claim(at(3), DONE, before)
    halted(life.hear(Refused("fenced"), seen(COMMITTED, at(4))), Stop.FENCED, "holds the transactional id")
    return life


def start_whose_claim_timed_out_while_who_was_replaced_did_not_answer_version_2() -> Life:
    """The epoch behind ours is that of a transaction that has ended, so it was ours; nothing has to be known of the offsets."""
    before = DONE.claimed_by("second")
    for refused in (Refused("timed out"), WriteFailed(terminal=False, reason="abortable")):
        life = Life(2).fenced(CLAIM.claimed_by("first"))
        assert life.hear(refused, seen(ABORTED, at(2)), ProgressRead(before)) == Initialise(expected=at(2))
        assert life.hear(Initialised(at(3)), ProgressRead(before)) == claim(at(3), DONE, before)
        nothing = Life(2).fenced(CLAIM.claimed_by("first"))
        assert nothing.hear(refused, seen(EMPTY, at(1)), ProgressRead(before)) == Initialise(expected=at(1))
        other = Life(2).fenced(CLAIM.claimed_by("first"))
        halted(other.hear(refused, seen(EMPTY, at(2)), ProgressRead(before)), Stop.FENCED, "driver second has claimed")
    return life


def start_whose_name_is_claimed_while_it_looks_again_version_1() -> Life:
    """Nobody else was there at the first look; at the second one somebody may have been."""
    life = Life(1).fenced(CLAIM.claimed_by("first"))
    life.hear(ProgressRead(DONE.claimed_by("second")), seen(ONGOING, at(1)), Refused("aborted"), seen(ABORTED, at(2)))
    assert life.hear(ProgressRead(DONE.claimed_by("second"))) == Initialise(expected=at(2))
    life.hear(Refused("fenced"), seen(ABORTED, at(3)))
    halted(life.hear(ProgressRead(DONE.claimed_by("newer"))), Stop.FENCED, "driver newer has claimed the name")
    return life


def start_that_stored_its_claim_before_a_newer_driver_claimed_under_another_producer_id() -> Life:
    """Which may be what follows the last epoch; so what is told there proves nothing."""
    life, own, newer = Life(1), at(LAST_EPOCH), CLAIM.claimed_by("newer")
    life.hear(Start(), seen(ABSENT, None), Initialised(own), ProgressRead(CLAIM.claimed_by("first")), seen(EMPTY, own))
    assert life.hear(ProgressRead(newer)) == Describe()
    assert life.hear(seen(EMPTY, ANEW)) == ReadProgress()
    halted(life.hear(ProgressRead(newer)), Stop.FENCED, "driver newer has claimed the name")
    return life


def start_that_was_told_of_no_progress_and_finds_that_it_is_gone() -> Life:
    """It was there when the claim was stored: the name is none that nobody has claimed."""
    life = Life().fenced(None)
    life.hear(ProgressRead(DONE.claimed_by("first")), seen(ONGOING, at(1)), Initialised(at(3)))
    halted(life.hear(ProgressRead(None)), Stop.GONE)
    return life


def start_without_an_answer() -> Life:
    life = Life()
    halted(life.hear(Start(), Unreachable("gone")), Stop.UNREACHABLE, "gone")
    assert life.hear(Start()) == Describe()
    assert life.hear(seen(EMPTY, OTHER)) == Initialise(expected=None)  # not claimed: it starts anew, and in a new name
    life.hear(Initialised(at(5)), ProgressRead(None))
    assert life.hear(seen(EMPTY, at(5))) == claim(at(5), Progress.empty("me.2"), None)
    return life


# -------------------------------------------------------------------------------------------------------------- a batch


def batch_in_order_version_1() -> Life:
    life = Life(1).ready()
    assert life.hear(Offered(BATCH)) == Initialise(expected=at(1))
    assert life.hear(Initialised(at(2))) == Write(at(2), BATCH, 1)
    assert life.hear(Written(COUNTS)) == Audit(at(2), {("out", 0): 3})
    assert life.hear(Audited({("out", 0): 3})) == Store(at(2), DONE, BATCH)
    assert life.hear(Stored()) == End(at(2), commit=True)
    assert life.hear(Ended(None)) == Ready(BATCH, committed=True)
    following = Batch(1, "q", "d0", "d1")
    assert life.hear(Offered(following)) == Initialise(expected=at(2))
    return life


def batch_in_order_version_2() -> Life:
    life = Life(2).ready()
    assert life.hear(Offered(BATCH)) == Write(at(2), BATCH, 1)
    life.hear(Written(COUNTS), Audited({("out", 0): 3}), Stored())
    assert life.hear(Ended(at(3))) == Ready(BATCH, committed=True)
    following = Batch(1, "q", "d0", "d1")
    assert life.hear(Offered(following)) == Write(at(3), following, 1)
    return life


def batch_without_records_version_1() -> Life:
    """Its epoch has opened a transaction, and a request of that one may still be on its way: the next batch gets another."""
    life = Life(1).writing()
    assert life.hear(Written({})) == Store(at(2), DONE, BATCH)
    assert life.hear(Stored()) == End(at(2), commit=True)
    assert life.hear(Ended(None)) == Ready(BATCH, committed=True)
    assert life.machine.context.progress == DONE
    assert life.hear(Offered(Batch(1, "q", "d0", "d1"))) == Initialise(expected=at(2))
    return life


def batch_without_records_version_2() -> Life:
    life = Life(2).writing()
    assert life.hear(Written({("out", 0): 0})) == Store(at(2), DONE, BATCH)
    assert life.hear(Stored()) == End(at(2), commit=True)
    assert life.hear(Ended(at(3))) == Ready(BATCH, committed=True)
    following = Batch(1, "q", "d0", "d1")
    assert life.hear(Offered(following)) == Write(at(3), following, 1)
    return life


def batch_without_records_is_committed_at_its_second_attempt_too() -> Life:
    """The first may have had records, or none: what says that the batch is done is its commit alone."""
    life = Life(2).writing()
    life.hear(Written({}), WriteFailed(terminal=False, reason="the broker asks to abort"))
    assert life.hear(Ended(at(3))) == Write(at(3), BATCH, 2)
    assert life.hear(Written({})) == Store(at(3), DONE, BATCH)
    assert life.hear(Stored()) == End(at(3), commit=True)
    assert life.hear(Ended(at(4))) == Ready(BATCH, committed=True)
    assert life.machine.context.progress == DONE
    return life


def batch_that_is_committed_already() -> Life:
    life = Life().ready(DONE)
    assert life.hear(Offered(BATCH)) == Ready(BATCH, committed=False)
    assert life.state is State.READY
    return life


def batch_in_conflict() -> Life:
    life = Life().ready(DONE)
    other = Offered(Batch(0, "other", "", "d0"))
    assert life.hear(other) == ReadProgress()
    halted(life.hear(ProgressRead(DONE)), Stop.CONFLICT, "query other offers batch 0")
    assert isinstance(life.hear(Offered(Batch(1, "q", "d0", "d1"))), Initialise)
    return life


def conflict_with_what_another_driver_committed_is_none() -> Life:
    life = Life().ready()
    life.hear(Offered(Batch(1, "q", "d0", "d1")))
    halted(
        life.hear(ProgressRead(DONE.claimed_by("newer"))), Stop.FENCED, "driver newer has claimed the name, we are me"
    )
    halted(life.hear(Offered(BATCH)), Stop.FENCED, "driver newer")
    return life


def conflict_where_the_progress_is_gone() -> Life:
    life = Life().ready(DONE)
    life.hear(Offered(Batch(0, "other", "", "d0")))
    halted(life.hear(ProgressRead(None)), Stop.GONE, "nobody can tell whether another driver took over")
    assert life.hear(Start()) == Describe()  # somebody may have brought it back
    return life


def ready_driver_that_starts_looks_whether_the_name_is_still_its_own() -> Life:
    life = Life(2).ready()
    assert life.hear(Start()) == Describe()
    assert life.hear(seen(EMPTY, at(2))) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(2))
    assert life.hear(Initialised(at(3)), ProgressRead(CLAIM)) == Ready()
    assert life.hear(Offered(BATCH)) == Write(at(3), BATCH, 1)
    return life


def batch_taken_up_on_purpose_says_why() -> Life:
    life = Life(2, allowed=OnMismatch.RESTART).ready(DONE)
    other = Batch(0, "other", "", "d0")
    ready = life.hear(Offered(other), Written({}), Stored(), Ended(at(3)))
    assert isinstance(ready, Ready)
    assert "query other offers batch 0" in ready.note
    assert life.machine.context.note == ""
    return life


# ---------------------------------------------------------------------------------------------------- nothing to commit


def renewal_in_order_version_1() -> Life:
    """Under a fresh epoch, as a batch is; and so is the batch behind it."""
    life = Life(1).ready(DONE.claimed_by("before"))
    assert life.hear(Renew()) == ReadSources()
    assert life.hear(SourcesRead(DONE, SOURCES)) == Initialise(expected=at(1))
    assert life.hear(Initialised(at(2))) == Store(at(2), DONE, batch=None, renewed=SOURCES)
    assert life.hear(Stored()) == End(at(2), commit=True)
    assert life.hear(Ended(None)) == Ready(committed=True)
    assert life.machine.context.renewed is None
    assert life.hear(Offered(Batch(1, "q", "d0", "d1"))) == Initialise(expected=at(2))
    return life


def renewal_in_order_version_2() -> Life:
    life = Life(2).renewing()
    assert life.effect == Store(at(2), DONE, batch=None, renewed=SOURCES)
    assert life.hear(Stored(), Ended(at(3))) == Ready(committed=True)
    assert life.machine.context.progress == DONE
    following = Batch(1, "q", "d0", "d1")
    assert life.hear(Offered(following)) == Write(at(3), following, 1)
    return life


def renewal_of_what_is_gone_puts_it_back() -> Life:
    """Only what the epoch permits: whoever came meanwhile has fenced it."""
    life = Life(1).ready(DONE.claimed_by("before"))
    assert life.hear(Renew(), SourcesRead(None, ())) == Initialise(expected=at(1))
    assert life.hear(Initialised(at(2))) == Store(at(2), DONE, batch=None)
    return life


def renewal_by_a_zombie_that_sees_the_newer_claim() -> Life:
    life = Life(2).renewing(DONE.claimed_by("newer"))
    assert life.effect == Describe()
    halted(life.hear(seen(EMPTY, at(4))), Stop.FENCED, "holds the transactional id")
    halted(life.hear(Renew()), Stop.FENCED)
    halted(life.hear(Offered(BATCH)), Stop.FENCED)
    return life


def renewal_by_a_zombie_whose_newer_driver_has_not_claimed_yet() -> Life:
    """Nothing but the epoch tells: version 1 hears of it when it refreshes."""
    life = Life(1).renewing()
    assert life.hear(Refused("fenced")) == Describe()
    assert life.hear(seen(EMPTY, at(2))) == ReadProgress()
    assert life.hear(ProgressRead(DONE)) == Initialise(expected=at(1))
    halted(life.hear(Refused("fenced")), Stop.FENCED, "taken over")
    return life


def renewal_by_a_zombie_whose_offsets_are_refused() -> Life:
    life = Life(2).renewing()
    assert life.hear(Refused("fenced")) == Describe()
    halted(life.hear(seen(ABORTED, at(4))), Stop.FENCED, "holds the transactional id")
    return life


def renewal_by_a_zombie_whose_transactional_id_was_forgotten() -> Life:
    """InitProducerId compares nothing then; the newer claim does."""
    life = Life(1).renewing()
    assert life.hear(Initialised(ANEW)) == ReadProgress()
    halted(life.hear(ProgressRead(DONE.claimed_by("newer"))), Stop.FENCED, "driver newer has claimed the name")
    return life


def renewal_when_all_have_forgotten_everything() -> Life:
    life = Life(1).renewing(None)
    life.hear(Initialised(ANEW))
    halted(life.hear(ProgressRead(None)), Stop.GONE)
    return life


def renewal_that_finds_progress_of_its_own_that_it_does_not_know_lets_that_decide() -> Life:
    """Somebody reset it by hand."""
    life = Life(2).renewing(CLAIM)
    assert life.effect == Describe()
    life.hear(seen(ABORTED, at(2)), ProgressRead(CLAIM), Initialised(at(3)))
    assert life.hear(ProgressRead(CLAIM)) == Ready()
    assert life.machine.context.progress == CLAIM
    return life


def renewal_that_timed_out_may_come_again() -> Life:
    life = Life(2).renewing()
    life.hear(Stored(), Refused("timed out"), seen(ABORTED, at(3)), ProgressRead(DONE), Initialised(at(4)))
    assert life.hear(ProgressRead(DONE)) == Ready()
    again = Store(at(4), DONE, batch=None, renewed=SOURCES, read=ProgressRead(DONE))
    assert life.hear(Renew(), SourcesRead(DONE, SOURCES)) == again
    return life


def renewal_without_an_answer_is_looked_up() -> Life:
    life = Life(2).renewing()
    halted(life.hear(Stored(), Unreachable("gone")), Stop.UNREACHABLE, "gone")
    assert life.machine.context.renewed is None
    assert life.hear(Start()) == Describe()
    life.hear(seen(ONGOING, at(2)), Initialised(at(3)))
    assert life.hear(ProgressRead(DONE)) == Ready()
    return life


def test_a_renewal_that_is_refused_near_the_last_epoch_takes_nothing_back() -> None:
    """The last epoch, empty, is then another driver's: what was refused was no lost answer."""
    life = near_the_last_epoch(Renew(), SourcesRead(CLAIM, ()))
    life.hear(Refused("fenced"), seen(EMPTY, at(LAST_EPOCH)))
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(LAST_EPOCH - 1))


# ------------------------------------------------------------------------------------------------------ failed attempts


def attempt_that_fails_runs_again_under_a_fresh_epoch_version_1() -> Life:
    """The coordinator has raised the epoch itself, and nobody is told but who looks."""
    life = Life(1).writing()
    assert life.hear(WriteFailed(terminal=False, reason="task lost")) == End(at(2), commit=False)
    assert life.hear(Ended(None)) == Describe(settle=True)
    assert life.hear(seen(ABORTED, at(3))) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(3))
    assert life.hear(Initialised(at(4))) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Write(at(4), BATCH, 2)
    return life


def attempt_that_fails_before_anything_was_opened_version_1() -> Life:
    life = Life(1).writing()
    life.hear(WriteFailed(terminal=False, reason="task lost"))
    assert life.hear(Initialised(at(3))) == Write(at(3), BATCH, 2)
    return life


def attempt_that_fails_when_the_transactional_id_was_forgotten_version_1() -> Life:
    life = Life(1).writing()
    life.hear(WriteFailed(terminal=False, reason="task lost"))
    assert life.hear(Initialised(Identity(8, 0))) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Write(Identity(8, 0), BATCH, 2)
    return life


def abort_while_another_driver_takes_the_name_version_1() -> Life:
    life = Life(1).writing()
    life.hear(WriteFailed(terminal=False, reason="task lost"), Ended(None))
    halted(life.hear(seen(EMPTY, OTHER)), Stop.FENCED, "holds the transactional id")
    return life


def abort_of_what_the_broker_has_ended_version_1() -> Life:
    life = Life(1, attempts=1).writing()
    life.hear(WriteFailed(terminal=False, reason="the audit failed"))
    assert life.hear(Refused("timed out")) == Describe()
    life.hear(seen(ABORTED, at(3)), ProgressRead(CLAIM), Initialised(at(4)))
    halted(life.hear(ProgressRead(CLAIM)), Stop.EXHAUSTED, "the audit failed; the broker had ended the transaction")
    return life


def attempts_are_bounded_version_1() -> Life:
    """What they failed of is told as it was: it is the driver itself that had the broker end its transaction."""
    life = Life(1, attempts=2).writing()
    life.hear(WriteFailed(terminal=False, reason="one"), Ended(None), seen(ABORTED, at(3)))
    life.hear(ProgressRead(CLAIM), Initialised(at(4)), ProgressRead(CLAIM), WriteFailed(terminal=False, reason="two"))
    assert life.hear(Ended(None)) == Describe(settle=False)
    assert life.hear(seen(COMPLETING, at(5))) == Halt(Stop.EXHAUSTED, "two")
    return life


def batch_that_cannot_be_written_waits_for_no_marker_version_1() -> Life:
    life = Life(1).writing()
    assert life.hear(WriteFailed(terminal=True, reason="too large")) == End(at(2), commit=False)
    assert life.hear(Ended(None)) == Describe(settle=False)
    assert life.hear(seen(COMPLETING, at(3))) == Halt(Stop.REJECTED, "too large")
    assert life.looks_first(3) == Write(at(4), BATCH, 1)
    return life


def batch_that_cannot_be_written_leaves_nothing_open_version_1() -> Life:
    """Its last partition was just being added when it was to be aborted."""
    life = Life(1).writing()
    life.hear(WriteFailed(terminal=True, reason="too large"), Ended(None))
    assert life.hear(seen(ONGOING, at(2))) == Initialise(expected=at(2))
    return life


def batch_that_cannot_be_written_leaves_nothing_to_be_opened_version_1() -> Life:
    """Its first partition was just being added."""
    life = Life(1).writing()
    life.hear(WriteFailed(terminal=True, reason="too large"), Ended(None))
    assert life.hear(seen(EMPTY, at(2))) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(2))
    assert life.hear(Initialised(at(3)), ProgressRead(CLAIM)) == Halt(Stop.REJECTED, "too large")
    return life


def abort_that_the_coordinator_has_not_written_down_yet_version_1() -> Life:
    """It has raised the epoch, and says nothing of it but that: to whom looks it is an open transaction of the next epoch."""
    life = Life(1).writing()
    life.hear(WriteFailed(terminal=False, reason="task lost"), Ended(None))
    assert life.hear(seen(ONGOING, at(3))) == Initialise(expected=at(2))
    life.hear(Refused("it is written down"), seen(ABORTED, at(3)), ProgressRead(CLAIM), Initialised(at(4)))
    assert life.hear(ProgressRead(CLAIM)) == Write(at(4), BATCH, 3)
    return life


def abort_that_finds_a_transaction_of_another_driver_version_1() -> Life:
    for other in (at(4), at(1), Identity(8, 2)):
        life = Life(1).writing()
        life.hear(WriteFailed(terminal=False, reason="task lost"), Ended(None))
        halted(life.hear(seen(ONGOING, other)), Stop.FENCED, "holds the transactional id")
    return life


def attempt_that_fails_runs_again_under_a_fresh_epoch_version_2() -> Life:
    life = Life(2).writing()
    life.hear(WriteFailed(terminal=False, reason="task lost"))
    assert life.hear(Ended(at(3))) == Write(at(3), BATCH, 2)
    return life


def attempts_are_bounded() -> Life:
    life = Life(2, attempts=2).writing()
    life.hear(WriteFailed(terminal=False, reason="one"), Ended(at(3)))
    halted(life.hear(WriteFailed(terminal=False, reason="two"), Ended(at(4))), Stop.EXHAUSTED, "two")
    assert life.looks_first(4) == Write(at(5), BATCH, 1)
    return life


def attempts_that_are_refused_are_bounded_too() -> Life:
    life = Life(2, attempts=2).writing()
    for epoch in (3, 5):
        assert life.hear(Refused("timed out")) == Describe()
        life.hear(seen(ABORTED, at(epoch)), ProgressRead(CLAIM))
        life.hear(Initialised(at(epoch + 1)), ProgressRead(CLAIM))
    assert life.effect is not None
    halted(
        life.effect,
        Stop.EXHAUSTED,
        "timed out; the broker had ended the transaction, as it does after transaction_timeout_ms",
    )
    return life


def failure_told_at_the_end_is_that_of_the_last_attempt() -> Life:
    life = Life(2, attempts=2).writing()
    life.hear(WriteFailed(terminal=False, reason="task lost"), Ended(at(3)), Refused("fenced"))
    life.hear(seen(ONGOING, at(3)), Initialised(at(4)))
    assert life.effect == ReadProgress()
    halted(life.hear(ProgressRead(CLAIM)), Stop.EXHAUSTED, "fenced")
    return life


def batch_that_cannot_be_written_is_not_tried_again() -> Life:
    life = Life(2).writing()
    assert life.hear(WriteFailed(terminal=True, reason="too large")) == End(at(2), commit=False)
    halted(life.hear(Ended(at(3))), Stop.REJECTED, "too large")
    assert life.looks_first(3) == Write(at(4), BATCH, 1)
    return life


def batch_that_cannot_be_written_is_rejected_even_if_its_abort_is_refused() -> Life:
    life = Life(1).writing()
    life.hear(WriteFailed(terminal=True, reason="too large"), Refused("timed out"))
    life.hear(seen(ABORTED, at(3)), ProgressRead(CLAIM), Initialised(at(4)))
    halted(life.hear(ProgressRead(CLAIM)), Stop.REJECTED, "too large")
    return life


@pytest.mark.parametrize("held", [{}, {("out", 0): 2}, {("out", 0): 4}, {("out", 1): 3}])
def test_an_audit_that_differs_aborts(held: dict[tuple[str, int], int]) -> None:
    life = Life(2).writing()
    assert life.hear(Written(COUNTS), Audited(held)) == End(at(2), commit=False)
    assert "out-0: 3 written" in life.machine.context.failure
    assert life.hear(Ended(at(3))) == Write(at(3), BATCH, 2)


def refresh_that_brings_another_producer_id_looks_at_the_progress_first() -> Life:
    """The transactional id had expired, so InitProducerId compared nothing: perhaps another driver was here meanwhile."""
    life = Life(1, attempts=1).ready()
    life.hear(Offered(BATCH))
    assert life.hear(Initialised(ANEW)) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Write(ANEW, BATCH, 1)
    return life


def refresh_that_brings_another_producer_id_finds_the_newer_claim() -> Life:
    life = Life(1).ready()
    life.hear(Offered(BATCH), Initialised(ANEW))
    halted(life.hear(ProgressRead(DONE.claimed_by("newer"))), Stop.FENCED, "driver newer has claimed the name")
    return life


def refresh_that_brings_another_producer_id_finds_no_progress() -> Life:
    life = Life(1).ready()
    life.hear(Offered(BATCH), Initialised(ANEW))
    halted(life.hear(ProgressRead(None)), Stop.GONE, "nobody can tell whether another driver took over")
    return life


def looks_and_finds_no_progress() -> Life:
    life = Life(2).writing()
    life.hear(Refused("unknown producer id"), seen(ABSENT, None))
    halted(life.hear(ProgressRead(None)), Stop.GONE)
    return life


def resolves_and_finds_no_progress() -> Life:
    life = Life(1).writing()
    life.hear(Refused("odd"), seen(ONGOING, at(2)), Initialised(at(3)))
    halted(life.hear(ProgressRead(None)), Stop.GONE)
    return life


def offsets_that_ask_for_an_abort() -> Life:
    life = Life(2).storing()
    assert life.hear(WriteFailed(terminal=False, reason="TRANSACTION_ABORTABLE")) == End(at(2), commit=False)
    return life


def audit_that_is_denied_aborts_and_is_not_tried_again() -> Life:
    life = Life(2).writing()
    life.hear(Written(COUNTS))
    assert life.hear(WriteFailed(terminal=True, reason="READ is missing")) == End(at(2), commit=False)
    halted(life.hear(Ended(at(3))), Stop.REJECTED, "READ is missing")
    assert life.looks_first(3) == Write(at(4), BATCH, 1)
    return life


def offsets_that_are_denied_abort_and_are_not_tried_again() -> Life:
    life = Life(1).storing()
    assert life.hear(WriteFailed(terminal=True, reason="READ is missing")) == End(at(2), commit=False)
    assert life.hear(Ended(None), seen(ABORTED, at(3))) == Halt(Stop.REJECTED, "READ is missing")
    assert life.looks_first(3) == Write(at(4), BATCH, 1)
    return life


# ------------------------------------------------------------------------------------------------------- refused: looks


def refused_in_the_refresh() -> Life:
    life = Life(1).ready()
    assert life.hear(Offered(BATCH), Refused("fenced")) == Describe()
    return life


def refused_in_the_audit() -> Life:
    life = Life(2).writing()
    assert life.hear(Written(COUNTS), Refused("fenced")) == Describe()
    return life


def refused_in_the_offsets() -> Life:
    life = Life(2).storing()
    assert life.hear(Refused("fenced")) == Describe()
    return life


def zombie_sees_the_newer_driver() -> Life:
    life = Life(2).writing()
    halted(life.hear(Refused("fenced"), seen(EMPTY, OTHER)), Stop.FENCED, "holds the transactional id")
    halted(life.hear(Offered(BATCH)), Stop.FENCED)
    halted(life.hear(Start()), Stop.FENCED)
    return life


def zombie_sees_that_more_than_a_timeout_happened() -> Life:
    """A newer driver fenced us and its claim timed out: nothing is open, and the last claim is still ours."""
    life = Life(2).writing()
    halted(life.hear(Refused("fenced"), seen(ABORTED, at(5))), Stop.FENCED, "holds the transactional id")
    return life


def zombie_sees_the_newer_claim() -> Life:
    life = Life(1).writing()
    life.hear(Refused("unknown"), seen(ABSENT, None))
    halted(life.hear(ProgressRead(CLAIM.claimed_by("newer"))), Stop.FENCED, "driver newer has claimed the name")
    return life


def zombie_whose_name_was_taken_while_it_looked() -> Life:
    life = Life(1).writing()
    life.hear(Refused("timed out"), seen(ABORTED, at(3)), ProgressRead(CLAIM))
    assert life.hear(Refused("fenced")) == Describe()
    halted(life.hear(seen(EMPTY, at(4)), ProgressRead(CLAIM), Refused("fenced")), Stop.FENCED, "taken over")
    return life


def zombie_finds_the_newer_claim_after_it_took_the_name_back() -> Life:
    life = Life(1).writing()
    life.hear(Refused("timed out"), seen(ABORTED, at(3)), ProgressRead(CLAIM), Initialised(at(4)))
    halted(life.hear(ProgressRead(CLAIM.claimed_by("newer"))), Stop.FENCED)
    return life


def timed_out_driver_goes_on() -> Life:
    life = Life(1).writing()
    assert life.hear(Refused("INVALID_PRODUCER_EPOCH")) == Describe()
    assert life.hear(seen(COMPLETING, at(3))) == Describe(settle=True)
    assert life.hear(seen(ABORTED, at(3))) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(3))
    assert life.hear(Initialised(at(4))) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Write(at(4), BATCH, 2)
    return life


def near_the_last_epoch(*events: Event) -> Life:
    """Version 1, its REFRESH asked with the epoch before the last one, of a batch or of what is said."""
    life, own = Life(1), at(LAST_EPOCH - 1)
    life.hear(
        Start(), seen(ABSENT, None), Initialised(own), ProgressRead(None), seen(EMPTY, own), Stored(), Ended(None)
    )
    assert life.hear(*(events or [Offered(BATCH)])) == Initialise(expected=own)
    return life


def attempt_is_not_made_under_an_epoch_that_leaves_none_to_abort_it_with_version_1() -> Life:
    life = Life(1)
    own = at(LAST_EPOCH - 3)
    life.hear(
        Start(), seen(ABSENT, None), Initialised(own), ProgressRead(None), seen(EMPTY, own), Stored(), Ended(None)
    )
    assert life.hear(Offered(BATCH)) == Initialise(expected=own)
    assert life.hear(Initialised(at(LAST_EPOCH - 2))) == Write(at(LAST_EPOCH - 2), BATCH, 1)
    life.hear(WriteFailed(terminal=False, reason="task lost"), Ended(None), seen(ABORTED, at(LAST_EPOCH - 1)))
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(LAST_EPOCH - 1))
    assert life.hear(Initialised(at(LAST_EPOCH)), ProgressRead(CLAIM)) == Initialise(expected=at(LAST_EPOCH))
    assert life.hear(Initialised(ANEW), ProgressRead(CLAIM)) == Write(ANEW, BATCH, 2)
    return life


def test_an_epoch_that_leaves_one_to_abort_it_with_is_none_to_begin_with_on_version_1() -> None:
    life = near_the_last_epoch()
    assert life.hear(Initialised(at(LAST_EPOCH))) == Initialise(expected=at(LAST_EPOCH))
    earlier, own = Life(1), at(LAST_EPOCH - 2)
    earlier.hear(
        Start(), seen(ABSENT, None), Initialised(own), ProgressRead(None), seen(EMPTY, own), Stored(), Ended(None)
    )
    earlier.hear(Offered(BATCH))
    assert earlier.hear(Initialised(at(LAST_EPOCH - 1))) == Initialise(expected=at(LAST_EPOCH - 1))


def test_on_version_2_an_attempt_is_made_under_each_epoch() -> None:
    life = Life(2).fenced()
    life.hear(Stored(), Ended(at(LAST_EPOCH)))
    assert life.hear(Offered(BATCH)) == Write(at(LAST_EPOCH), BATCH, 1)


def test_nothing_is_opened_under_an_epoch_behind_the_last_one() -> None:
    """An abort in the last epoch is answered with it by brokers before 4.3."""
    life = Life(2).fenced()
    life.hear(Stored(), Ended(at(LAST_EPOCH)), Offered(BATCH), WriteFailed(terminal=False, reason="timed out"))
    assert life.hear(Ended(at(LAST_EPOCH + 1))) == Initialise(expected=at(LAST_EPOCH + 1))
    assert life.hear(Initialised(ANEW), ProgressRead(CLAIM)) == Write(ANEW, BATCH, 2)


@pytest.mark.parametrize("ended", [COMMITTED, ABORTED])
def test_a_producer_id_that_followed_the_last_epoch_and_is_not_known_any_more_is_asked_for_again(
    ended: Coordinated,
) -> None:
    life = Life(2).fenced()
    life.hear(Stored(), Ended(ANEW), Offered(BATCH), Refused("INVALID_PRODUCER_ID_MAPPING"))
    assert life.hear(seen(ended, at(LAST_EPOCH + 1))) == ReadProgress()
    assert life.machine.context.failure == "INVALID_PRODUCER_ID_MAPPING", "no transaction had timed out"
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(LAST_EPOCH + 1))
    assert life.hear(Initialised(ANOTHER), ProgressRead(CLAIM)) == Write(ANOTHER, BATCH, 2)


def test_on_version_1_no_producer_id_is_forgotten() -> None:
    life = Life(1).ready()
    life.hear(Offered(BATCH), Initialised(ANEW), ProgressRead(CLAIM), Refused("fenced"))
    halted(life.hear(seen(ABORTED, at(LAST_EPOCH + 1))), Stop.FENCED, "holds the transactional id")


def test_a_producer_id_that_is_not_known_any_more_finds_the_newer_claim() -> None:
    life = Life(2).fenced()
    life.hear(Stored(), Ended(ANEW), Offered(BATCH), Refused("fenced"), seen(ABORTED, at(LAST_EPOCH + 1)))
    halted(life.hear(ProgressRead(CLAIM.claimed_by("newer"))), Stop.FENCED, "driver newer")


def answer_with_the_last_epoch_is_lost() -> Life:
    life = near_the_last_epoch()
    life.hear(Unreachable("no answer"), Start(), seen(EMPTY, at(LAST_EPOCH)))
    assert life.hear(ProgressRead(CLAIM)) == Describe()
    assert life.hear(seen(EMPTY, at(LAST_EPOCH))) == Initialise(expected=None)
    life.hear(Initialised(ANEW), ProgressRead(CLAIM), seen(EMPTY, ANEW))
    assert life.effect == claim(ANEW, CLAIM.claimed_by("me.2"), CLAIM)
    assert life.hear(Stored(), Ended(None)) == Ready()
    return life


def answer_with_the_last_epoch_is_lost_and_another_has_claimed() -> Life:
    life = near_the_last_epoch()
    life.hear(Unreachable("no answer"), Start(), seen(EMPTY, at(LAST_EPOCH)))
    halted(life.hear(ProgressRead(CLAIM.claimed_by("newer"))), Stop.FENCED, "driver newer")
    return life


def test_only_what_is_lost_with_the_last_epoch_begins_anew() -> None:
    """Before the last one the answer is asked for again; with a batch, or without a claim, the last one is another driver's."""
    earlier = Life(1).ready()
    earlier.hear(Offered(BATCH), Unreachable("no answer"), Start(), seen(EMPTY, at(2)))
    assert earlier.hear(ProgressRead(CLAIM)) == Initialise(expected=at(1))
    ended_by_the_broker = near_the_last_epoch()
    ended_by_the_broker.hear(Unreachable("no answer"), Start(), seen(ABORTED, at(LAST_EPOCH)))
    assert ended_by_the_broker.hear(ProgressRead(CLAIM)) == Initialise(expected=at(LAST_EPOCH))
    with_a_batch = near_the_last_epoch()
    with_a_batch.hear(Refused("fenced"), seen(EMPTY, at(LAST_EPOCH)))
    assert with_a_batch.hear(ProgressRead(CLAIM)) == Initialise(expected=at(LAST_EPOCH - 1))
    unclaimed, own = Life(1), at(LAST_EPOCH - 1)
    unclaimed.hear(Start(), seen(ABSENT, None), Initialised(own), ProgressRead(None), seen(EMPTY, own))
    unclaimed.hear(Refused("fenced"), seen(EMPTY, at(LAST_EPOCH)))
    assert unclaimed.hear(ProgressRead(None)) == Initialise(expected=own)


def forgotten_transactional_id_is_made_anew() -> Life:
    life = Life(2).writing()
    assert life.hear(Refused("unknown producer id"), seen(ABSENT, None)) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=None)
    return life


def transaction_of_ours_still_open_is_taken_back_before_progress_is_read() -> Life:
    life = Life(1).writing()
    assert life.hear(Refused("odd"), seen(ONGOING, at(2))) == Initialise(expected=at(2))
    assert life.hear(Refused("aborted, and the epoch moved on")) == Describe()
    assert life.hear(seen(ABORTED, at(3)), ProgressRead(CLAIM)) == Initialise(expected=at(3))
    return life


def transaction_of_ours_that_stays_open_ends_it() -> Life:
    life = Life(1, attempts=1).writing()
    life.hear(Refused("odd"), seen(ONGOING, at(2)), Refused("again"))
    halted(life.hear(seen(ONGOING, at(2)), Refused("again")), Stop.UNREACHABLE)
    return life


def lost_answer_of_an_init_is_asked_for_again_with_the_old_epoch() -> Life:
    life = Life(1).ready()
    halted(life.hear(Offered(BATCH), Unreachable("gone")), Stop.UNREACHABLE)
    assert life.hear(Start(), seen(EMPTY, at(2))) == ReadProgress()
    assert life.hear(ProgressRead(CLAIM)) == Initialise(expected=at(1))
    assert life.hear(Initialised(at(2)), ProgressRead(CLAIM)) == Ready()
    return life


def commit_refused_but_durable() -> Life:
    life = Life(2).committing()
    assert life.hear(Refused("INVALID_TXN_STATE")) == Describe()
    assert life.hear(seen(COMMITTED, at(3)), ProgressRead(DONE), Initialised(at(4))) == ReadProgress()
    assert life.hear(ProgressRead(DONE)) == Ready(BATCH, committed=True)
    return life


def commit_refused_and_aborted_runs_again() -> Life:
    life = Life(2).committing()
    life.hear(Refused("INVALID_TXN_STATE"), seen(ABORTED, at(3)), ProgressRead(CLAIM), Initialised(at(4)))
    assert life.hear(ProgressRead(CLAIM)) == Write(at(4), BATCH, 2)
    return life


def commit_that_was_resolved_by_what_was_committed_once() -> Life:
    """A coordinator that had been replaced did not know of the commit; the one that accepts the offsets does."""
    life = Life(2).committing()
    life.hear(Refused("INVALID_TXN_STATE"), seen(ABORTED, at(3)), ProgressRead(CLAIM), Initialised(at(4)))
    assert life.hear(ProgressRead(CLAIM)) == Write(at(4), BATCH, 2)
    assert life.hear(Written({})) == Store(at(4), DONE, BATCH, read=ProgressRead(CLAIM))
    assert life.hear(ProgressRead(DONE)) == Describe()
    assert "had been replaced" in life.machine.context.failure
    assert life.hear(seen(ONGOING, at(4))) == Initialise(expected=at(4))
    assert life.hear(Initialised(at(6))) == ReadProgress()
    assert life.hear(ProgressRead(DONE)) == Ready(BATCH, committed=True)
    return life


def what_was_read_is_compared_until_something_is_committed_on_it() -> Life:
    life = Life(2).committing()
    life.hear(Refused("INVALID_TXN_STATE"), seen(ABORTED, at(3)), ProgressRead(CLAIM), Initialised(at(4)))
    life.hear(ProgressRead(CLAIM))
    assert life.hear(Written({})) == Store(at(4), DONE, BATCH, read=ProgressRead(CLAIM))
    assert life.hear(Stored(), Ended(at(5))) == Ready(BATCH, committed=True)
    following = Batch(1, "q", "d0", "d1")
    stored = life.hear(Offered(following), Written({}))
    assert stored == Store(at(5), DONE.advanced(following, "me"), following)
    return life


def told_what_was_committed_once(*, allowed: OnMismatch = OnMismatch.REFUSE, once: Progress = CLAIM) -> Life:
    """Ready, after a look that a coordinator answered which had been replaced."""
    life = Life(2, allowed=allowed).ready(DONE)
    assert life.hear(Start(), seen(ABORTED, at(2)), ProgressRead(once), Initialised(at(3))) == ReadProgress()
    assert life.hear(ProgressRead(once)) == Ready()
    return life


def batch_that_was_committed_all_the_while() -> Life:
    """Not by this offer: whoever writes at most once has written it by then."""
    life = told_what_was_committed_once()
    assert life.hear(Offered(BATCH)) == Write(at(3), BATCH, 1)
    life.hear(Written({}), ProgressRead(DONE), seen(ONGOING, at(3)), Initialised(at(5)))
    assert life.hear(ProgressRead(DONE)) == Ready(BATCH, committed=False)
    return life


def batch_whose_commit_was_sent_is_committed_by_that_whatever_is_read_between() -> Life:
    life = told_what_was_committed_once()
    life.hear(Offered(BATCH), Written({}), Stored(), Refused("timed out"), seen(ABORTED, at(4)), ProgressRead(CLAIM))
    assert life.hear(Initialised(at(5)), ProgressRead(CLAIM)) == Write(at(5), BATCH, 2)
    life.hear(Written({}), ProgressRead(DONE), seen(ONGOING, at(5)), Initialised(at(7)))
    assert life.hear(ProgressRead(DONE)) == Ready(BATCH, committed=True)
    following = Batch(1, "q", "d0", "d1")
    life.hear(Offered(following), Written({}), ProgressRead(DONE.advanced(following, "me")), seen(ONGOING, at(7)))
    effect = life.hear(Initialised(at(9)), ProgressRead(DONE.advanced(following, "me")))
    assert effect == Ready(following, committed=False), "each by its own commit"
    return life


PLANNED_AGAIN = Batch(0, "q", "", "others")


def batch_that_is_committed_with_other_records_is_refused() -> Life:
    """By what whoever accepts its offsets has; who was replaced has told of nothing, and does so again."""
    for again in (DONE, CLAIM):
        life = told_what_was_committed_once()
        assert life.hear(Offered(PLANNED_AGAIN)) == Write(at(3), PLANNED_AGAIN, 1)
        assert life.hear(Written({}), ProgressRead(DONE)) == Describe()
        assert life.hear(seen(ONGOING, at(3)), Initialised(at(5))) == ReadProgress()
        halted(life.hear(ProgressRead(again)), Stop.CONFLICT, "batch 0 is committed already")
        assert life.state is State.READY
        assert life.machine.context.conflict == ""
    return life


def batch_that_is_committed_with_other_records_is_refused_before_its_commit() -> Life:
    """Its second attempt is told what is committed, where the first was told what was so once."""
    life = told_what_was_committed_once()
    life.hear(Offered(PLANNED_AGAIN), Refused("timed out"), seen(ABORTED, at(4)), ProgressRead(DONE))
    assert life.hear(Initialised(at(5)), ProgressRead(DONE)) == Write(at(5), PLANNED_AGAIN, 2)
    progress = DONE.advanced(PLANNED_AGAIN, "me")
    assert life.hear(Written({})) == Store(at(5), progress, PLANNED_AGAIN, read=ProgressRead(DONE))
    assert life.hear(Stored()) == Describe()
    assert "batch 0 is committed already" in life.machine.context.failure
    life.hear(seen(ONGOING, at(5)), Initialised(at(7)))
    halted(life.hear(ProgressRead(DONE)), Stop.CONFLICT, "batch 0 is committed already")
    return life


def batch_is_not_refused_for_what_was_committed_once() -> Life:
    """The commit of the batch before is not known to who was replaced."""
    following = Batch(1, "q", "d0", "d1")
    life = Life(2).ready(DONE)
    life.hear(Offered(following), Refused("timed out"), seen(ABORTED, at(3)), ProgressRead(CLAIM))
    assert life.hear(Initialised(at(4)), ProgressRead(CLAIM)) == Write(at(4), following, 2)
    life.hear(Written({}), ProgressRead(DONE), seen(ONGOING, at(4)), Initialised(at(6)))
    assert life.hear(ProgressRead(DONE)) == Write(at(6), following, 3)
    assert life.hear(Written({}), Stored(), Ended(at(7))) == Ready(following, committed=True)
    return life


FIRST, SECOND = Batch(0, "other", "", "e0"), Batch(1, "q", "d0", "d1")


def resumed_batch_goes_on_from_what_it_was_compared_with_alone() -> Life:
    """The beginning of its query was compared with what was read: where batch 0 has ended, and not batch 1."""
    life = told_what_was_committed_once(allowed=OnMismatch.RESUME, once=DONE)
    assert life.hear(Offered(FIRST)) == Write(at(3), FIRST, 1)
    life.hear(Written({}), ProgressRead(DONE.advanced(SECOND, "me")), seen(ONGOING, at(3)), Initialised(at(5)))
    halted(life.hear(ProgressRead(DONE.advanced(SECOND, "me"))), Stop.CONFLICT, "has committed batches up to 1")
    same = told_what_was_committed_once(allowed=OnMismatch.RESUME, once=DONE)
    ready = same.hear(Offered(FIRST), Written({}), Stored(), Ended(at(4)))
    assert isinstance(ready, Ready)
    assert ready.committed
    assert "has committed batches up to 0" in ready.note
    return life


def batch_that_is_taken_up_on_purpose_says_what_it_is_written_on_top_of() -> Life:
    life = told_what_was_committed_once(allowed=OnMismatch.RESTART)
    assert life.hear(Offered(PLANNED_AGAIN)) == Write(at(3), PLANNED_AGAIN, 1)
    life.hear(Written({}), ProgressRead(DONE), seen(ONGOING, at(3)), Initialised(at(5)))
    assert life.hear(ProgressRead(DONE)) == Write(at(5), PLANNED_AGAIN, 2)
    ready = life.hear(Written({}), Stored(), Ended(at(6)))
    assert isinstance(ready, Ready)
    assert "batch 0 is committed already" in ready.note
    return life


def offsets_that_were_accepted_on_top_of_progress_that_is_gone() -> Life:
    life = told_what_was_committed_once()
    life.hear(Offered(BATCH), Written({}), ProgressRead(None), seen(ONGOING, at(3)), Initialised(at(5)))
    halted(life.hear(ProgressRead(None)), Stop.GONE)
    return life


def conflict_with_what_was_committed_once_is_none() -> Life:
    life = told_what_was_committed_once()
    following = Batch(1, "q", "d0", "d1")
    assert life.hear(Offered(following)) == ReadProgress()
    assert life.hear(ProgressRead(DONE)) == Write(at(3), following, 1)
    assert life.hear(Written({})) == Store(at(3), DONE.advanced(following, "me"), following, read=ProgressRead(DONE))
    certain = Life(2).ready(DONE)
    certain.hear(Offered(PLANNED_AGAIN))
    halted(certain.hear(ProgressRead(CLAIM)), Stop.CONFLICT)
    skipped = told_what_was_committed_once(once=Progress(0, "other", "me", ()))
    assert skipped.hear(Offered(BATCH), ProgressRead(DONE)) == Ready(BATCH, committed=False)
    return life


def driver_that_has_claimed_the_name_goes_on_under_no_other_claim() -> Life:
    """Whoever accepts its offsets has another claim: somebody has put it there."""
    newer = DONE.claimed_by("newer")
    life = told_what_was_committed_once()
    life.hear(Offered(BATCH), Written({}), ProgressRead(newer), seen(ONGOING, at(3)), Initialised(at(5)))
    halted(life.hear(ProgressRead(newer)), Stop.FENCED, "driver newer has claimed the name")
    rests = Life(1).renewing()
    rests.hear(Initialised(at(2)), Refused("timed out"), seen(ABORTED, at(3)))
    halted(rests.hear(ProgressRead(newer)), Stop.FENCED, "driver newer has claimed the name")
    return life


def commit_without_an_answer_is_neither_aborted_nor_guessed() -> Life:
    life = Life(2).committing()
    halted(life.hear(Unreachable("gone")), Stop.OUTCOME_UNKNOWN, "gone")
    assert life.hear(Start()) == Describe()
    life.hear(seen(COMMITTED, at(3)), ProgressRead(DONE), Initialised(at(4)))
    assert life.hear(ProgressRead(DONE)) == Ready()
    assert life.hear(Offered(BATCH)) == Ready(BATCH, committed=False)
    return life


@pytest.mark.parametrize(
    ("own", "then", "is_ours"),
    [
        (Identity(7, LAST_EPOCH), Identity(8, 0), True),
        (Identity(7, LAST_EPOCH + 1), Identity(8, 0), True),
        (Identity(7, LAST_EPOCH), Identity(7, LAST_EPOCH + 1), True),
        (Identity(7, LAST_EPOCH), Identity(8, 1), False),
        (Identity(7, 3), Identity(8, 0), False),
    ],
)
def test_the_producer_id_that_follows_the_last_epoch_is_ours(own: Identity, then: Identity, is_ours: bool) -> None:
    life = Life(1).ready()
    life.hear(Offered(BATCH), Initialised(own), Refused("timed out"))
    assert (life.hear(seen(ABORTED, then)) == ReadProgress()) is is_ours


@pytest.mark.parametrize(("own", "then"), [(at(2), at(3)), (Identity(7, LAST_EPOCH), Identity(8, 0))])
def test_what_is_committed_under_the_next_identity_is_ours_on_version_2_alone(own: Identity, then: Identity) -> None:
    """A commit of version 1 leaves the identity: another driver's claim is committed, and who asks for claims may be misled."""
    first = Life(1).ready()
    halted(
        first.hear(Offered(BATCH), Initialised(own), Refused("fenced"), seen(COMMITTED, then)),
        Stop.FENCED,
        f"{then} holds the transactional id",
    )
    rests = Life(1).ready()
    halted(
        rests.hear(Offered(BATCH), Refused("fenced"), seen(COMMITTED, at(2))), Stop.FENCED, "holds the transactional id"
    )
    second, following = Life(2).ready(), Batch(1, "q", "d0", "d1")
    second.hear(Offered(BATCH), Written(COUNTS), Audited({("out", 0): 3}), Stored(), Ended(own), Offered(following))
    assert second.hear(Written(COUNTS), Audited({("out", 0): 3}), Stored(), Refused("?")) == Describe()
    assert second.hear(seen(COMMITTED, then)) == ReadProgress()


def test_on_version_2_too_it_is_another_s_where_we_have_committed_nothing_under_ours() -> None:
    """A driver that takes the cluster for one of version 1 leaves the epoch: so it is before and after a downgrade."""
    writes = Life(2).writing()
    halted(writes.hear(Refused("fenced"), seen(COMMITTED, at(3))), Stop.FENCED, "holds the transactional id")
    claims = Life(2).fenced(CLAIM.claimed_by("first"))
    halted(claims.hear(Refused("fenced"), seen(COMMITTED, at(2))), Stop.FENCED, "holds the transactional id")
    again = Life(2).fenced(None)
    again.hear(
        Stored(), Refused("timed out"), seen(ABORTED, at(2)), ProgressRead(None), Initialised(at(3)), ProgressRead(None)
    )
    halted(again.hear(Refused("fenced"), seen(COMMITTED, at(4))), Stop.FENCED, "holds the transactional id")


def test_on_version_2_a_claim_or_a_renewal_of_ours_that_is_refused_may_be_committed() -> None:
    claims = Life(2).fenced(None)
    assert claims.hear(Stored(), Refused("?"), seen(COMMITTED, at(2))) == ReadProgress()
    assert claims.hear(ProgressRead(CLAIM)) == Initialise(expected=at(2))
    renews = Life(2).renewing()
    assert renews.hear(Stored(), Refused("?"), seen(COMMITTED, at(3))) == ReadProgress()
    assert renews.hear(ProgressRead(DONE)) == Initialise(expected=at(3))


@pytest.mark.parametrize("version", [1, 2])
def test_under_another_producer_id_whichever_claim_stands_may_be_newer(version: int) -> None:
    """The id has expired since the look, and with it the comparison: a newer driver may have claimed before."""
    life = Life(version).fenced(CLAIM.claimed_by("first"))
    life.hear(Refused("timed out"), seen(ABORTED, at(2)), ProgressRead(CLAIM.claimed_by("first")))
    newer = ProgressRead(CLAIM.claimed_by("newer"))
    halted(life.hear(Initialised(ANEW), newer), Stop.FENCED, "driver newer has claimed the name")


def test_our_own_commit_under_the_identity_that_we_have_is_none_of_another() -> None:
    life = Life(1).writing()
    assert life.hear(Refused("fenced"), seen(COMMITTED, at(2))) == ReadProgress()


def test_only_what_was_aborted_was_ended_by_the_broker() -> None:
    told = []
    for state in (COMMITTED, ABORTED):
        life = Life(2).committing()
        life.hear(Refused("why"), seen(state, at(3)))
        told.append(life.machine.context.failure)
    assert told[0] == "why"
    assert "as it does after transaction_timeout_ms" in told[1]


# ---------------------------------------------------------------------------------------------------------------- table

CASES: list[Callable[[], Life]] = [
    start_in_order,
    first_start_claims_an_unused_name,
    start_whose_checkpoint_has_batches_needs_progress,
    start_whose_checkpoint_has_batches_finds_the_claim_that_came_before_them,
    start_over_takes_the_name_whatever_the_checkpoint_has,
    start_overtaken_by_another_start,
    start_whose_claim_timed_out,
    start_whose_claim_was_committed_although_it_looked_refused,
    start_that_another_claim_overtook,
    start_that_another_claim_overtook_since_the_id_was_forgotten,
    start_that_another_claim_overtook_at_the_last_moment,
    start_whose_claim_is_refused_again_and_again,
    start_that_was_told_what_was_committed_once,
    start_that_was_told_of_progress_that_is_gone_since,
    start_whose_progress_was_gone_for_a_moment,
    start_that_is_told_so_again,
    start_whose_claim_timed_out_while_who_was_replaced_did_not_answer_version_1,
    start_whose_claim_timed_out_while_who_was_replaced_did_not_answer_version_2,
    start_whose_name_is_claimed_while_it_looks_again_version_1,
    start_that_stored_its_claim_before_a_newer_driver_claimed_under_another_producer_id,
    start_that_was_told_of_no_progress_and_finds_that_it_is_gone,
    start_without_an_answer,
    batch_in_order_version_1,
    batch_in_order_version_2,
    batch_without_records_version_1,
    batch_without_records_version_2,
    batch_without_records_is_committed_at_its_second_attempt_too,
    batch_that_is_committed_already,
    batch_in_conflict,
    conflict_with_what_another_driver_committed_is_none,
    conflict_where_the_progress_is_gone,
    ready_driver_that_starts_looks_whether_the_name_is_still_its_own,
    answer_with_the_last_epoch_is_lost,
    answer_with_the_last_epoch_is_lost_and_another_has_claimed,
    batch_taken_up_on_purpose_says_why,
    attempt_that_fails_runs_again_under_a_fresh_epoch_version_1,
    attempt_that_fails_before_anything_was_opened_version_1,
    attempt_is_not_made_under_an_epoch_that_leaves_none_to_abort_it_with_version_1,
    attempt_that_fails_when_the_transactional_id_was_forgotten_version_1,
    abort_while_another_driver_takes_the_name_version_1,
    abort_of_what_the_broker_has_ended_version_1,
    batch_that_cannot_be_written_waits_for_no_marker_version_1,
    batch_that_cannot_be_written_leaves_nothing_open_version_1,
    batch_that_cannot_be_written_leaves_nothing_to_be_opened_version_1,
    abort_that_the_coordinator_has_not_written_down_yet_version_1,
    abort_that_finds_a_transaction_of_another_driver_version_1,
    attempts_are_bounded_version_1,
    attempt_that_fails_runs_again_under_a_fresh_epoch_version_2,
    attempts_are_bounded,
    attempts_that_are_refused_are_bounded_too,
    failure_told_at_the_end_is_that_of_the_last_attempt,
    batch_that_cannot_be_written_is_not_tried_again,
    batch_that_cannot_be_written_is_rejected_even_if_its_abort_is_refused,
    refresh_that_brings_another_producer_id_looks_at_the_progress_first,
    refresh_that_brings_another_producer_id_finds_the_newer_claim,
    refresh_that_brings_another_producer_id_finds_no_progress,
    looks_and_finds_no_progress,
    resolves_and_finds_no_progress,
    renewal_in_order_version_1,
    renewal_in_order_version_2,
    renewal_of_what_is_gone_puts_it_back,
    renewal_by_a_zombie_that_sees_the_newer_claim,
    renewal_by_a_zombie_whose_newer_driver_has_not_claimed_yet,
    renewal_by_a_zombie_whose_offsets_are_refused,
    renewal_by_a_zombie_whose_transactional_id_was_forgotten,
    renewal_when_all_have_forgotten_everything,
    renewal_that_finds_progress_of_its_own_that_it_does_not_know_lets_that_decide,
    renewal_that_timed_out_may_come_again,
    renewal_without_an_answer_is_looked_up,
    offsets_that_ask_for_an_abort,
    audit_that_is_denied_aborts_and_is_not_tried_again,
    offsets_that_are_denied_abort_and_are_not_tried_again,
    refused_in_the_refresh,
    refused_in_the_audit,
    refused_in_the_offsets,
    zombie_sees_the_newer_driver,
    zombie_sees_that_more_than_a_timeout_happened,
    zombie_sees_the_newer_claim,
    zombie_whose_name_was_taken_while_it_looked,
    zombie_finds_the_newer_claim_after_it_took_the_name_back,
    timed_out_driver_goes_on,
    forgotten_transactional_id_is_made_anew,
    transaction_of_ours_still_open_is_taken_back_before_progress_is_read,
    transaction_of_ours_that_stays_open_ends_it,
    lost_answer_of_an_init_is_asked_for_again_with_the_old_epoch,
    commit_refused_but_durable,
    commit_that_was_resolved_by_what_was_committed_once,
    what_was_read_is_compared_until_something_is_committed_on_it,
    batch_that_was_committed_all_the_while,
    batch_whose_commit_was_sent_is_committed_by_that_whatever_is_read_between,
    batch_that_is_committed_with_other_records_is_refused,
    batch_that_is_committed_with_other_records_is_refused_before_its_commit,
    batch_is_not_refused_for_what_was_committed_once,
    resumed_batch_goes_on_from_what_it_was_compared_with_alone,
    batch_that_is_taken_up_on_purpose_says_what_it_is_written_on_top_of,
    offsets_that_were_accepted_on_top_of_progress_that_is_gone,
    conflict_with_what_was_committed_once_is_none,
    driver_that_has_claimed_the_name_goes_on_under_no_other_claim,
    commit_refused_and_aborted_runs_again,
    commit_without_an_answer_is_neither_aborted_nor_guessed,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_machine(case: Callable[[], Life]) -> None:
    case()


WAITING = [state for state in State if (state, Unreachable) in TRANSITIONS]


def reach(state: State) -> Life:
    """Some life that is in ``state``."""
    looking = Life(1).writing
    ways: dict[State, Callable[[], tuple[Life, list[Event]]]] = {
        State.INSPECT: lambda: (Life(), [Start()]),
        State.FENCE: lambda: (Life(), [Start(), seen(ABSENT, None)]),
        State.READ: lambda: (Life(), [Start(), seen(ABSENT, None), Initialised(at(1))]),
        State.CONFIRM: lambda: (Life(), [Start(), seen(ABSENT, None), Initialised(at(1)), ProgressRead(None)]),
        State.CLAIM_STORE: lambda: (Life().fenced(), []),
        State.CLAIM_COMMIT: lambda: (Life().fenced(), [Stored()]),
        State.RENEW: lambda: (Life().ready(), [Renew()]),
        State.CHECK_CONFLICT: lambda: (Life().ready(), [Offered(Batch(1, "q", "d0", "d1"))]),
        State.REFRESH: lambda: (Life().ready(), [Offered(BATCH)]),
        State.WRITE: lambda: (Life().writing(), []),
        State.AUDIT: lambda: (Life().writing(), [Written(COUNTS)]),
        State.STORE: lambda: (Life().storing(), []),
        State.COMMIT: lambda: (Life().committing(), []),
        State.ABORT: lambda: (Life().writing(), [WriteFailed(terminal=False, reason="")]),
        State.SETTLE: lambda: (Life(1).writing(), [WriteFailed(terminal=False, reason=""), Ended(None)]),
        State.LOOK: lambda: (looking(), [Refused("")]),
        State.CHECK_CLAIM: lambda: (looking(), [Refused(""), seen(ABORTED, at(3))]),
        State.RETAKE: lambda: (looking(), [Refused(""), seen(ABORTED, at(3)), ProgressRead(CLAIM)]),
        State.RESOLVE: lambda: (
            looking(),
            [Refused(""), seen(ABORTED, at(3)), ProgressRead(CLAIM), Initialised(at(4))],
        ),
    }
    life, events = ways[state]()
    for event in events:
        life.hear(event)
    assert life.state is state
    return life


def unanswered(state: State) -> Life:
    life = reach(state)
    stop = Stop.OUTCOME_UNKNOWN if state is State.COMMIT else Stop.UNREACHABLE
    halted(life.hear(Unreachable("gone")), stop, "gone")
    assert life.state is State.BROKEN
    assert life.hear(Start()) == Describe()  # and nothing was aborted or written blindly
    return life


@pytest.mark.parametrize("state", WAITING, ids=lambda state: state.name)
def test_no_answer(state: State) -> None:
    unanswered(state)


LOOKS = [state for state in State if (state, Refused) in TRANSITIONS and state not in (State.LOOK, State.RETAKE)]


@pytest.mark.parametrize("state", LOOKS, ids=lambda state: state.name)
def test_who_is_refused_looks(state: State) -> None:
    life = reach(state)
    assert life.version == 1
    assert life.hear(Refused("fenced")) == Describe()
    assert life.state is State.LOOK


def test_every_row_of_the_table_is_reached() -> None:
    lives = [case() for case in CASES] + [unanswered(state) for state in WAITING]
    reached = set().union(*(life.rows for life in lives))
    missing = {f"{state.name} on {event.__name__}" for state, event in set(TRANSITIONS) - reached}
    assert not missing, f"no case uses these rows: {sorted(missing)}"


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_any_other_event_is_an_illegal_move(state: State) -> None:
    machine = Protocol(Settings("me", epoch_per_end=True))
    machine.context = machine.context.__class__(state=state)
    strange = Audited({}) if state is not State.AUDIT else Stored()
    with pytest.raises(IllegalMove, match=state.name):
        machine.handle(strange)


def test_no_row_leads_from_a_sent_commit_to_an_abort() -> None:
    """COMMIT itself never aborts; what follows an unanswered one is explored in ``test_protocol_model.py``."""
    for event in (Ended(None), Refused("x"), Unreachable("x")):
        effect = Life(1).committing().hear(event)
        assert not isinstance(effect, End)
    assert {event for state, event in TRANSITIONS if state is State.COMMIT} == {Ended, Refused, Unreachable}
