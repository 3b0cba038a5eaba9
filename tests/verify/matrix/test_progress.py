"""The schedule: bounces by what is through, none of them too early, and none when all is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from onceflow.verify.faults.catalog import FAULTS, Fault
from onceflow.verify.matrix.schedule import ByProgress, Through

BOUNCES = (FAULTS["kill-driver"], FAULTS["pause-driver"], FAULTS["second-driver"])
SCHEDULE = ByProgress(BOUNCES, 0.2, "a seed", 1.0)


@dataclass
class Pipeline:
    """Goes on by ``speed`` with every look at it."""

    speed: float
    share: float = 0.0
    notes: list[str] = field(default_factory=list)

    def through(self) -> float:
        self.share = min(1.0, round(self.share + self.speed, 6))
        return self.share

    def wait(self, condition: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if condition():
                return
        raise AssertionError("waited in vain")


def bounced(pipeline: Pipeline, during: float = 0.0) -> Iterator[tuple[float, Fault | None]]:
    """At which share each bounce came; while one lasts ``during`` goes through."""
    for turn in SCHEDULE.turns(pipeline.through, pipeline.wait, pipeline.notes.append):
        yield pipeline.share, turn.fault
        pipeline.share = min(1.0, pipeline.share + during)


def test_each_comes_when_a_fifth_more_is_through_since_the_last_one_was_over() -> None:
    pipeline = Pipeline(0.01)
    came = list(bounced(pipeline, during=0.1))
    assert [fault for _, fault in came] == list(BOUNCES)
    shares = [share for share, _ in came]
    assert 0.2 <= shares[0] < 0.23
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(shares))
    assert pipeline.share == 1, "it ends when all is through"
    assert pipeline.notes[0] == "21% of the input is through"


def test_none_comes_when_nothing_is_left() -> None:
    assert list(bounced(Pipeline(1.0))) == []
    came = list(bounced(Pipeline(0.01), during=0.7))
    assert [fault for _, fault in came] == [BOUNCES[0]]


def test_too_few_prove_nothing() -> None:
    assert SCHEDULE.lack(3) == ""
    assert SCHEDULE.lack(2) == "2 of 3 bounces came before the input was through: give it more with --messages"


def test_equal_seeds_give_equal_chances() -> None:
    pipeline = Pipeline(0.05)
    turns = list(SCHEDULE.turns(pipeline.through, pipeline.wait, print))
    assert {turn.random().random() for turn in turns} == {turns[0].random().random()}


def test_through_is_what_committed_batches_have_read(tmp_path: Path) -> None:
    through = Through({("in", 0): 10, ("in", 1): 30}, tmp_path)
    assert through() == 0
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    for number, ends in enumerate(('{"in":{"0":10,"1":0}}', '{"in":{"0":10,"1":30}}')):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{ends}")
    assert through() == 0, "a batch that is planned is not committed"
    (tmp_path / "commits" / "0").touch()
    assert through() == pytest.approx(0.25)
    (tmp_path / "commits" / "1").touch()
    assert through() == 1
