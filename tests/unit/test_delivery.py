"""In which order each guarantee writes, commits and looks; the real parts are held together by tests/test_guarantees.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from onceflow.errors import AttemptsExhausted, InputError, OnceflowError, RecordTooLarge
from onceflow.transaction.coordinator import TransactionCoordinator, WriteBatch
from onceflow.transaction.delivery import Delivery
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.guarantee import Guarantee
from onceflow.transaction.messages import Counts, Identity, Ready
from onceflow.transaction.producer import Target
from onceflow.transaction.progress import Batch, SourceOffsets
from onceflow.transaction.requests import Requests
from onceflow.transaction.source_topics import SourceTopics
from onceflow.transaction.streaming_query import MicroBatch

BATCH = Batch(3, "q", "a", "b")
MARKED = Batch(3, "q", "a", "b", "of these topics")
END: SourceOffsets = {("in", 0): 10}
OURS = Identity(7, 5)
COUNTS: Counts = {("out", 0): 3}
IN_TRANSACTION = Target(OURS, "onceflow-orders", 2)


def plain(epoch: int, producer_id: int = 100) -> Target:
    return Target(Identity(producer_id, epoch), None, 2)


@dataclass
class Offers:
    """A batch, as Spark offers it."""

    batch: Batch = BATCH

    def kafka_end(self) -> SourceOffsets:
        return END


@dataclass
class Bench:
    """Everything that a delivery drives; ``done`` tells in which order."""

    guarantee: Guarantee
    is_committed_already: bool = False
    note: str = ""
    fails: list[Exception] = field(default_factory=list)  # the writes, one after the other
    changed: OnceflowError | None = None  # a topic, while it was read
    done: list[Any] = field(default_factory=list)
    id: str = "onceflow-orders"
    version: int = 2
    identities: int = 0

    def deliver(self, attempts: int = 3) -> bool:
        delivery = Delivery(
            "orders",
            self.guarantee,
            attempts,
            cast("Requests", self),
            cast("TransactionCoordinator", self),
            cast("Callable[[MicroBatch], SourceTopics]", self.topics_of),
            lambda: self.done.append("committed"),
        )
        return delivery.deliver(cast("MicroBatch", Offers()), self.write)

    def write(self, target: Target) -> Counts:
        self.done.append(target)
        if self.fails:
            raise self.fails.pop(0)
        return COUNTS

    # ---------------------------------------------------------------------------------------------------- source topics

    def topics_of(self, _: Offers) -> Bench:
        self.done.append("look at the topics")
        return self

    def marked(self, _: Offers) -> Offers:
        return Offers(MARKED)

    def check_unchanged(self) -> None:
        self.done.append("look again")
        if self.changed is not None:
            raise self.changed

    # ------------------------------------------------------------------------------------------------------ coordinator

    def ensure_started(self) -> None:
        self.done.append("start")

    def commit(self, batch: Batch, source_offsets: SourceOffsets, write: WriteBatch) -> Ready:
        assert source_offsets == END
        if self.is_committed_already:
            return Ready(committed=False, note=self.note)
        counts = dict(write(OURS, 1))
        self.done.append(("commit", batch, counts))
        return Ready(committed=True, note=self.note)

    # --------------------------------------------------------------------------------------------------------- requests

    def idempotent_identity(self) -> Identity:
        self.identities += 1
        return Identity(99 + self.identities, 0)

    def commit_offsets(self, offsets: SourceOffsets) -> None:
        self.done.append(("offsets", offsets))


def test_exactly_once_writes_in_the_transaction_that_commits_and_looks_at_the_topics_before_and_behind() -> None:
    bench = Bench(Guarantee.EXACTLY_ONCE)
    assert bench.deliver()
    assert bench.done == [
        *("start", "look at the topics", IN_TRANSACTION, "look again"),
        *(("commit", MARKED, COUNTS), "committed"),
    ]


def test_at_most_once_commits_before_it_writes() -> None:
    bench = Bench(Guarantee.AT_MOST_ONCE)
    assert bench.deliver()
    assert bench.done == ["start", "look at the topics", "look again", ("commit", MARKED, {}), "committed", plain(0)]


def test_at_least_once_writes_before_it_commits_the_offsets() -> None:
    bench = Bench(Guarantee.AT_LEAST_ONCE)
    assert bench.deliver()
    assert bench.done == ["look at the topics", plain(0), "look again", ("offsets", END)]


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE, Guarantee.AT_MOST_ONCE])
def test_what_was_committed_before_is_not_written(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, is_committed_already=True)
    assert not bench.deliver()
    assert bench.done == ["start", "look at the topics"]


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_a_topic_that_changed_while_it_was_read_keeps_all_from_being_committed(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, changed=InputError("in: deleted and made anew"))
    with pytest.raises(InputError):
        bench.deliver()
    assert bench.done[-1] == "look again"


def test_what_is_taken_up_as_on_mismatch_allows_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Bench(Guarantee.EXACTLY_ONCE, note="it does not continue the progress").deliver()
    assert [record.getMessage() for record in caplog.records] == [
        "pipeline orders took up batch 3, as on_mismatch allows: it does not continue the progress"
    ]
    caplog.clear()
    Bench(Guarantee.EXACTLY_ONCE).deliver()
    assert not caplog.records


# ----------------------------------------------------------------------------------------- attempts outside of a transaction


def test_at_least_once_tries_again_under_the_next_epoch(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Guarantee.AT_LEAST_ONCE, fails=[AttemptFailed("a sequence broke"), AttemptFailed("again")])
    assert bench.deliver(attempts=3)
    assert bench.done == ["look at the topics", plain(0), plain(1), plain(2), "look again", ("offsets", END)]
    assert [record.getMessage() for record in caplog.records] == [
        "attempt 1 failed: a sequence broke",
        "attempt 2 failed: again",
    ]


def test_an_identity_that_is_refused_is_not_used_again() -> None:
    bench = Bench(Guarantee.AT_LEAST_ONCE, fails=[IdentityRefused("no")])
    assert bench.deliver()
    assert bench.done[1:3] == [plain(0), plain(0, 101)]


@pytest.mark.parametrize("failure", [AttemptFailed, IdentityRefused])
def test_after_the_last_attempt_the_error_tells_what_comes_of_the_batch(failure: type[Exception]) -> None:
    cause = failure("the last one")
    bench = Bench(Guarantee.AT_LEAST_ONCE, fails=[failure("the first one"), cause])
    with pytest.raises(AttemptsExhausted) as exhausted:
        bench.deliver(attempts=2)
    assert exhausted.value.message == "pipeline 'orders': the write failed 2 times, last: the last one"
    assert exhausted.value.action == f"see the cause; {Guarantee.AT_LEAST_ONCE.of_a_write_that_failed}"
    assert exhausted.value.__cause__ is cause
    assert "look again" not in bench.done


def test_at_most_once_does_not_try_again() -> None:
    bench = Bench(Guarantee.AT_MOST_ONCE, fails=[AttemptFailed("no")])
    with pytest.raises(AttemptsExhausted, match="failed 1 times") as exhausted:
        bench.deliver(attempts=3)
    assert bench.done[-1] == plain(0)
    assert exhausted.value.action == f"see the cause; {Guarantee.AT_MOST_ONCE.of_a_write_that_failed}"


@pytest.mark.parametrize(("action", "told"), [("mend it", "mend it; "), ("", "")])
def test_an_error_of_the_batch_is_not_tried_again_and_tells_what_comes_of_it(action: str, told: str) -> None:
    error = RecordTooLarge("in-0, offset 3", action=action)
    bench = Bench(Guarantee.AT_LEAST_ONCE, fails=[error])
    with pytest.raises(RecordTooLarge) as raised:
        bench.deliver()
    assert raised.value is error
    assert error.action == f"{told}{Guarantee.AT_LEAST_ONCE.of_a_write_that_failed}"
    assert bench.done == ["look at the topics", plain(0)]
