"""Which fault comes when, all drawn from one seed.

About a quarter of the time nothing is done, so that what a fault left behind can show itself before the next one covers it; and
sometimes three and more come in a row without a pause (F24), because effects change across successive failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from onceflow.verify.faults.catalog import Fault

QUIET, IN_A_ROW = 0.25, 0.15
_QUIET_S = (3.0, 8.0)
_PAUSE_S = (0.5, 4.0)
_ROW = (3, 5)


@dataclass(frozen=True, slots=True)
class Turn:
    """The next thing to do: wait, then inject ``fault`` (None: only wait), whose own chances come from ``seed``."""

    wait_s: float
    fault: Fault | None
    seed: str

    def random(self) -> Random:
        return Random(self.seed)  # noqa: S311  repeatable on purpose


def turns(faults: Sequence[Fault], seed: int) -> Iterator[Turn]:
    """Without end. Equal faults and an equal seed give equal turns, however long each of them takes."""
    random = Random(f"onceflow-{seed}")  # noqa: S311  repeatable on purpose
    deck: list[Fault] = []
    number = 0

    def turn(wait_s: float, fault: Fault | None) -> Turn:
        nonlocal number
        number += 1
        return Turn(wait_s, fault, f"onceflow-{seed}-{number}")

    while True:
        chance = random.random()
        if chance < QUIET or not faults:
            yield turn(random.uniform(*_QUIET_S), None)
            continue
        in_a_row = random.randint(*_ROW) if chance < QUIET + IN_A_ROW else 1
        for place in range(in_a_row):
            deck = deck or random.sample(faults, len(faults))
            yield turn(0.0 if place else random.uniform(*_PAUSE_S), deck.pop())
