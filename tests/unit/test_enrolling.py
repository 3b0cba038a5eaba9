"""A partition joins the transaction before its first write (KIP-98): what is asked, and what each answer leads to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.errors import BrokerUnreachable, NotAuthorized, TopicMissing
from onceflow.kafka.client import TRANSACTION, Again, Topic
from onceflow.transaction.enrolling import add_partitions, enrol
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.messages import Identity
from onceflow.transaction.talk import Forget, Leaders, Pace, Rest, Talk, ToCoordinator

OURS = Identity(7, 3)
NOT_ATTEMPTED = 55  # another partition of the request has the real error


def enrolling(patience: float = 60.0) -> Talk[None]:
    return enrol("onceflow-any", OURS, {("out", 0), ("out", 1)}, Pace(lambda: 0.0, patience, 1.0, 4.0))


def answered(*codes: int) -> Any:
    """An answer with a code for each partition."""
    parts = [SimpleNamespace(partition_error_code=code, partition_index=n) for n, code in enumerate(codes)]
    return SimpleNamespace(results_by_topic_v3_and_below=[SimpleNamespace(name="out", results_by_partition=parts)])


def test_what_is_asked_for_partitions() -> None:
    asked = add_partitions("onceflow-any", OURS, [("b", 1), ("a", 2), ("a", 0)])  # a set would be in order by chance
    fields = asked.to_dict()
    assert fields["v3_and_below_transactional_id"] == "onceflow-any"
    assert (fields["v3_and_below_producer_id"], fields["v3_and_below_producer_epoch"]) == (7, 3)
    assert fields["v3_and_below_topics"] == [
        {"name": "a", "partitions": [0, 2]},
        {"name": "b", "partitions": [1]},
    ]
    assert asked._max_version == 3


def test_the_transaction_coordinator_is_asked_and_all_is_well_when_each_partition_has_joined() -> None:
    talk = enrolling()
    asked = next(talk)
    assert isinstance(asked, ToCoordinator)
    assert asked.kind == TRANSACTION
    assert asked.request.to_dict()["v3_and_below_topics"] == [{"name": "out", "partitions": [0, 1]}]
    with pytest.raises(StopIteration):
        talk.send(answered(0, 0))


@pytest.mark.parametrize(("code", "wanted"), [(16, [Forget(TRANSACTION), Rest(1.0)]), (51, [Rest(1.0)])])
def test_a_coordinator_that_moved_is_forgotten_before_it_is_asked_again(code: int, wanted: list[Any]) -> None:
    talk = enrolling()
    first = next(talk)
    turns = [talk.send(answered(NOT_ATTEMPTED, code))]
    while not isinstance(turns[-1], ToCoordinator):
        turns.append(next(talk))
    assert turns == [*wanted, first]


def test_a_coordinator_that_never_answers_is_named() -> None:
    talk = enrolling(patience=0.0)
    next(talk)
    with pytest.raises(BrokerUnreachable, match="AddPartitionsToTxn: no usable answer in time, last: gone"):
        talk.throw(Again("gone"))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (47, IdentityRefused),
        (48, IdentityRefused),
        (90, IdentityRefused),
        (120, AttemptFailed),
        (NOT_ATTEMPTED, AttemptFailed),
        (29, NotAuthorized),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_partition_that_may_not_join_ends_the_attempt_and_is_named(
    code: int, error: type[Exception], first: bool
) -> None:
    """Whatever its place in the answer: the others were only not attempted."""
    talk = enrolling()
    next(talk)
    codes = (code, NOT_ATTEMPTED) if first else (NOT_ATTEMPTED, code)
    named = "out-0" if first or code == NOT_ATTEMPTED else "out-1"
    with pytest.raises(error, match=f"AddPartitionsToTxn of {named}: "):
        talk.send(answered(*codes))


UNKNOWN = 3


def looked_up(first: bool) -> tuple[Talk[None], Leaders, Any]:
    """Once one of the partitions was not known: where metadata is asked for it, and what was asked before."""
    talk = enrolling()
    asked = next(talk)
    turn = talk.send(answered(UNKNOWN, NOT_ATTEMPTED) if first else answered(NOT_ATTEMPTED, UNKNOWN))
    assert isinstance(turn, Leaders)
    return talk, turn, asked


@pytest.mark.parametrize("first", [True, False])
def test_a_partition_that_the_coordinator_has_not_heard_of_is_asked_for_again(first: bool) -> None:
    """Its topic was made just now, or is being made anew. Another coordinator would know no more."""
    talk, turn, asked = looked_up(first)
    assert turn == Leaders(frozenset({"out"}), refresh=True)
    assert talk.send({"out": Topic("out", {0: 1, 1: 1})}) == Rest(1.0)
    assert next(talk) == asked
    with pytest.raises(StopIteration):
        talk.send(answered(0, 0))


def test_a_partition_that_is_gone_ends_the_attempt_at_once() -> None:
    """Asked for again and again the transaction would stay open, and its readers wait."""
    talk, _, _ = looked_up(first=False)
    with pytest.raises(AttemptFailed, match="out-1: the topic has 1 partitions now, it was made anew with fewer"):
        talk.send({"out": Topic("out", {0: 1})})


def test_a_topic_that_is_gone_is_named_at_once() -> None:
    talk, _, _ = looked_up(first=True)
    missing = TopicMissing("topic out does not exist", action="create it", topics=("out",))
    with pytest.raises(TopicMissing, match="topic out does not exist"):
        talk.throw(missing)


def test_a_partition_that_stays_unknown_to_the_coordinator_alone_is_named() -> None:
    talk = enrolling(patience=0.0)
    next(talk)
    talk.send(answered(UNKNOWN, UNKNOWN))
    with pytest.raises(BrokerUnreachable, match=r"AddPartitionsToTxn: no usable .*UnknownTopicOrPartitionError \(3\)"):
        talk.send({"out": Topic("out", {0: 1, 1: 1})})


def test_a_missing_right_is_named() -> None:
    talk = enrolling()
    next(talk)
    with pytest.raises(NotAuthorized, match="the principal lacks WRITE on the topic, "):
        talk.send(answered(0, 29))
