"""The logs behind ``tables.Tables``: which attempts stand in them, and what each has committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.verify.oracle.tables import BATCHES, PER_BATCH, QUERY, Look, Out, Tables, table

from onceflow.transaction.progress import Progress
from onceflow.transaction.questions import ANCHOR_TOPIC
from onceflow.verify.recording.log import Log
from onceflow.verify.recording.tables import BATCHES as RECORD_BATCHES
from onceflow.verify.recording.tables import GIVEN

SIZE = PER_BATCH + 1
GROUP = ("__consumer_offsets", 7)


@dataclass(frozen=True)
class Attempt:
    """A transaction: where it wrote, by partition of the output, and which progress and ends of which batches it gave.

    ``outcome`` is its marker, "" for none, "plain" where it is no transaction; ``elsewhere`` those of partitions on which that is
    another one. ``removed``: it removes the progress instead.
    """

    epoch: int
    wrote: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    next_batch: int | None = None
    ended: tuple[int, ...] = ()
    outcome: str = "commit"
    elsewhere: Mapping[int, str] = field(default_factory=dict)
    query: str = QUERY
    removed: bool = False


def attempt_of(batch: int, **others: Any) -> Attempt:
    """The one attempt of a batch in a good run."""
    wrote = dict.fromkeys(range(2), (batch * SIZE, batch * SIZE + PER_BATCH))
    return Attempt(**{"epoch": batch + 1, "wrote": wrote, "next_batch": batch + 1, "ended": (batch, batch), **others})


CLAIM = Attempt(0, next_batch=0, query="")


def good_attempts() -> list[Attempt]:
    """A claim, and one attempt of each batch."""
    return [CLAIM, *map(attempt_of, range(BATCHES))]


def log_of(attempts: Iterable[Attempt]) -> Log:
    """What brokers have when these have been made, one after the other."""
    output: list[tuple[Any, ...]] = []
    group: list[tuple[Any, ...]] = []
    given: list[tuple[Any, ...]] = []
    for number, attempt in enumerate(attempts):
        for partition, (first, until) in attempt.wrote.items():
            marker = attempt.elsewhere.get(partition, attempt.outcome)
            output += _written(("out", partition), first, until, attempt.epoch, marker)
        if attempt.next_batch is not None or attempt.removed:
            at = 2 * number
            group += _written(GROUP, at, at + 1, attempt.epoch, attempt.outcome)
            given += [(at, *each) for each in _positions(attempt)]
    output.sort(key=lambda row: row[1:3])
    return Log(table(RECORD_BATCHES, [*output, *group]), table(GIVEN, given))


def _written(place: tuple[str, int], first: int, until: int, epoch: int, marker: str) -> list[tuple[Any, ...]]:
    if marker == "plain":
        return [(*place, first, until, -1, -1, "plain")]
    records = (*place, first, until, 1, epoch, "records")
    return [records, (*place, until, until + 1, 1, epoch + 1, marker)] if marker else [records]


def _positions(attempt: Attempt) -> list[tuple[Any, ...]]:
    if attempt.removed:
        return [(ANCHOR_TOPIC, 0, None, "")]
    progress = Progress(attempt.next_batch or 0, attempt.query, "driver", ()).encode()
    ends = [("in", p, (batch + 1) * SIZE, "") for p, batch in enumerate(attempt.ended)]
    return [(ANCHOR_TOPIC, 0, *progress), *ends]


def any_good_run(chance: Random) -> tuple[Tables, list[Attempt]]:
    """A run in which all is well, and its attempts: aborted ones before batches, claims behind them, one open at the end."""
    run = _Run(chance)
    for batch in range(BATCHES):
        run.aborts(batch)
        run.commits(batch)
        if chance.random() < 0.4:
            run.attempts.append(Attempt(run.epoch(), next_batch=batch + 1))
    if chance.random() < 0.5:
        run.attempts.append(Attempt(run.epoch(), wrote={0: (run.end[0], run.end[0] + 2)}, outcome=""))
    return Tables(wanted=run.wanted, visible=run.visible, looks=run.looks), run.attempts


class _Run:
    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._contents = chance.choice([1, 3, 1000])  # equal records come often, or hardly ever
        self.wanted: list[Out] = []
        self.visible: list[Out] = []
        self.attempts = [CLAIM]
        self.looks = [Look(0, (), query="")]
        self.end = {0: 0, 1: 0}

    def epoch(self) -> int:
        return len(self.attempts)

    def aborts(self, batch: int) -> None:
        while self._chance.random() < 0.4:
            wrote = {p: self._written(p, self._chance.randrange(1, 4)) for p in range(2) if self._chance.random() < 0.6}
            gives = self._chance.random() < 0.5
            attempt = attempt_of(batch, epoch=self.epoch(), wrote=wrote, outcome="abort")
            if wrote or gives:
                self.attempts.append(attempt if gives else replace(attempt, next_batch=None))

    def commits(self, batch: int) -> None:
        wrote = {p: self._written(p, count) for p in range(2) if (count := self._chance.randrange(4))}
        for partition, (first, until) in wrote.items():
            for offset in range(first, until):
                content, is_free = self._chance.randrange(self._contents), self._chance.random() < 0.3
                out = Out(partition, offset, content, None if is_free else 0, batch, origin=partition)
                self.visible.append(out)
                self.wanted.append(replace(out, partition=-1) if is_free else out)
        self.attempts.append(attempt_of(batch, epoch=self.epoch(), wrote=wrote))
        self.looks += [Look(batch + 1, (batch, batch))] * self._chance.randrange(3)

    def _written(self, partition: int, count: int) -> tuple[int, int]:
        """Where so many records stand; a marker follows them."""
        first = self.end[partition]
        self.end[partition] = first + count + 1
        return first, first + count
