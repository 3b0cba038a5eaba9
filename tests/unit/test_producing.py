"""What a producer sends when, and what each answer leads to: the talks of a write, held by hand with a clock of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.errors import BrokerUnreachable, InputError, NotAuthorized
from onceflow.kafka.client import TRANSACTION, Again, Topic
from onceflow.transaction.enrolling import add_partitions, enrol
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.lane import SEQUENCE_SPACE, Lane, Meaning
from onceflow.transaction.messages import Identity
from onceflow.transaction.producing import (
    BUFFER_BYTES,
    IN_FLIGHT_PER_BROKER,
    REQUEST_BYTES,
    Answered,
    Await,
    Producing,
    Send,
    Target,
    produce_request,
)
from onceflow.transaction.talk import Forget, Leaders, Pace, Rest, Talk, ToCoordinator, repeated

OURS = Identity(7, 3)
V1, V2 = Target(OURS, "onceflow-any", 1), Target(OURS, "onceflow-any", 2)
PATIENCE, FIRST, LONGEST = 60.0, 1.0, 4.0
NOT_LEADER, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER = 6, 19, 45


class Hand:
    """Holds the talks of one producer. ``sent`` are the (partition, sequence) of each request, the newest last."""

    def __init__(self, target: Target = V2, leaders: dict[int, int] | None = None) -> None:
        self.now = 100.0
        self.pace = Pace(lambda: self.now, PATIENCE, FIRST, LONGEST)
        self.producing = Producing(target, self.pace)
        self.leaders = leaders or {0: 1, 1: 1}
        self.sent: list[list[tuple[int, int]]] = []
        self.nodes: list[int] = []
        self.enrolled: list[Any] = []
        self.open: list[Send] = []
        self.answers: Iterator[Callable[[], Answered | None]] = iter(())
        self.looked_up = 0

    def submit(self, *values: tuple[int, int], size: int = 10) -> None:
        """Batches of one record each: (partition, size) is told by ``size`` alone."""
        for partition, count in values:
            self.run(self.producing.submitted("out", partition, count, lambda sequence: bytes(size)))

    def finish(self, *answers: Callable[[], Answered | None]) -> Any:
        """Ends the write; each wait is answered by the next of ``answers``."""
        self.answers = iter(answers)
        return self.run(self.producing.finished())

    def run(self, talk: Talk[Any]) -> Any:
        answer: Any = None
        try:
            while True:
                answer = self.perform(talk.send(answer))
        except StopIteration as end:
            return end.value

    def perform(self, turn: Any) -> Any:
        match turn:
            case Send(leader, _, batches):
                self.sent.append([(lane.partition, sealed.sequence) for lane, sealed in batches])
                self.nodes.append(leader)
                self.open.append(turn)
                return None
            case Await(until):
                answered = next(self.answers)()
                if answered is None:
                    self.now = until if until is not None else self.now + 1
                return answered
            case Leaders(_, refresh):
                self.looked_up += refresh
                return {"out": Topic("out", dict(self.leaders))}
            case ToCoordinator(kind, request):
                assert kind == TRANSACTION
                self.enrolled.append([t["partitions"] for t in request.to_dict()["v3_and_below_topics"]])
                part = SimpleNamespace(partition_error_code=0, partition_index=0)
                result = SimpleNamespace(name="out", results_by_partition=[part])
                return SimpleNamespace(results_by_topic_v3_and_below=[result])
        raise AssertionError(turn)

    def answer(self, code: int = 0, number: int = 0) -> Callable[[], Answered]:
        """The leader's answer to the oldest open request (or the one with this number)."""

        def take() -> Answered:
            turn = self.open.pop(number)
            parts = [
                SimpleNamespace(index=lane.partition, error_code=code, error_message=None) for lane, _ in turn.batches
            ]
            return Answered(
                turn.leader,
                turn.batches,
                SimpleNamespace(responses=[SimpleNamespace(name="out", partition_responses=parts)]),
            )

        return take

    def broken(self) -> Answered:
        """The connection broke before the oldest open request was answered."""
        turn = self.open.pop(0)
        return Answered(turn.leader, turn.batches, ConnectionError("gone"))


def nothing() -> None:
    """No answer comes while one waits."""


# ------------------------------------------------------------------------------------------------------------- repairs


def test_what_was_in_flight_when_the_connection_broke_is_sent_again_oldest_first_and_one_at_a_time() -> None:
    hand = Hand()
    hand.submit((0, 1), (0, 2), (0, 3))
    assert hand.sent == [[(0, 0)], [(0, 1)], [(0, 3)]]
    counts = hand.finish(hand.broken, hand.broken, hand.broken, nothing, hand.answer(), hand.answer(), hand.answer())
    assert hand.sent[3:] == [[(0, 0)], [(0, 1)], [(0, 3)]]
    assert counts == {("out", 0): 6}
    assert not hand.open


def test_nothing_is_sent_while_a_gap_is_open_and_then_all_of_it_in_order() -> None:
    hand = Hand()
    hand.submit((0, 1), (0, 1), (0, 1))
    sent_before: list[int] = []

    def counted(answer: Callable[[], Answered]) -> Callable[[], Answered]:
        def take() -> Answered:
            sent_before.append(len(hand.sent))
            return answer()

        return take

    hand.finish(
        counted(hand.answer(NOT_ENOUGH_REPLICAS)),
        counted(hand.answer(OUT_OF_ORDER)),
        counted(hand.answer(OUT_OF_ORDER)),
        nothing,
        counted(hand.answer()),
        counted(hand.answer()),
        counted(hand.answer()),
    )
    assert sent_before == [3, 3, 3, 4, 5, 6]
    assert hand.sent[3:] == [[(0, 0)], [(0, 1)], [(0, 2)]]


def test_what_waits_is_not_sent_past_a_gap() -> None:
    hand = Hand()
    hand.submit(*[(0, 1)] * 6)
    assert len(hand.sent) == 5
    after_the_first: list[int] = []

    def second() -> Answered:
        after_the_first.append(len(hand.sent))
        return hand.answer()()

    answers = [hand.answer(OUT_OF_ORDER)] * 3
    hand.finish(hand.answer(NOT_ENOUGH_REPLICAS), second, *answers, nothing, *[hand.answer()] * 5)
    assert after_the_first == [5]
    assert hand.sent[5:] == [[(0, n)] for n in (0, 2, 3, 4, 5)]


def test_a_batch_that_overtook_a_lost_one_is_no_end_of_the_attempt() -> None:
    """The answer to the second comes first; the first is still on its way."""
    hand = Hand()
    hand.submit((0, 1), (0, 1))
    hand.finish(hand.answer(OUT_OF_ORDER, 1), hand.broken, nothing, hand.answer(), hand.answer())
    assert hand.sent[2:] == [[(0, 0)], [(0, 1)]]


def test_a_gap_before_the_oldest_batch_ends_the_attempt() -> None:
    hand = Hand()
    hand.submit((0, 1), (0, 1))
    with pytest.raises(AttemptFailed, match="produce to out-0: OutOfOrderSequenceNumberError"):
        hand.finish(hand.answer(OUT_OF_ORDER))


def test_after_a_repair_several_are_in_flight_again() -> None:
    hand = Hand()
    hand.submit((0, 1))
    hand.finish(hand.broken, nothing, hand.answer())
    hand.submit((0, 1), (0, 1))
    assert hand.sent[-2:] == [[(0, 1)], [(0, 2)]]


def test_a_repair_goes_to_whoever_leads_now() -> None:
    hand = Hand()
    hand.submit((0, 1))
    hand.leaders = {0: 2, 1: 1}
    hand.finish(hand.answer(NOT_LEADER), nothing, hand.answer())
    assert hand.nodes == [1, 2]
    assert hand.looked_up == 1


def test_pauses_before_repairs_grow_and_are_short_again_after_a_success() -> None:
    hand = Hand()
    hand.submit((0, 1))
    times: list[float] = []

    def failing() -> Answered:
        times.append(hand.now)
        return hand.broken()

    hand.finish(*[failing, nothing] * 5, hand.answer())
    assert [b - a for a, b in pairwise(times)] == [1.0, 1.5, 2.25, 3.375]
    hand.submit((0, 1))
    before = hand.now
    hand.finish(failing, nothing, hand.answer())
    assert hand.now - before == FIRST


# --------------------------------------------------------------------------------------------------------- what is sent


def test_a_partition_has_five_batches_in_flight() -> None:
    hand = Hand()
    hand.submit(*[(0, 1)] * 7)
    assert len(hand.sent) == 5
    hand.finish(*[hand.answer()] * 7)
    assert [at for at, *_ in hand.sent] == [(0, n) for n in range(7)]


def test_a_partition_is_not_ready_for_a_sixth_whatever_its_broker_takes() -> None:
    lane = Lane("out", 0, 1, Hand().pace)
    for _ in range(6):
        lane.append(1, b"")
    taken = 0
    while lane.ready(0.0):
        lane.take()
        taken += 1
    assert taken == 5


def test_a_broker_has_five_requests_in_flight_and_the_next_one_carries_what_waits() -> None:
    hand = Hand(leaders=dict.fromkeys(range(8), 1))
    hand.submit(*[(partition, 1) for partition in range(8)])
    assert hand.sent == [[(n, 0)] for n in range(IN_FLIGHT_PER_BROKER)]
    hand.finish(hand.answer(), *[hand.answer()] * 5)
    assert hand.sent[5:] == [[(5, 0), (6, 0), (7, 0)]]


def test_a_request_is_bounded_in_size_but_for_its_first_batch() -> None:
    hand = Hand(leaders=dict.fromkeys(range(8), 1))
    hand.submit(*[(n, 1) for n in range(5)])
    hand.submit((5, 1), (6, 1), size=REQUEST_BYTES // 2)
    hand.submit((7, 1), size=REQUEST_BYTES + 1)
    hand.finish(*[hand.answer()] * 7)
    assert hand.sent[5:] == [[(5, 0), (6, 0)], [(7, 0)]]


def test_whoever_submits_waits_while_too_much_is_buffered() -> None:
    hand = Hand()
    hand.submit((0, 1), (0, 1), size=BUFFER_BYTES // 2)
    hand.answers = iter([hand.answer()])
    hand.submit((0, 1), size=1)
    assert len(hand.open) == 2
    with pytest.raises(StopIteration):
        next(hand.answers)


def test_sequences_wrap() -> None:
    lane = Lane("out", 0, 1, Hand().pace, next_sequence=SEQUENCE_SPACE - 1)
    assert lane.base_sequence == SEQUENCE_SPACE - 1
    lane.append(2, b"")
    assert lane.base_sequence == 1


@pytest.mark.parametrize(("target", "wanted"), [(V1, [[[0]], [[1]]]), (V2, []), (Target(OURS, None, 1), [])])
def test_partitions_join_the_transaction_before_their_first_batch_in_version_1(target: Target, wanted: Any) -> None:
    hand = Hand(target)
    hand.submit((0, 1), (0, 1), (1, 1), (0, 1))
    assert hand.enrolled == wanted


@pytest.mark.parametrize(
    ("target", "least", "most"),
    [(V1, 3, 11), (V2, 12, 12), (Target(OURS, None, 1), 3, 11), (Target(OURS, None, 2), 3, 12)],
)
def test_the_version_of_the_request_is_that_of_the_transaction(target: Target, least: int, most: int) -> None:
    lane = Lane("out", 3, 1, Hand().pace)
    lane.append(1, b"data")
    request = produce_request(target, [(lane, lane.take())])
    assert (request._min_version, request._max_version) == (least, most)
    assert (request.acks, request.transactional_id) == (-1, target.transactional_id)


# ----------------------------------------------------------------------------------------------------------- what it ends


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (47, IdentityRefused),
        (90, IdentityRefused),
        (29, NotAuthorized),
        (10, InputError),
        (120, AttemptFailed),
        (2, AttemptFailed),
    ],
)
def test_what_ends_an_attempt(code: int, error: type[Exception]) -> None:
    hand = Hand()
    hand.submit((0, 1))
    with pytest.raises(error):
        hand.finish(hand.answer(code))


def test_every_meaning_is_that_of_some_code() -> None:
    lane = Lane("out", 0, 1, Hand().pace)
    for _ in range(2):
        lane.append(1, b"")
    oldest, newest = lane.take(), lane.take()
    met = {lane.meaning(oldest, code) for code in range(-1, 140)} | {lane.meaning(newest, OUT_OF_ORDER)}
    assert met == set(Meaning)


def test_patience_ends_when_nothing_is_acknowledged_for_so_long() -> None:
    hand = Hand()
    hand.submit((0, 1), (0, 1))
    with pytest.raises(BrokerUnreachable, match=r"for 60 s; waiting: out-0 \(no answer\)"):
        hand.finish(*[nothing] * 100)
    assert hand.now == 161.0


def test_each_acknowledgement_and_each_further_batch_begins_patience_anew() -> None:
    hand = Hand()
    hand.submit((0, 1), (0, 1))
    hand.now += PATIENCE - 1
    hand.submit((0, 1))  # the query took its time
    hand.now += PATIENCE - 2
    hand.finish(nothing, hand.answer(), *[nothing] * 60, hand.answer(), *[nothing] * 60, hand.answer())


def test_patience_ends_as_well_while_answers_come_that_say_later() -> None:
    hand = Hand()
    hand.submit((0, 1))
    with pytest.raises(BrokerUnreachable, match=r"out-0 \(NotEnoughReplicasError \(19\)\)"):
        hand.finish(*[hand.answer(NOT_ENOUGH_REPLICAS), nothing] * 100)


def test_patience_is_looked_at_before_a_repair() -> None:
    hand = Hand()
    hand.submit((0, 1))

    def late() -> Answered:
        hand.now += PATIENCE + 1
        return hand.answer(NOT_ENOUGH_REPLICAS)()

    with pytest.raises(BrokerUnreachable):
        hand.finish(late)
    assert hand.looked_up == 0


# ----------------------------------------------------------------------------------------------------------- repetition


def test_a_question_is_repeated_with_growing_pauses_and_once_more_at_the_deadline() -> None:
    now, asked, pauses = 0.0, [], []

    def once() -> Talk[None]:
        asked.append(now)
        yield ToCoordinator(TRANSACTION, None)

    def hold(talk: Talk[None]) -> None:
        nonlocal now
        turn = next(talk)
        while True:
            if isinstance(turn, Rest):
                pauses.append(turn.pause)
                now += turn.pause
                turn = next(talk)
            else:
                turn = talk.throw(Again("later"))

    with pytest.raises(BrokerUnreachable, match="Something: no usable answer in time, last: later"):
        hold(repeated(once, "Something", Pace(lambda: now, 10.0, FIRST, LONGEST)))
    assert pauses == [1.0, 1.5, 2.25, 3.375, 1.875]
    assert asked == [0.0, 1.0, 2.5, 4.75, 8.125, 10.0]


@pytest.mark.parametrize(("code", "wanted"), [(16, [Forget, Rest]), (51, [Rest])])
def test_a_coordinator_that_moved_is_forgotten_before_partitions_are_added_again(code: int, wanted: list[type]) -> None:
    hand = Hand(V1)
    talk = hand.producing.submitted("out", 0, 1, lambda sequence: b"")
    assert isinstance(next(talk), Leaders)
    assert isinstance(talk.send({"out": Topic("out", {0: 1})}), ToCoordinator)
    parts = [SimpleNamespace(partition_error_code=each, partition_index=n) for n, each in enumerate((55, code))]
    answer: Any = SimpleNamespace(
        results_by_topic_v3_and_below=[SimpleNamespace(name="out", results_by_partition=parts)]
    )
    turns = []
    while not isinstance(turn := talk.send(answer), ToCoordinator):
        turns.append(type(turn))
        answer = None
    assert turns == wanted


def test_what_is_asked_for_partitions() -> None:
    asked = add_partitions("onceflow-any", OURS, {("b", 1), ("a", 2), ("a", 0)})
    fields = asked.to_dict()
    assert fields["v3_and_below_transactional_id"] == "onceflow-any"
    assert (fields["v3_and_below_producer_id"], fields["v3_and_below_producer_epoch"]) == (7, 3)
    assert fields["v3_and_below_topics"] == [
        {"name": "a", "partitions": [0, 2]},
        {"name": "b", "partitions": [1]},
    ]
    assert asked._max_version == 3


@pytest.mark.parametrize(
    ("code", "error"),
    [(47, IdentityRefused), (48, IdentityRefused), (120, AttemptFailed), (55, AttemptFailed), (29, NotAuthorized)],
)
def test_a_partition_that_may_not_join_ends_the_attempt(code: int, error: type[Exception]) -> None:
    talk = enrol("onceflow-any", OURS, {("out", 0)}, Hand().pace)
    next(talk)
    part = SimpleNamespace(partition_error_code=code, partition_index=0)
    topic = SimpleNamespace(name="out", results_by_partition=[part])
    with pytest.raises(error, match="AddPartitionsToTxn of out-0: "):
        talk.send(SimpleNamespace(results_by_topic_v3_and_below=[topic]))
