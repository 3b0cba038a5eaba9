"""How often something is asked, and until when: the clock is moved by hand."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.errors import AuthenticationFailed, BrokerUnreachable, TopicMissing
from onceflow.kafka.client import TRANSACTION, Again
from onceflow.kafka.codes import NONE, UNKNOWN_TOPIC_OR_PARTITION
from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Event, Identity, Stored
from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import Questions
from onceflow.transaction.talk import Pace, Rest, Talk, ToCoordinator, repeated


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

    with pytest.raises(BrokerUnreachable, match="Something: no usable answer in time, last: later") as raised:
        hold(repeated(once, "Something", Pace(lambda: now, 17.0, 1.0, 4.0)))
    assert "check that the brokers run" in raised.value.action
    assert pauses == [1.0, 1.5, 2.25, 3.375, 4.0, 4.0, 0.875]
    assert asked == [0.0, 1.0, 2.5, 4.75, 8.125, 12.125, 16.125, 17.0]


@pytest.mark.parametrize(("unknown_for", "is_missing"), [(1, False), (30, True)], ids=["made just now", "deleted"])
def test_a_topic_that_stays_unknown_ends_a_commit_of_offsets_before_all_patience_is_used(
    unknown_for: int, is_missing: bool
) -> None:
    """The transaction is open all the while: a topic that was made just now is known soon, one that was deleted never."""
    began = now = 100.0
    quarter = 8.0  # and asked again each second: a little more or less of the patience is another moment
    questions = Questions("any", 2, 60_000)
    talk = Asking(questions, Pace(lambda: now, 4 * quarter, 1.0, 1.0)).store(Identity(7, 3), Progress.empty("me"), {})

    def answer() -> Any:
        part = SimpleNamespace(
            partition_index=0, error_code=UNKNOWN_TOPIC_OR_PARTITION if now < began + unknown_for else NONE
        )
        return SimpleNamespace(topics=[SimpleNamespace(name="onceflow-progress", partitions=[part])])

    def hold() -> Event:
        nonlocal now
        turn = next(talk)
        while True:
            now += turn.pause if isinstance(turn, Rest) else 0.0
            try:
                turn = talk.send(answer() if isinstance(turn, ToCoordinator) else None)
            except StopIteration as end:
                stored: Event = end.value
                return stored

    if not is_missing:
        assert hold() == Stored()
        return
    with pytest.raises(TopicMissing, match="topic onceflow-progress does not exist any more") as raised:
        hold()
    assert now == began + quarter, "a quarter of the patience, and not all of it"
    assert raised.value.fields == {"topics": ("onceflow-progress",)}
    assert "in a new process or with a new sink" in raised.value.action


def test_what_is_known_better_than_that_nobody_answered_is_raised_in_the_end() -> None:
    def once() -> Talk[None]:
        yield ToCoordinator(TRANSACTION, None)

    talk = repeated(once, "Something", Pace(lambda: 0.0, 0.0, 1.0, 4.0))
    next(talk)
    with pytest.raises(AuthenticationFailed, match="the login was refused"):
        talk.throw(Again("later", final=AuthenticationFailed("the login was refused", action="correct it")))


def test_an_answer_ends_the_repetition() -> None:
    def once() -> Talk[str]:
        answer: str = yield ToCoordinator(TRANSACTION, None)
        return answer

    talk = repeated(once, "Something", Pace(lambda: 0.0, 10.0, 1.0, 4.0))
    assert isinstance(next(talk), ToCoordinator)
    with pytest.raises(StopIteration) as ended:
        talk.send("heard")
    assert ended.value.value == "heard"


def test_on_a_cluster_one_begins_with_milliseconds_and_asks_four_times_a_second_in_the_end() -> None:
    """By a clock that nobody sets."""
    pace = Pace.real(7.0)
    assert pace == Pace(time.monotonic, 7.0, 0.005, 0.25)
