"""The driver of the machine: which request an effect becomes, which event an error, and which error a halt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from onceflow.errors import (
    AttemptsExhausted,
    BrokerUnreachable,
    Fenced,
    NotAuthorized,
    OnceflowError,
    OutcomeUnknown,
    ProgressConflict,
    ProgressGone,
    RecordTooLarge,
)
from onceflow.transaction.coordinator import TransactionCoordinator
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.messages import (
    Audited,
    Coordinated,
    Counts,
    Described,
    Ended,
    Event,
    Identity,
    Initialised,
    ProgressRead,
    Ready,
    Refused,
    Snapshot,
    SourcesRead,
    Stored,
)
from onceflow.transaction.progress import Batch, Progress, SourceOffsets
from onceflow.transaction.protocol import IllegalMove, Protocol, Settings, State
from onceflow.transaction.requests import Requests

BATCH = Batch(0, "q", "", "d0")
NEXT = Batch(1, "q", "d0", "d1")
SOURCE = {("in", 0): 10}
COUNTS = {("out", 0): 3}
CLAIM = Progress.empty("me")
DONE = CLAIM.advanced(BATCH, "me")
Answers = list[Event | BaseException]


def at(epoch: int) -> Identity:
    return Identity(7, epoch)


def empty(epoch: int) -> Described:
    return Described(Snapshot(Coordinated.EMPTY, at(epoch)))


def aborted(epoch: int) -> Described:
    return Described(Snapshot(Coordinated.ABORTED, at(epoch)))


class Cluster:
    """Answers requests with the events of the script, raises its errors, and notes what it was asked."""

    name = "orders"

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def _answer(self, *asked: Any) -> Event:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def describe(self, settle: bool) -> Event:
        return self._answer("describe", settle)

    def initialise(self, expected: Identity | None) -> Event:
        return self._answer("initialise", expected)

    def read_progress(self) -> Event:
        return self._answer("progress")

    def read_sources(self) -> Event:
        return self._answer("sources")

    def audit(self, identity: Identity, counts: Counts) -> Event:
        return self._answer("audit", identity, dict(counts))

    def store(
        self,
        identity: Identity,
        progress: Progress,
        source: Mapping[tuple[str, int], int],
        read: ProgressRead | None,
    ) -> Event:
        return self._answer("store", identity, progress, dict(source), read)

    def end(self, identity: Identity, commit: bool) -> Event:
        return self._answer("end", identity, commit)


START: Answers = [empty(0), Initialised(at(1)), ProgressRead(None), empty(1), Stored(), Ended(at(2))]
BATCH_WRITTEN: Answers = [Audited(COUNTS), Stored(), Ended(at(3))]
Write = Callable[[Identity, int], Counts]


class Bench:
    """A coordinator on a scripted cluster, and how its writes end: with counts, or with an error."""

    def __init__(self, *answers: Event | BaseException, attempts: int = 3, writes: list[Any] | None = None) -> None:
        self.cluster = Cluster(list(answers))
        self.steps: list[tuple[str, int]] = []
        self.failures: list[str] = []
        self.writes = writes if writes is not None else [COUNTS]
        self.written: list[tuple[Identity, int]] = []
        machine = Protocol(Settings("me", epoch_per_end=True, max_attempts=attempts))
        self.coordinator = TransactionCoordinator(cast("Requests", self.cluster), machine, self._step)

    def _step(self, step: str, batch_id: int) -> None:
        self.steps.append((step, batch_id))
        self.failures.append(self.coordinator._protocol.context.failure)

    def write(self, identity: Identity, attempt: int) -> Counts:
        self.written.append((identity, attempt))
        outcome = self.writes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        counts: Counts = outcome
        return counts

    def commit(self, batch: Batch = BATCH, source: SourceOffsets = SOURCE) -> Ready:
        return self.coordinator.commit(batch, source, self.write)

    @property
    def stored(self) -> list[SourceOffsets]:
        """The source offsets of every store, the claim's (none) first."""
        return [asked[3] for asked in self.cluster.asked if asked[0] == "store"]


def test_every_effect_becomes_its_request() -> None:
    bench = Bench(*START, *BATCH_WRITTEN)
    bench.coordinator.start()
    assert bench.coordinator.state is State.READY
    assert bench.commit() == Ready(BATCH, committed=True)
    assert bench.cluster.asked == [
        ("describe", False),
        ("initialise", None),
        ("progress",),
        ("describe", False),
        ("store", at(1), CLAIM, {}, ProgressRead(None)),
        ("end", at(1), True),
        ("audit", at(2), COUNTS),
        ("store", at(2), DONE, SOURCE, None),
        ("end", at(2), True),
    ]
    assert bench.written == [(at(2), 1)]
    start = ["INSPECT", "FENCE", "READ", "CONFIRM", "CLAIM_STORE", "CLAIM_COMMIT"]
    assert bench.steps == [(step, -1) for step in start] + [(s, 0) for s in ("WRITE", "AUDIT", "STORE", "COMMIT")]


def test_it_starts_once_and_without_being_told() -> None:
    bench = Bench(*START, *BATCH_WRITTEN)
    assert bench.commit().committed
    assert bench.commit() == Ready(BATCH, committed=False)
    assert len(bench.cluster.asked) == 9


def test_each_batch_stores_its_own_source_offsets() -> None:
    bench = Bench(*START, *BATCH_WRITTEN, Audited(COUNTS), Stored(), Ended(at(4)), writes=[COUNTS, COUNTS])
    later = {("in", 0): 14, ("in", 1): 2}
    assert bench.commit(BATCH, SOURCE).committed
    assert bench.commit(NEXT, later).committed
    assert bench.stored == [{}, SOURCE, later]


def test_a_further_attempt_stores_the_source_offsets_of_the_batch() -> None:
    bench = Bench(*START, Ended(at(3)), Audited({}), Ended(at(4)), Audited(COUNTS), Stored(), Ended(at(5)))
    bench.writes = [AttemptFailed("a task was lost"), COUNTS, COUNTS]
    assert bench.commit().committed
    assert [asked for asked in bench.cluster.asked if asked[0] == "end"][1:] == [
        ("end", at(2), False),
        ("end", at(3), False),
        ("end", at(4), True),
    ]
    assert bench.stored == [{}, SOURCE]


def test_nobody_needs_to_be_told_of_the_steps() -> None:
    cluster = Cluster([*START, *BATCH_WRITTEN])
    coordinator = TransactionCoordinator(cast("Requests", cluster), Protocol(Settings("me", epoch_per_end=True)))
    assert coordinator.commit(BATCH, SOURCE, lambda identity, attempt: COUNTS).committed


def test_a_transaction_that_is_being_completed_is_waited_for() -> None:
    """Also an expected identity is passed on."""
    completing = Described(Snapshot(Coordinated.COMPLETING, at(3)))
    bench = Bench(*START, completing, aborted(3), ProgressRead(CLAIM), Initialised(at(4)), ProgressRead(CLAIM))
    bench.cluster.answers += [Audited(COUNTS), Stored(), Ended(at(5))]
    bench.writes = [IdentityRefused("fenced or timed out"), COUNTS]
    assert bench.commit().committed
    assert bench.cluster.asked[6:10] == [
        ("describe", False),
        ("describe", True),
        ("progress",),
        ("initialise", at(3)),
    ]
    assert bench.written == [(at(2), 1), (at(4), 2)]
    assert bench.failures[bench.steps.index(("LOOK", 0))] == "fenced or timed out"


# ----------------------------------------------------------------------------------------------------- nothing to commit


def test_a_renewal_commits_the_claim_with_the_source_offsets_that_are_committed() -> None:
    kept = ((("in", 0), 10), (("in", 1), 4))
    bench = Bench(*START, *BATCH_WRITTEN, SourcesRead(DONE, kept), Stored(), Ended(at(4)))
    assert bench.commit().committed
    assert bench.coordinator.renew()
    assert bench.cluster.asked[9:] == [("sources",), ("store", at(3), DONE, dict(kept), None), ("end", at(3), True)]
    assert [step for step, _ in bench.steps[-3:]] == ["RENEW", "CLAIM_STORE", "CLAIM_COMMIT"]


def test_a_name_that_was_not_claimed_is_not_renewed() -> None:
    """The start that would claim it could fence a driver that came meanwhile."""
    bench = Bench(BrokerUnreachable("gone"))
    assert bench.coordinator.renew() is False
    with pytest.raises(BrokerUnreachable):
        bench.coordinator.start()
    assert not bench.coordinator.renew()
    assert bench.cluster.asked == [("describe", False)]


def test_a_renewal_that_was_not_answered_is_looked_up_by_the_next() -> None:
    bench = Bench(*START, SourcesRead(CLAIM, ()), Stored(), BrokerUnreachable("gone"))
    bench.coordinator.start()
    with pytest.raises(BrokerUnreachable):
        bench.coordinator.renew()
    bench.cluster.answers += [aborted(3), ProgressRead(CLAIM), Initialised(at(4)), ProgressRead(CLAIM)]
    bench.cluster.answers += [SourcesRead(CLAIM, ()), Stored(), Ended(at(5))]
    assert bench.coordinator.renew()
    assert [step for step, _ in bench.steps[-7:]] == [
        *("LOOK", "CHECK_CLAIM", "RETAKE", "RESOLVE"),
        *("RENEW", "CLAIM_STORE", "CLAIM_COMMIT"),
    ]


def looked(epoch: int) -> Answers:
    return [aborted(epoch), ProgressRead(CLAIM), Initialised(at(epoch + 1)), ProgressRead(CLAIM)]


def test_a_renewal_that_had_to_look_first_comes_again_at_once() -> None:
    """With the identity that it has just been given: the next look may find it forgotten again."""
    bench = Bench(*START, SourcesRead(CLAIM, ()), Refused("unknown producer id"), *looked(3))
    bench.cluster.answers += [SourcesRead(CLAIM, ()), Stored(), Ended(at(5))]
    bench.coordinator.start()
    assert bench.coordinator.renew()
    assert bench.cluster.asked[-2:] == [("store", at(4), CLAIM, {}, ProgressRead(CLAIM)), ("end", at(4), True)]


def test_a_renewal_comes_again_once() -> None:
    bench = Bench(*START, *[SourcesRead(CLAIM, ()), Refused("odd"), *looked(3), SourcesRead(CLAIM, ()), Refused("odd")])
    bench.cluster.answers += looked(4)
    bench.coordinator.start()
    assert not bench.coordinator.renew()
    assert bench.coordinator.state is State.READY
    assert not bench.cluster.answers


def test_progress_that_is_gone_is_no_other_driver() -> None:
    bench = Bench(*START, aborted(3), ProgressRead(None), writes=[IdentityRefused("unknown producer id")])
    with pytest.raises(
        ProgressGone, match=r"'orders', batch 0: the committed progress is gone \(group onceflow-orders,"
    ) as caught:
        bench.commit()
    assert "nothing was committed for offsets.retention.minutes, or" in caught.value.action
    assert "resume" in caught.value.action
    assert "restart" in caught.value.action


# -------------------------------------------------------------------------------------------------------- writes that fail


def test_an_attempt_that_failed_is_aborted_and_made_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(*START, Ended(at(3)), Audited(COUNTS), Stored(), Ended(at(4)))
    bench.writes = [AttemptFailed("a task was lost"), COUNTS]
    assert bench.commit().committed
    assert bench.cluster.asked[6] == ("end", at(2), False)
    assert bench.written == [(at(2), 1), (at(3), 2)]
    assert bench.failures[bench.steps.index(("ABORT", 0))] == "a task was lost"
    assert "batch 0, attempt 1 failed: a task was lost" in caplog.text


def test_attempts_come_to_an_end_with_their_cause() -> None:
    failures = [AttemptFailed("one"), AttemptFailed("two")]
    bench = Bench(*START, Ended(at(3)), Ended(at(4)), attempts=2, writes=list(failures))
    with pytest.raises(
        AttemptsExhausted, match="pipeline 'orders', batch 0: the batch failed too often: two"
    ) as caught:
        bench.commit()
    assert caught.value.__cause__ is failures[1]
    assert caught.value.fields == {"name": "orders", "batch_id": 0}
    assert "runs the batch again" in caught.value.action


@pytest.mark.parametrize("error", [ValueError("no such column"), BrokerUnreachable("no record was acknowledged")])
def test_what_the_batch_itself_raises_comes_out_once_it_is_aborted(error: Exception) -> None:
    error.__cause__ = KeyError("why")
    bench = Bench(*START, Ended(at(3)), writes=[error])
    with pytest.raises(type(error)) as caught:
        bench.commit()
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)
    assert bench.cluster.asked[6:] == [("end", at(2), False)]
    assert bench.coordinator.state is State.BROKEN


# ---------------------------------------------------------------------------------------------------- requests that fail


@pytest.mark.parametrize(("number", "step"), [(6, "audit"), (7, "store")])
def test_what_is_denied_for_good_aborts_what_is_open(number: int, step: str) -> None:
    denied = NotAuthorized("the principal lacks READ")
    answers = [*START, *BATCH_WRITTEN[: number - 6], denied, Ended(at(3))]
    bench = Bench(*answers)
    with pytest.raises(NotAuthorized) as caught:
        bench.commit()
    assert caught.value is denied
    assert [asked[0] for asked in bench.cluster.asked[6:]] == [*["audit", "store"][: number - 6], step, "end"]
    assert bench.cluster.asked[-1] == ("end", at(2), False)


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("kind", [NotAuthorized, BrokerUnreachable])
def test_what_fails_at_the_start_is_raised_as_it_is(number: int, kind: type[OnceflowError]) -> None:
    error = kind("no")
    bench = Bench(*START[:number], error)
    with pytest.raises(kind) as caught:
        bench.coordinator.start()
    assert caught.value is error
    assert error.message == "no"
    assert bench.coordinator.state is State.BROKEN


def test_an_abort_without_an_answer_does_not_hide_why_the_batch_failed() -> None:
    """That nobody answers mends itself; the record does not."""
    bench = Bench(
        *START, BrokerUnreachable("no broker answers"), writes=[RecordTooLarge("a record of 9 MB\nby itself")]
    )
    with pytest.raises(BrokerUnreachable, match=r"no broker answers; before that: a record of 9 MB$"):
        bench.commit()


def test_a_batch_that_is_itself_at_fault_is_told_to_be_invisible_once_it_is_aborted() -> None:
    """By who knows: what refuses a record may write outside of a transaction as well."""
    bench = Bench(*START, Ended(at(3)), writes=[RecordTooLarge("a record of 9 MB", action="split it")])
    with pytest.raises(RecordTooLarge) as caught:
        bench.commit()
    assert caught.value.action == "split it; nothing of the batch is visible"


@pytest.mark.parametrize("number", [6, 7])
def test_a_broker_that_does_not_answer_leaves_the_batch_open(number: int) -> None:
    """It may come back: nothing is aborted blindly, the next batch looks."""
    gone = BrokerUnreachable("gone")
    bench = Bench(*START, *BATCH_WRITTEN[: number - 6], gone, aborted(3))
    with pytest.raises(BrokerUnreachable) as caught:
        bench.commit()
    assert caught.value is gone
    bench.cluster.answers += [ProgressRead(CLAIM), Initialised(at(4)), ProgressRead(CLAIM)]
    bench.cluster.answers += [Audited(COUNTS), Stored(), Ended(at(5))]
    bench.writes = [COUNTS]
    assert bench.commit().committed
    assert bench.steps[-8:] == [
        *[(step, 0) for step in ("LOOK", "CHECK_CLAIM", "RETAKE", "RESOLVE")],
        *[(step, 0) for step in ("WRITE", "AUDIT", "STORE", "COMMIT")],
    ]


@pytest.mark.parametrize("error", [BrokerUnreachable("gone"), NotAuthorized("denied")])
def test_a_commit_without_an_answer_is_never_aborted(error: OnceflowError) -> None:
    bench = Bench(*START, Audited(COUNTS), Stored(), error)
    with pytest.raises(OutcomeUnknown, match="a commit was sent and not answered: ") as caught:
        bench.commit()
    assert error.message in caught.value.message
    assert caught.value.__cause__ is error
    assert "finds out whether the batch is committed" in caught.value.action
    assert [asked for asked in bench.cluster.asked if asked[0] == "end" and not asked[2]] == []


def test_a_driver_that_was_fenced_says_so_from_then_on() -> None:
    bench = Bench(*START[:3], empty(2))
    with pytest.raises(Fenced, match=r"\] pipeline 'orders': another driver took over: ") as caught:
        bench.coordinator.start()
    assert caught.value.fields == {"name": "orders", "batch_id": -1, "claims": {"", "me"}}
    assert caught.value.__cause__ is None
    assert "stop it, then start this one again" in caught.value.action
    with pytest.raises(Fenced):
        bench.commit()


def test_a_conflict_names_the_choices() -> None:
    bench = Bench(*START, ProgressRead(CLAIM))
    with pytest.raises(ProgressConflict, match="batch 1: checkpoint and committed progress disagree: ") as caught:
        bench.commit(NEXT)
    assert "resume" in caught.value.action
    assert "restart" in caught.value.action


def test_an_id_that_changes_hands_again_and_again() -> None:
    bench = Bench(*START, aborted(3), ProgressRead(CLAIM), Refused("fenced"), attempts=1)
    bench.writes = [IdentityRefused("timed out")]
    bench.cluster.answers += [aborted(3), ProgressRead(CLAIM), Refused("fenced")]
    with pytest.raises(BrokerUnreachable, match=r"the cluster did not answer: .* changes hands") as caught:
        bench.commit()
    assert "nothing is lost" in caught.value.action


def test_the_cause_of_one_batch_is_not_told_of_the_next() -> None:
    looks: Answers = [aborted(3), ProgressRead(CLAIM), Initialised(at(4)), ProgressRead(CLAIM)]
    bench = Bench(*START, Ended(at(3)), *looks, ProgressRead(CLAIM), writes=[ValueError("bad"), COUNTS])
    with pytest.raises(ValueError, match="bad"):
        bench.commit()
    with pytest.raises(ProgressConflict) as caught:
        bench.commit(NEXT)
    assert caught.value.__cause__ is None


# ------------------------------------------------------------------------------------------------------------- unforeseen


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_whatever_nobody_foresaw_is_raised_and_looked_into(error: BaseException) -> None:
    bench = Bench(*START, error)
    with pytest.raises(type(error)):
        bench.commit()
    assert bench.coordinator.state is State.BROKEN


INTERRUPTED: Answers = [KeyboardInterrupt(), RuntimeError("a bug")]


@pytest.mark.parametrize("error", INTERRUPTED)
@pytest.mark.parametrize("number", range(len(START)))
def test_after_an_interrupt_anywhere_in_the_start_it_has_to_start_again(number: int, error: BaseException) -> None:
    bench = Bench(*START[:number], error)
    with pytest.raises(type(error)):
        bench.coordinator.start()
    assert bench.coordinator.state is State.BROKEN


@pytest.mark.parametrize("error", INTERRUPTED)
@pytest.mark.parametrize("number", range(len(BATCH_WRITTEN)))
def test_a_batch_that_is_interrupted_anywhere_is_looked_for_and_written_again(
    number: int, error: BaseException
) -> None:
    """Also beside the commit: it was not sent, and the coordinator aborts what is open for the next identity."""
    bench = Bench(*START, *BATCH_WRITTEN[:number], error, writes=[COUNTS, COUNTS])
    with pytest.raises(type(error)):
        bench.commit()
    assert bench.coordinator.state is State.BROKEN
    ongoing = Described(Snapshot(Coordinated.ONGOING, at(2)))
    bench.cluster.answers += [ongoing, Initialised(at(3)), ProgressRead(CLAIM)]
    bench.cluster.answers += [Audited(COUNTS), Stored(), Ended(at(4))]
    assert bench.commit() == Ready(BATCH, committed=True)
    assert [identity for identity, _ in bench.written] == [at(2), at(3)]
    assert bench.stored[-1] == SOURCE


@pytest.mark.parametrize("error", INTERRUPTED)
def test_a_commit_that_is_interrupted_after_it_was_sent_is_found(error: BaseException) -> None:
    bench = Bench(*START, Audited(COUNTS), Stored(), error)
    with pytest.raises(type(error)):
        bench.commit()
    assert bench.coordinator.state is State.BROKEN
    bench.cluster.answers += [aborted(3), ProgressRead(DONE), Initialised(at(4)), ProgressRead(DONE)]
    assert not bench.commit().committed, "it was committed before it was offered again"
    assert len(bench.written) == 1
    assert [asked for asked in bench.cluster.asked if asked[0] == "end" and not asked[2]] == []


def test_an_event_that_fits_no_state() -> None:
    bench = Bench(*START, Stored())
    with pytest.raises(IllegalMove, match="AUDIT has no transition for Stored"):
        bench.commit()
    assert bench.coordinator.state is State.BROKEN


def test_the_start_writes_nothing() -> None:
    """Were a batch still known at the start, its records would have to come from somewhere."""
    bench = Bench(*START)
    bench.coordinator.start()
    assert bench.written == []
