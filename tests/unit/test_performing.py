"""Turns of talks that ask no broker: what the talk wants is done. What is asked and answered: ``test_requests.py``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from onceflow.kafka.client import KafkaClient
from onceflow.transaction.performing import Performer
from onceflow.transaction.talk import Rest, Talk


@pytest.fixture
def performer() -> Iterator[Performer]:
    with closing(KafkaClient({"bootstrap_servers": ["127.0.0.1:9"]})) as client:
        yield Performer(client, "onceflow-p")


def test_who_is_to_rest_does_so_for_as_long(performer: Performer, monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[float] = []
    monkeypatch.setattr(time, "sleep", rested.append)

    def talk() -> Talk[str]:
        yield Rest(0.25)
        assert (yield Rest(0.5)) is None
        return "said"

    assert performer.run(talk()) == "said"
    assert rested == [0.25, 0.5]


def test_a_turn_that_nobody_knows_is_not_passed_over(performer: Performer) -> None:
    with pytest.raises(AssertionError, match="a turn of tomorrow"):
        performer.perform("a turn of tomorrow")
