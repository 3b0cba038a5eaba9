"""What the machine knows, field by field, wherever it rests or waits: the simulators copy, compare and continue it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onceflow.transaction.messages import (
    Audited,
    Coordinated,
    Describe,
    Described,
    Ended,
    Event,
    Identity,
    Initialised,
    Offered,
    ProgressRead,
    Ready,
    Refused,
    Renew,
    Snapshot,
    SourcesRead,
    Start,
    Stored,
    Unreachable,
    WriteFailed,
    Written,
)
from onceflow.transaction.progress import Batch, OnMismatch, Progress
from onceflow.transaction.protocol import LAST_EPOCH, Context, Protocol, Settings, State, is_forgotten

BATCH = Batch(0, "q", "", "d0")
CLAIM = Progress.empty("me")
DONE = CLAIM.advanced(BATCH, "me")
COUNTS = {("out", 1): 2, ("out", 0): 3, ("out", 2): 0}
COUNTED = ((("out", 0), 3), (("out", 1), 2))
SOURCES = ((("in", 0), 3),)
HELD = {("out", 0): 3, ("out", 1): 2}
ENDED_BY_THE_BROKER = (
    "; the broker had ended the transaction, as it does after transaction_timeout_ms (in a pipeline file transaction_timeout): "
    "raise that if the batch takes longer"
)


def at(epoch: int) -> Identity:
    return Identity(7, epoch)


def seen(state: Coordinated, identity: Identity | None) -> Described:
    return Described(Snapshot(state, identity))


EMPTY, ONGOING, ABORTED = Coordinated.EMPTY, Coordinated.ONGOING, Coordinated.ABORTED
STARTED: list[Event] = [
    Start(),
    seen(Coordinated.ABSENT, None),
    Initialised(at(1)),
    ProgressRead(None),
    seen(EMPTY, at(1)),
    Stored(),
]
READY_1 = [*STARTED, Ended(None)]
READY_2 = [*STARTED, Ended(at(2))]
WRITING = [*READY_2, Offered(BATCH)]
RESTING = Context(State.READY, at(2), "me", 1, fresh=True, progress=CLAIM, claimed=True, committing=at(1))
RUNNING = replace(RESTING, state=State.WRITE, fresh=False, batch=BATCH, attempt=1)
OLD = DONE.claimed_by("before")
REFUSED_1 = [*READY_1, Offered(BATCH), Initialised(at(2)), Refused("no")]
LOOKING = replace(RUNNING, state=State.LOOK, failure="no")

LAST_EPOCH_LOST = [
    *STARTED[:2],
    Initialised(at(LAST_EPOCH - 1)),
    ProgressRead(None),
    seen(EMPTY, at(LAST_EPOCH - 1)),
    Stored(),
    Ended(None),
    Offered(BATCH),
    Unreachable("no answer"),
    Start(),
    seen(EMPTY, at(LAST_EPOCH)),
    ProgressRead(CLAIM),
]

CASES: dict[str, tuple[list[Event], Context]] = {
    "asks": (STARTED[:1], Context(State.INSPECT, name="me", starts=1)),
    "fences": (STARTED[:2], Context(State.FENCE, name="me", starts=1)),
    "reads": (STARTED[:3], Context(State.READ, at(1), "me", 1, fresh=True)),
    "confirms": (
        [*STARTED[:3], ProgressRead(OLD)],
        Context(State.CONFIRM, at(1), "me", 1, fresh=True, progress=OLD, seen_claims=frozenset({"before"})),
    ),
    "confirms an unused name": (STARTED[:4], Context(State.CONFIRM, at(1), "me", 1, fresh=True)),
    "claims": (
        [*STARTED[:3], ProgressRead(OLD), STARTED[4]],
        Context(State.CLAIM_STORE, at(1), "me", 1, progress=DONE, seen_claims=frozenset({"before"})),
    ),
    "commits its claim": (STARTED, Context(State.CLAIM_COMMIT, at(1), "me", 1, progress=CLAIM, committing=at(1))),
    "ready, version 1": (READY_1, replace(RESTING, identity=at(1), fresh=False)),
    "ready, version 2": (READY_2, RESTING),
    "ready after a claim that was refused once": (
        [
            *STARTED,
            Refused("no"),
            seen(ABORTED, at(1)),
            ProgressRead(None),
            Initialised(at(2)),
            ProgressRead(None),
            Stored(),
            Ended(at(3)),
        ],
        replace(RESTING, identity=at(3), committing=at(2)),
    ),
    "claims again": (
        [*STARTED, Refused("no"), seen(ABORTED, at(1)), ProgressRead(None), Initialised(at(2)), ProgressRead(None)],
        Context(State.CLAIM_STORE, at(2), "me", 1, progress=CLAIM, attempt=1, failure="no", committing=at(1)),
    ),
    "claims again where nobody can have claimed since": (
        [*STARTED[:5], Refused("no"), seen(ABORTED, at(2)), ProgressRead(OLD), Initialised(at(3)), ProgressRead(OLD)],
        Context(
            State.CLAIM_STORE,
            at(3),
            "me",
            1,
            progress=DONE,
            seen_claims=frozenset({"before"}),
            attempt=1,
            failure=f"no{ENDED_BY_THE_BROKER}",
        ),
    ),
    "looks, refused in the commit of its claim": (
        [*STARTED, Refused("no")],
        Context(State.LOOK, at(1), "me", 1, progress=CLAIM, failure="no", committing=at(1)),
    ),
    "refreshes": (
        [*READY_1, Offered(BATCH)],
        replace(RUNNING, state=State.REFRESH, identity=at(1)),
    ),
    "writes, version 1": ([*READY_1, Offered(BATCH), Initialised(at(2))], RUNNING),
    "writes, version 2": (WRITING, RUNNING),
    "audits": ([*WRITING, Written(COUNTS)], replace(RUNNING, state=State.AUDIT, counts=COUNTED)),
    "stores": ([*WRITING, Written(COUNTS), Audited(HELD)], replace(RUNNING, state=State.STORE, counts=COUNTED)),
    "commits": (
        [*WRITING, Written(COUNTS), Audited(HELD), Stored()],
        replace(RUNNING, state=State.COMMIT, counts=COUNTED, sent=True, committing=at(2)),
    ),
    "has committed": (
        [*WRITING, Written(COUNTS), Audited(HELD), Stored(), Ended(at(3))],
        replace(RESTING, identity=at(3), progress=DONE, committing=at(2)),
    ),
    "has skipped": (
        [*WRITING, Written(COUNTS), Audited(HELD), Stored(), Ended(at(3)), Offered(BATCH)],
        replace(RESTING, identity=at(3), progress=DONE, committing=at(2)),
    ),
    "aborts": (
        [*WRITING, Written(COUNTS), WriteFailed(terminal=True, reason="bad")],
        replace(RUNNING, state=State.ABORT, failure="bad", terminal=True),
    ),
    "writes again": (
        [*WRITING, WriteFailed(terminal=False, reason="lost"), Ended(at(3))],
        replace(RUNNING, identity=at(3), attempt=2),
    ),
    "has rejected": (
        [*WRITING, Written(COUNTS), WriteFailed(terminal=True, reason="bad"), Ended(at(3))],
        replace(RESTING, state=State.BROKEN, identity=at(3), fresh=False, terminal=True),
    ),
    "forgets a rejection": (
        [
            *WRITING,
            WriteFailed(terminal=True, reason="bad"),
            Ended(at(3)),
            Start(),
            seen(ABORTED, at(3)),
            ProgressRead(CLAIM),
            Initialised(at(4)),
            ProgressRead(CLAIM),
            Offered(BATCH),
        ],
        replace(RUNNING, identity=at(4), only_read=True),
    ),
    "checks a conflict": (
        [*READY_2, Offered(Batch(3, "q", "d2", "d3"))],
        replace(
            RESTING,
            state=State.CHECK_CONFLICT,
            batch=Batch(3, "q", "d2", "d3"),
            failure="the checkpoint is at batch 3, but no progress is committed under this name: it was used with another "
            "name or another sink, or the committed offsets have expired (offsets.retention.minutes)",
        ),
    ),
    "forgets a conflict": ([*READY_2, Offered(Batch(3, "q", "d2", "d3")), ProgressRead(CLAIM)], RESTING),
    "begins anew after the last epoch": (
        LAST_EPOCH_LOST,
        Context(
            State.INSPECT, at(LAST_EPOCH - 1), "me.2", 2, progress=CLAIM, next_empty=True, committing=at(LAST_EPOCH - 1)
        ),
    ),
    "gives up": (
        [
            *WRITING,
            WriteFailed(terminal=False, reason="1"),
            Ended(at(3)),
            WriteFailed(terminal=False, reason="2"),
            Ended(at(4)),
        ],
        replace(RESTING, state=State.BROKEN, identity=at(4), fresh=False),
    ),
    "looks": ([*WRITING, Written(COUNTS), Refused("no")], LOOKING),
    "looks, refused in its claim": (
        [*STARTED[:5], Refused("no")],
        Context(State.LOOK, at(1), "me", 1, progress=CLAIM, opened=at(1), failure="no"),
    ),
    "looks, refused in its refresh": (
        [*READY_1, Offered(BATCH), Refused("no")],
        replace(LOOKING, identity=at(1)),
    ),
    "looks, refused in its offsets": ([*WRITING, Written(COUNTS), Audited(HELD), Refused("no")], LOOKING),
    "looks, refused in its commit": (
        [*WRITING, Written(COUNTS), Audited(HELD), Stored(), Refused("no")],
        replace(LOOKING, sent=True, committing=at(2)),
    ),
    "keeps the reason of an abort that is refused": (
        [*WRITING, WriteFailed(terminal=True, reason="bad"), Refused("no")],
        replace(LOOKING, failure="bad", terminal=True),
    ),
    "waits for markers": ([*WRITING, Refused("no"), seen(Coordinated.COMPLETING, at(3))], LOOKING),
    "checks the claim": (
        [*WRITING, Refused("no"), seen(ABORTED, at(3))],
        replace(LOOKING, state=State.CHECK_CLAIM, identity=at(3), failure=f"no{ENDED_BY_THE_BROKER}"),
    ),
    "checks the claim of what nobody ended": (
        [*WRITING, Refused("no"), seen(ABORTED, at(2))],
        replace(LOOKING, state=State.CHECK_CLAIM),
    ),
    "checks the claim of an epoch that is empty": (
        [*WRITING, Refused("no"), seen(EMPTY, at(2))],
        replace(LOOKING, state=State.CHECK_CLAIM),
    ),
    "checks the claim before it asks for the next epoch again": (
        [*WRITING, Refused("no"), seen(EMPTY, at(3))],
        replace(LOOKING, state=State.CHECK_CLAIM, next_empty=True),
    ),
    "checks the claim of an id that is unknown": (
        [*WRITING, Refused("no"), seen(Coordinated.ABSENT, None)],
        replace(LOOKING, state=State.CHECK_CLAIM, identity=None),
    ),
    "takes back what is open": (
        [*WRITING, Refused("no"), seen(ONGOING, at(2))],
        replace(LOOKING, state=State.RETAKE),
    ),
    "takes back": (
        [*WRITING, Refused("no"), seen(ABORTED, at(2)), ProgressRead(CLAIM)],
        replace(LOOKING, state=State.RETAKE),
    ),
    "looks again": (
        [*WRITING, Refused("no"), seen(ONGOING, at(2)), Refused("again")],
        replace(LOOKING, attempt=2),
    ),
    "resolves": (
        [*WRITING, Refused("no"), seen(ABORTED, at(2)), ProgressRead(CLAIM), Initialised(at(4))],
        replace(LOOKING, state=State.RESOLVE, identity=at(4), fresh=True),
    ),
    "has found it committed": (
        [*WRITING, Refused("no"), seen(ABORTED, at(2)), ProgressRead(DONE), Initialised(at(4)), ProgressRead(DONE)],
        replace(RESTING, identity=at(4), progress=DONE, only_read=True),
    ),
    "has found it aborted": (
        [*WRITING, Refused("no"), seen(ABORTED, at(2)), ProgressRead(CLAIM), Initialised(at(4)), ProgressRead(CLAIM)],
        replace(RUNNING, identity=at(4), attempt=2, only_read=True),
    ),
    "has committed what it had found aborted": (
        [
            *WRITING,
            Refused("no"),
            seen(ABORTED, at(2)),
            ProgressRead(CLAIM),
            Initialised(at(4)),
            ProgressRead(CLAIM),
            Written({}),
            Stored(),
            Ended(at(5)),
        ],
        replace(RESTING, identity=at(5), progress=DONE, committing=at(4)),
    ),
    "looks, for whoever accepts its offsets has other progress": (
        [
            *WRITING,
            Refused("no"),
            seen(ABORTED, at(2)),
            ProgressRead(CLAIM),
            Initialised(at(4)),
            ProgressRead(CLAIM),
            Written({}),
            ProgressRead(DONE),
        ],
        replace(
            RUNNING,
            state=State.LOOK,
            identity=at(4),
            attempt=2,
            only_read=True,
            seen_claims=frozenset({"me"}),
            failure="other progress is committed than was read: whoever told it had been replaced as the group's coordinator",
        ),
    ),
    "resolves after a refresh that brought another producer id": (
        [*READY_1, Offered(BATCH), Initialised(Identity(8, 0))],
        replace(RUNNING, state=State.RESOLVE, identity=Identity(8, 0), fresh=True, attempt=0),
    ),
    "broken": (
        [*WRITING, WriteFailed(terminal=False, reason="lost"), Unreachable("gone")],
        replace(RESTING, state=State.BROKEN, fresh=False),
    ),
    "broken in its commit": (
        [*WRITING, Written(COUNTS), Audited(HELD), Stored(), Unreachable("gone")],
        replace(RESTING, state=State.BROKEN, fresh=False, committing=at(2)),
    ),
    "broken with a fresh epoch": (
        [*WRITING, Refused("no"), seen(ABORTED, at(2)), ProgressRead(CLAIM), Initialised(at(4)), Unreachable("gone")],
        replace(RESTING, state=State.BROKEN, identity=at(4), fresh=False),
    ),
    "looks after it broke": (
        [*WRITING, Unreachable("gone"), Start()],
        replace(RESTING, state=State.LOOK, fresh=False),
    ),
    "ready after it broke": (
        [
            *WRITING,
            Unreachable("gone"),
            Start(),
            seen(ABORTED, at(3)),
            ProgressRead(CLAIM),
            Initialised(at(4)),
            ProgressRead(DONE),
        ],
        replace(RESTING, identity=at(4), progress=DONE, only_read=True),
    ),
    "renews": ([*READY_2, Renew()], replace(RESTING, state=State.RENEW)),
    "refreshes for a renewal": (
        [*READY_1, Renew(), SourcesRead(CLAIM, SOURCES)],
        replace(RESTING, state=State.REFRESH, identity=at(1), fresh=False, attempt=1, renewed=SOURCES),
    ),
    "stores a renewal": (
        [*READY_2, Renew(), SourcesRead(CLAIM, SOURCES)],
        replace(RESTING, state=State.CLAIM_STORE, fresh=False, attempt=1, renewed=SOURCES),
    ),
    "has renewed": (
        [*READY_2, Renew(), SourcesRead(CLAIM, SOURCES), Stored(), Ended(at(3))],
        replace(RESTING, identity=at(3), committing=at(2)),
    ),
    "looks, for what is committed is not what it knows": (
        [*READY_2, Renew(), SourcesRead(DONE, SOURCES)],
        replace(
            RESTING,
            state=State.LOOK,
            fresh=False,
            failure="the committed progress is not what this driver has committed",
            renewed=(),
        ),
    ),
    "ready after a renewal that was refused": (
        [
            *READY_2,
            Renew(),
            SourcesRead(CLAIM, SOURCES),
            Refused("no"),
            seen(ABORTED, at(2)),
            ProgressRead(CLAIM),
            Initialised(at(4)),
            ProgressRead(CLAIM),
        ],
        replace(RESTING, identity=at(4), only_read=True),
    ),
    "has renewed behind a renewal that was refused": (
        [
            *READY_2,
            Renew(),
            SourcesRead(CLAIM, SOURCES),
            Refused("no"),
            seen(ABORTED, at(2)),
            ProgressRead(CLAIM),
            Initialised(at(4)),
            ProgressRead(CLAIM),
            Renew(),
            SourcesRead(CLAIM, SOURCES),
            Stored(),
            Ended(at(5)),
        ],
        replace(RESTING, identity=at(5), committing=at(4)),
    ),
    "broken in a renewal": (
        [*READY_2, Renew(), SourcesRead(CLAIM, SOURCES), Unreachable("gone")],
        replace(RESTING, state=State.BROKEN, fresh=False),
    ),
    "broken, for the progress is gone": (
        [*WRITING, Refused("no"), seen(ABORTED, at(2)), ProgressRead(None)],
        replace(RESTING, state=State.BROKEN, fresh=False),
    ),
    "stopped": (
        [*WRITING, Refused("no"), seen(EMPTY, at(9))],
        replace(
            LOOKING, state=State.STOPPED, batch=None, failure=f"{at(9)} holds the transactional id, we had {at(2)}"
        ),
    ),
    "still stopped": (
        [*WRITING, Refused("no"), seen(EMPTY, at(9)), Offered(BATCH), Start()],
        replace(
            LOOKING, state=State.STOPPED, batch=None, failure=f"{at(9)} holds the transactional id, we had {at(2)}"
        ),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_what_it_knows(name: str) -> None:
    events, known = CASES[name]
    machine = Protocol(Settings("me", epoch_per_end=True, max_attempts=2))
    for event in events:
        machine.handle(event)
    assert machine.context == known


ABORTING = replace(RUNNING, state=State.ABORT, failure="lost")
ABORT_1: list[tuple[Event, Context]] = [
    (WriteFailed(terminal=False, reason="lost"), ABORTING),
    (Ended(None), replace(ABORTING, state=State.SETTLE)),
    (seen(Coordinated.COMPLETING, at(3)), replace(ABORTING, state=State.SETTLE)),
    (seen(ABORTED, at(3)), replace(ABORTING, state=State.CHECK_CLAIM, identity=at(3))),
    (ProgressRead(CLAIM), replace(ABORTING, state=State.RETAKE, identity=at(3))),
    (Initialised(at(4)), replace(ABORTING, state=State.RESOLVE, identity=at(4), fresh=True)),
    (ProgressRead(CLAIM), replace(RUNNING, identity=at(4), attempt=2, only_read=True)),
]


def test_what_it_knows_while_it_aborts_on_version_1() -> None:
    machine = Protocol(Settings("me", epoch_per_end=False))
    for event in (*READY_1, Offered(BATCH), Initialised(at(2))):
        machine.handle(event)
    for event, known in ABORT_1:
        machine.handle(event)
        assert machine.context == known


def test_what_it_knows_at_first() -> None:
    fields: tuple[Any, ...] = (State.NEW, None, "", 0, False, None, False, False, False, frozenset(), None, None)
    of_a_batch: tuple[Any, ...] = (None, False, "", 0, "", False, (), "", None)
    assert Context() == Context(*(fields + of_a_batch))
    assert Settings("me", epoch_per_end=True) == Settings("me", True, OnMismatch.REFUSE, 5, False)
    assert LAST_EPOCH == 32766
    assert Describe() == Describe(settle=False)
    assert Ready() == Ready(None, committed=False, note="")


def test_a_note_is_told_once() -> None:
    machine = Protocol(Settings("me", epoch_per_end=True, allowed=OnMismatch.RESTART))
    for event in READY_2:
        machine.handle(event)
    machine.handle(Offered(Batch(3, "q", "", "d3")))
    assert "no progress is committed under this name" in machine.context.note
    machine.handle(WriteFailed(terminal=True, reason="bad"))
    machine.handle(Ended(at(3)))
    assert machine.context.note == ""


@pytest.mark.parametrize(
    ("state", "identity", "ours"),
    [
        (EMPTY, at(2), True),
        (EMPTY, at(3), True),
        (EMPTY, at(1), False),
        (EMPTY, at(4), False),
        (EMPTY, Identity(8, 2), False),
        (EMPTY, Identity(8, 3), False),
        (EMPTY, None, False),
        (ONGOING, at(2), True),
        (ONGOING, at(3), False),
        (ONGOING, Identity(8, 0), False),
        (ABORTED, at(2), True),
        (ABORTED, at(3), True),
        (ABORTED, at(4), False),
        (ABORTED, at(1), False),
    ],
)
def test_which_identity_is_still_ours(state: Coordinated, identity: Identity | None, ours: bool) -> None:
    assert goes_on(at(2), state, identity) is ours


@pytest.mark.parametrize(
    ("own", "state", "identity", "ours"),
    [
        (LAST_EPOCH, ABORTED, Identity(8, 0), True),
        (LAST_EPOCH, EMPTY, Identity(8, 0), True),
        (LAST_EPOCH, ONGOING, Identity(8, 0), False),
        (LAST_EPOCH, ABORTED, Identity(7, LAST_EPOCH + 1), True),
        (LAST_EPOCH, ABORTED, Identity(8, LAST_EPOCH + 1), False),
        (LAST_EPOCH, ABORTED, Identity(7, LAST_EPOCH + 2), False),
        (LAST_EPOCH, ABORTED, Identity(8, 1), False),
        (LAST_EPOCH, EMPTY, None, False),
        (LAST_EPOCH + 1, ABORTED, Identity(8, 0), True),
        (LAST_EPOCH - 1, ABORTED, Identity(8, 0), False),
        (LAST_EPOCH - 1, ABORTED, Identity(7, LAST_EPOCH), True),
        (0, ABORTED, Identity(8, LAST_EPOCH + 1), True),
        (0, ABORTED, Identity(7, LAST_EPOCH + 1), False),
        (0, EMPTY, Identity(8, LAST_EPOCH + 1), False),
        (0, ABORTED, Identity(8, LAST_EPOCH), False),
        (0, ABORTED, None, False),
        (0, ONGOING, Identity(8, LAST_EPOCH + 1), False),
        (1, ABORTED, Identity(8, LAST_EPOCH + 1), False),
    ],
)
def test_which_identity_is_ours_at_the_end_of_the_epochs(
    own: int, state: Coordinated, identity: Identity | None, ours: bool
) -> None:
    assert goes_on(at(own), state, identity) is ours


def test_what_nobody_knows_is_not_forgotten() -> None:
    assert is_forgotten(Snapshot(Coordinated.ABSENT, None), at(0)) is False
    assert is_forgotten(Snapshot(ABORTED, at(LAST_EPOCH + 1)), None) is False


def goes_on(own: Identity, state: Coordinated, identity: Identity | None) -> bool:
    machine = Protocol(Settings("me", epoch_per_end=True))
    for event in (*READY_1, Offered(BATCH), Initialised(own), Refused("no"), seen(state, identity)):
        machine.handle(event)
    return machine.context.state is not State.STOPPED


@pytest.mark.parametrize(
    ("own", "given", "state"),
    [
        (at(1), at(2), State.WRITE),
        (at(1), Identity(8, 0), State.RESOLVE),
        (at(LAST_EPOCH - 1), Identity(8, 0), State.RESOLVE),
        (at(LAST_EPOCH), Identity(8, 0), State.RESOLVE),
    ],
)
def test_a_refresh_that_brings_another_producer_id(own: Identity, given: Identity, state: State) -> None:
    machine = Protocol(Settings("me", epoch_per_end=False))
    for event in READY_1:
        machine.handle(event)
    machine.context = replace(machine.context, identity=own)
    machine.handle(Offered(BATCH))
    machine.handle(Initialised(given))
    assert machine.context.state is state


@pytest.mark.parametrize(("attempts", "starts"), [(1, 1), (2, 2)])
def test_each_start_before_a_claim_has_a_name_of_its_own(attempts: int, starts: int) -> None:
    machine = Protocol(Settings("me", epoch_per_end=True))
    for _ in range(attempts - 1):
        machine.handle(Start())
        machine.handle(Unreachable("gone"))
    machine.handle(Start())
    assert machine.context.starts == starts
    assert machine.context.name == ("me" if starts == 1 else f"me.{starts}")


@pytest.mark.parametrize("state", [EMPTY, ABORTED, ONGOING])
def test_whoever_initialised_an_id_that_was_unknown_is_another(state: Coordinated) -> None:
    """Perhaps it was our own InitProducerId, which was not answered: nothing tells, so this driver stops."""
    machine = Protocol(Settings("me", epoch_per_end=True))
    unknown = seen(Coordinated.ABSENT, None)
    for event in (*WRITING, Refused("no"), unknown, ProgressRead(CLAIM), Unreachable("gone"), Start()):
        machine.handle(event)
    assert machine.context.identity is None
    machine.handle(seen(state, Identity(8, 0)))
    assert machine.context.state is State.STOPPED


def test_a_failed_audit_names_five_partitions_and_what_they_hold() -> None:
    machine = Protocol(Settings("me", epoch_per_end=True))
    for event in (*WRITING, Written({("out", number): 2 for number in range(7)})):
        machine.handle(event)
    machine.handle(Audited({("out", 1): 2, ("out", 2): 1}))
    expected = [(0, 0), (2, 1), (3, 0), (4, 0), (5, 0)]
    assert machine.context.failure == "the audit failed: " + "; ".join(
        f"out-{number}: 2 written, {held} held" for number, held in expected
    )


def test_a_partition_that_the_audit_does_not_know_holds_nothing() -> None:
    machine = Protocol(Settings("me", epoch_per_end=True))
    for event in (*WRITING, Written({("out", 0): 1}), Audited({})):
        machine.handle(event)
    assert machine.context.state is State.ABORT
