"""What a producer sends when, and what each answer leads to: the talks of a write, held by hand with a clock of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.errors import BrokerUnreachable, InputError, NotAuthorized, OnceflowError, RecordTooLarge
from onceflow.kafka.client import TRANSACTION, Topic
from onceflow.transaction.failures import AttemptFailed, IdentityRefused
from onceflow.transaction.lane import Lane
from onceflow.transaction.messages import Identity
from onceflow.transaction.producing import Answered, Await, Producing, Send, Target, error_of, produce_request
from onceflow.transaction.talk import Leaders, Pace, Talk, ToCoordinator

MIB = 1 << 20
BUFFER = 32 * MIB
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
        self.awaited: list[float | None] = []
        self.looked_up: list[bool] = []  # leaders: from memory, or anew

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
        while True:
            try:
                turn = talk.send(answer)
            except StopIteration as end:
                return end.value
            answer = self.perform(turn)

    def perform(self, turn: Any) -> Any:
        match turn:
            case Send(leader, _, batches):
                self.sent.append([(lane.partition, sealed.sequence) for lane, sealed in batches])
                self.nodes.append(leader)
                self.open.append(turn)
                assert sum(each.leader == leader for each in self.open) <= 5, "more requests than a broker gets at once"
                return None
            case Await(until):
                self.awaited.append(until)
                answered = next(self.answers)()
                if answered is None:
                    self.now = until if until is not None else self.now + 1
                return answered
            case Leaders(topics, refresh):
                self.looked_up.append(refresh)
                return {name: Topic(name, dict(self.leaders)) for name in topics}
            case ToCoordinator(kind, request):
                assert kind == TRANSACTION
                self.enrolled.append([(t["name"], t["partitions"]) for t in request.to_dict()["v3_and_below_topics"]])
                part = SimpleNamespace(partition_error_code=0, partition_index=0)
                result = SimpleNamespace(name="out", results_by_partition=[part])
                return SimpleNamespace(results_by_topic_v3_and_below=[result])
        raise AssertionError(turn)

    def answer(self, code: int = 0, number: int = 0, *, only: str | None = None) -> Callable[[], Answered]:
        """The leader's answer to the oldest open request (or the one with this number); ``only``: the topic that it fails."""

        def take() -> Answered:
            turn = self.open.pop(number)
            responses = []
            for lane, _ in turn.batches:
                found = code if only in (None, lane.topic) else 0
                part = SimpleNamespace(index=lane.partition, error_code=found, error_message=None, record_errors=[])
                responses.append(SimpleNamespace(name=lane.topic, partition_responses=[part]))
            return Answered(turn.leader, turn.batches, SimpleNamespace(responses=responses))

        return take

    def broken(self) -> Answered:
        """The connection broke before the oldest open request was answered."""
        turn = self.open.pop(0)
        return Answered(turn.leader, turn.batches, ConnectionError("gone"))


def nothing() -> None:
    """No answer comes while one waits."""


# ------------------------------------------------------------------------------------------- a topic that is another now


def test_a_partition_that_is_gone_fails_the_attempt_and_says_so() -> None:
    hand = Hand(leaders={0: 1})
    with pytest.raises(AttemptFailed, match="out-3: the topic has 1 partitions now, it was made anew with fewer"):
        hand.submit((3, 1))


def test_a_partition_that_goes_while_it_is_written_fails_the_attempt() -> None:
    hand = Hand()
    hand.submit((1, 1))
    hand.leaders = {0: 1}
    with pytest.raises(AttemptFailed, match="out-1: the topic has 1 partitions now"):
        hand.finish(hand.answer(NOT_LEADER))


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
    assert hand.looked_up == [False, True]


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


def test_a_repair_is_sent_while_whoever_submits_waits_for_room() -> None:
    hand = Hand()
    hand.answers = iter([hand.broken, nothing, hand.answer()])
    hand.submit((0, 1), size=BUFFER + 1)
    assert hand.sent == [[(0, 0)], [(0, 0)]]


def test_a_repair_whose_pause_passed_while_the_query_took_its_time_is_sent_at_once() -> None:
    hand = Hand()
    hand.submit((0, 1))
    hand.answers = iter([hand.broken, hand.answer()])
    hand.submit((1, 1), size=BUFFER)
    assert not hand.open
    hand.now += FIRST
    hand.finish(hand.answer())
    assert hand.sent[2:] == [[(0, 0)]]


@pytest.mark.parametrize("moved", ["a", "b"])
def test_an_answer_belongs_to_the_partition_of_its_topic(moved: str) -> None:
    """Two topics have a partition of the same number in one request: one of them is led elsewhere, the other is written."""
    hand = Hand(leaders=dict.fromkeys(range(5), 1))
    hand.submit(
        *[(n, 1) for n in range(5)]
    )  # as many requests as the broker gets at once: what follows goes out together
    for topic, count in (("a", 2), ("b", 3)):
        hand.run(hand.producing.submitted(topic, 0, count, lambda sequence: b"data"))
    carried: list[list[str]] = []

    def noted(answer: Callable[[], Answered]) -> Callable[[], Answered]:
        def take() -> Answered:
            carried.append([lane.topic for lane, _ in hand.open[0].batches])
            return answer()

        return take

    both, again = noted(hand.answer(NOT_LEADER, only=moved)), noted(hand.answer())
    counts = hand.finish(*[hand.answer()] * 5, both, nothing, again)
    assert carried == [["a", "b"], [moved]]
    assert counts == {**{("out", n): 1 for n in range(5)}, ("a", 0): 2, ("b", 0): 3}


# --------------------------------------------------------------------------------------------------------- what is sent


def test_a_leader_gets_the_batches_of_its_partitions_by_topic() -> None:
    lanes = [Lane(topic, partition, 1, Hand().pace) for topic, partition in (("a", 4), ("b", 0), ("a", 1))]
    batches = []
    for lane in lanes:
        lane.append(1, f"{lane.topic}-{lane.partition}".encode())
        batches.append((lane, lane.take()))
    request = produce_request(V2, batches)
    sent = {t.name: [(p.index, p.records) for p in t.partition_data] for t in request.topic_data}
    assert sent == {"a": [(4, b"a-4"), (1, b"a-1")], "b": [(0, b"b-0")]}


def test_a_leader_may_wait_half_a_minute_for_its_followers() -> None:
    lane = Lane("out", 0, 1, Hand().pace)
    lane.append(1, b"")
    request = produce_request(V2, [(lane, lane.take())])
    assert (request.acks, request.timeout_ms) == (-1, 30_000)


def test_leaders_are_looked_up_once_for_each_partition_and_from_memory() -> None:
    hand = Hand(leaders={0: 1, 1: 2})
    hand.submit((0, 1), (1, 1), (0, 1))
    assert hand.nodes == [1, 2, 1]
    assert hand.looked_up == [False, False]


def test_a_partition_has_five_batches_in_flight() -> None:
    hand = Hand()
    hand.submit(*[(0, 1)] * 7)
    assert len(hand.sent) == 5
    hand.finish(*[hand.answer()] * 7)
    assert [at for at, *_ in hand.sent] == [(0, n) for n in range(7)]


def test_a_broker_has_five_requests_in_flight_and_the_next_one_carries_what_waits() -> None:
    hand = Hand(leaders=dict.fromkeys(range(8), 1))
    hand.submit(*[(partition, 1) for partition in range(8)])
    assert hand.sent == [[(n, 0)] for n in range(5)]
    hand.finish(hand.answer(), *[hand.answer()] * 5)
    assert hand.sent[5:] == [[(5, 0), (6, 0), (7, 0)]]


def test_one_answer_makes_room_for_one_request() -> None:
    """``Hand`` counts them."""
    hand = Hand(leaders=dict.fromkeys(range(8), 1))
    hand.submit(*[(partition, 1) for partition in range(8)] * 3)
    assert len(hand.open) == 5
    counts = hand.finish(*[hand.answer()] * 8)
    assert set(counts.values()) == {3}


def test_a_request_is_bounded_in_size_but_for_its_first_batch() -> None:
    hand = Hand(leaders=dict.fromkeys(range(9), 1))
    hand.submit(*[(n, 1) for n in range(5)])
    hand.submit((5, 1), (6, 1), size=2 * MIB)
    hand.submit((7, 1), size=1)
    hand.submit((8, 1), size=4 * MIB + 1)
    hand.finish(*[hand.answer()] * 8)
    assert hand.sent[5:] == [[(5, 0), (6, 0)], [(7, 0)], [(8, 0)]]


def test_it_is_the_oldest_batch_of_a_partition_that_has_to_fit() -> None:
    hand = Hand(leaders=dict.fromkeys(range(7), 1))
    hand.submit(*[(n, 1) for n in range(6)])
    hand.submit((6, 1))
    hand.submit((6, 1), size=4 * MIB)
    hand.finish(*[hand.answer()] * 7)
    assert hand.sent[5:] == [[(5, 0), (6, 0)], [(6, 1)]]


def test_whoever_submits_waits_while_more_than_32_mib_are_not_acknowledged() -> None:
    hand = Hand()
    hand.submit((0, 1), (0, 1), size=BUFFER // 2)
    hand.answers = iter([hand.answer()])
    hand.submit((0, 1), size=1)
    assert len(hand.open) == 2
    with pytest.raises(StopIteration):
        next(hand.answers)


def test_what_is_acknowledged_makes_room() -> None:
    hand = Hand()
    for _ in range(2):
        hand.submit((0, 1), size=BUFFER)
        hand.finish(hand.answer())


# ------------------------------------------------------------------------------------------------------- how one waits


def test_nobody_looks_again_before_an_answer_where_only_answers_help() -> None:
    """A sixth batch waits for one of five, not for a time."""
    hand = Hand()
    hand.submit(*[(0, 1)] * 6)
    hand.finish(*[hand.answer()] * 6)
    assert set(hand.awaited) == {None}


def test_one_waits_until_the_first_pause_ends() -> None:
    hand = Hand()
    hand.submit((0, 1), (1, 1))

    def later() -> Answered:
        hand.now += FIRST / 2
        return hand.broken()

    hand.finish(hand.broken, later, nothing, nothing, hand.answer(), hand.answer())
    assert hand.awaited == [None, 101.0, 101.0, 101.5, None, None]


def test_a_pause_that_is_over_is_waited_for_by_nobody() -> None:
    """The batch to repair may go, and its broker has five requests already."""
    hand = Hand(leaders=dict.fromkeys(range(6), 1))
    hand.submit((0, 1))
    hand.answers = iter([hand.broken, hand.answer()])
    hand.submit((1, 1), size=BUFFER)
    hand.submit(*[(n, 1) for n in range(1, 6)])
    assert len(hand.open) == 5
    hand.now += FIRST
    hand.awaited.clear()
    hand.finish(*[hand.answer()] * 6)
    assert hand.awaited == [None] * 6


# ------------------------------------------------------------------------------------------------------ what is enrolled


@pytest.mark.parametrize(
    ("target", "wanted"), [(V1, [[("out", [0])], [("out", [1])]]), (V2, []), (Target(OURS, None, 1), [])]
)
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


@pytest.mark.parametrize(
    ("target", "version"),
    [(V1, (3, 11)), (V2, (12, 12)), (Target(OURS, None, 1), (3, 11)), (Target(OURS, None, 2), (3, 12))],
)
@pytest.mark.parametrize("topics", [1, 2, 3])
def test_the_number_of_topics_does_not_change_the_version_of_the_request(
    target: Target, version: tuple[int, int], topics: int
) -> None:
    """On version 2 an older request would be refused, or written outside of the transaction."""
    batches = []
    for lane in [Lane(f"out-{n}", 0, 1, Hand().pace) for n in range(topics)]:
        lane.append(1, b"data")
        batches.append((lane, lane.take()))
    request = produce_request(target, batches)
    assert (request._min_version, request._max_version) == version
    assert len(request.topic_data) == topics


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
    with pytest.raises(error, match=r"produce to out-0: \w+ \(\d+\)"):
        hand.finish(hand.answer(code))


def test_what_the_leader_said_of_it_is_told() -> None:
    assert str(error_of(45, "produce to out-0", "expected 3")) == (
        "produce to out-0: OutOfOrderSequenceNumberError (45): expected 3"
    )
    assert str(error_of(45, "produce to out-0", None)) == "produce to out-0: OutOfOrderSequenceNumberError (45)"


@pytest.mark.parametrize(
    ("code", "text", "action"),
    [
        (29, "the principal lacks WRITE on the topic$", "^grant it WRITE on the topic; "),
        (
            10,
            r"MessageSizeTooLargeError \(10\)$",
            "^raise the topic's max.message.bytes, .* kept below it$",
        ),
        (18, r"\(18\)$", "^raise the topic's max.message.bytes, "),
        (32, r"\(32\)$", "^correct the records or the topic's configuration$"),
    ],
)
def test_who_has_to_do_something_is_told_what(code: int, text: str, action: str) -> None:
    error = error_of(code, "produce to out-0", None)
    assert isinstance(error, OnceflowError)
    assert re.search(text, error.message)
    assert re.search(action, error.action)


def test_records_that_the_leader_names_are_counted_in_all_that_is_written_to_the_partition() -> None:
    hand = Hand()
    hand.submit((0, 5), (0, 3))
    answer = hand.answer(32)

    def named() -> Answered:
        found = answer()
        [part] = found.answer.responses[0].partition_responses
        part.record_errors = [SimpleNamespace(batch_index=2, batch_index_error_message="of 2100")]
        return found

    with pytest.raises(InputError) as raised:
        hand.finish(hand.answer(), named)
    assert raised.value.fields == {"topic": "out", "partition": 0, "records": {5 + 2: "of 2100"}}
    assert raised.value.message.endswith(": of 2100")


def test_what_the_leader_says_of_the_batch_comes_before_what_it_says_of_one_record() -> None:
    hand = Hand()
    hand.submit((0, 5))
    answer = hand.answer(32)

    def named() -> Answered:
        found = answer()
        [part] = found.answer.responses[0].partition_responses
        part.error_message = "not by these rules"
        part.record_errors = [SimpleNamespace(batch_index=2, batch_index_error_message="of 2100")]
        return found

    with pytest.raises(InputError, match=": not by these rules"):
        hand.finish(named)


@pytest.mark.parametrize(("code", "kind"), [(10, RecordTooLarge), (18, RecordTooLarge), (32, InputError)])
def test_a_record_that_is_named_is_too_large_where_the_leader_says_so(code: int, kind: type[InputError]) -> None:
    assert type(error_of(code, "produce to out-0", None, records={7: "of 2100"})) is kind
    assert type(error_of(code, "produce to out-0", None)) is InputError


@pytest.mark.parametrize(("count", "kind"), [(1, RecordTooLarge), (2, InputError), (5, InputError)])
def test_a_batch_that_is_too_large_is_its_record_where_that_is_alone_in_it(count: int, kind: type[InputError]) -> None:
    """Which of several it is no broker says. The record is told by its number in all that went to the partition."""
    hand = Hand()
    hand.submit((0, 3), (0, count))
    with pytest.raises(InputError) as raised:
        hand.finish(hand.answer(), hand.answer(10))
    assert type(raised.value) is kind
    if count > 1:
        assert raised.value.fields == {}
        return
    assert raised.value.fields["records"].keys() == {3}
    assert raised.value.fields["records"][3].endswith("bytes as a batch of its own, which the topic does not accept")


@pytest.mark.parametrize("count", [5, 1])
@pytest.mark.parametrize("named", [[], None])
def test_a_leader_that_names_no_records_leaves_the_error_without_any(named: list[Any] | None, count: int) -> None:
    hand = Hand()
    hand.submit((0, count))
    answer = hand.answer(32)

    def unnamed() -> Answered:
        found = answer()
        [part] = found.answer.responses[0].partition_responses
        part.record_errors = named
        return found

    with pytest.raises(InputError) as raised:
        hand.finish(unnamed)
    assert raised.value.fields == {}


def test_patience_ends_when_nothing_is_acknowledged_for_so_long() -> None:
    hand = Hand()
    hand.submit((0, 1), (0, 1))
    with pytest.raises(BrokerUnreachable, match=r"for 60 s; waiting: out-0 \(no answer\)") as raised:
        hand.finish(*[nothing] * 100)
    assert hand.now == 161.0
    assert "min.insync.replicas" in raised.value.action


def test_of_the_partitions_that_are_stuck_five_are_named() -> None:
    hand = Hand(leaders=dict.fromkeys(range(8), 1))
    hand.submit(*[(n, 1) for n in range(8)])
    with pytest.raises(BrokerUnreachable) as raised:
        hand.finish(hand.answer(), *[nothing] * 100)
    assert re.findall(r"out-\d", raised.value.message) == [f"out-{n}" for n in range(1, 6)]


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

    with pytest.raises(BrokerUnreachable, match=r"waiting: out-0 \(NotEnoughReplicasError \(19\)\)"):
        hand.finish(late)
    assert hand.looked_up == [False]
