"""The cells of the matrix: what is bounced, how, and under which transaction version."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import product


class How(StrEnum):
    """How a process ends."""

    HARD = "hard"  # SIGKILL
    CLEAN = "clean"  # in order


class Who(StrEnum):
    """What is bounced."""

    BROKERS = "brokers"  # each of them, one after the other
    CLIENTS = "clients"  # the pipeline's driver


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the matrix."""

    how: How
    who: Who
    version: int  # of Kafka's transactions

    @property
    def name(self) -> str:
        return f"{self.how}-{self.who}-{self.version}"

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.how} bounces of {self.who}, transaction version {self.version}"


CELLS = tuple(Cell(how, who, version) for version, who, how in product((1, 2), Who, How))


def chosen(names: Iterable[str] | None) -> tuple[tuple[Cell, ...], list[str]]:
    """The cells of these names in the matrix's order (all of them for None), and what is wrong with the names."""
    known = {cell.name: cell for cell in CELLS}
    if names is None:
        return CELLS, []
    wanted = set(names)
    if not wanted:
        return (), [f"--cells: it names none; leave it out for all of them, or give some of {', '.join(known)}"]
    mistakes = [f"--cells {name}: {_hint(name, known)}" for name in sorted(wanted - set(known))]
    return tuple(cell for name, cell in known.items() if name in wanted), mistakes


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"there is no such cell, did you mean {close[0]}?" if close else f"one of {', '.join(known)}"
