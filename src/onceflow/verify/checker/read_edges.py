"""Who read what whom wrote: the graph in which ``wr_cycle`` looks for circles.

Where several attempts of unknown outcome may have written a record, one of them was committed, nobody knows which. They stand
in the graph together, as one vertex more::

    attempt 2 sends b, reads a; its outcome is unknown
    attempt 3 sends b, reads a; its outcome is unknown
    transaction 1 reads b, sends a                      either of the attempts reads a, so it is a circle in any case

What that vertex read is what each of its attempts read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onceflow.verify.checker.evidence import NOBODY, Evidence
from onceflow.verify.history.coding import Ints, among, expanded


@dataclass(frozen=True, slots=True)
class ReadEdges:
    """From the vertex that sent to the one that polled, with a row of each. Units are vertices by their number, and behind
    ``units`` stand sets of attempts. ``order`` is a number for each vertex that most edges ascend.
    """

    source: Ints
    target: Ints
    polls: Ints
    sends: Ints
    order: Ints
    units: int

    @classmethod
    def of(cls, evidence: Evidence) -> ReadEdges:
        """All that lead from a transaction to another one that was committed, or from and to such sets."""
        history, units = evidence.history, len(evidence.unit_end)
        sets = _Sets.of(evidence)
        polls = evidence.polls[history.in_txn[evidence.polls]]
        sends = evidence.writer[polls]
        shown = (sends != NOBODY) & history.in_txn[sends]
        polls, sends = polls[shown], sends[shown]
        source = np.where(sets.of_row[sends] < 0, history.unit[sends], units + sets.of_row[sends])
        done = evidence.happened[polls]
        at, reader = sets.read_by_all(source, history.unit[polls])
        from_to = (
            np.concatenate([source[done], source[at]]),
            np.concatenate([history.unit[polls[done]], units + reader]),
        )
        rows = np.concatenate([polls[done], polls[at]]), np.concatenate([sends[done], sends[at]])
        across = from_to[0] != from_to[1]
        order = np.concatenate([evidence.unit_end, sets.last])
        return cls(from_to[0][across], from_to[1][across], rows[0][across], rows[1][across], order, units)

    def of_any_attempt(self, edges: list[int]) -> bool:
        """Whether a set of attempts is on the way."""
        return bool(np.any(self.source[edges] >= self.units))


@dataclass(frozen=True, slots=True)
class _Sets:
    """The sets of attempts of which at least one was committed: what they sent was read."""

    of_row: Ints  # for each row that sends a record of such a set the number of the set, -1 for all others
    member: Ints  # units, in order
    set_of: Ints  # of each member the set
    size: Ints
    last: Ints  # of each set the last row of its units

    @classmethod
    def of(cls, evidence: Evidence) -> _Sets:
        history, attempts = evidence.history, evidence.attempts
        several = attempts.several[attempts.record]
        rows, sender = attempts.rows[several], attempts.senders[attempts.record[several]]
        names, number = np.unique(sender, return_inverse=True)
        of_record = np.full(len(attempts.several) + 1, -1, np.int64)
        of_record[attempts.record[several]] = number
        pairs = np.unique(np.stack([history.unit[rows], number], axis=1), axis=0)
        last = np.zeros(len(names), np.int64)
        np.maximum.at(last, pairs[:, 1], evidence.unit_end[pairs[:, 0]])
        size = np.bincount(pairs[:, 1], minlength=len(names))
        return cls(of_record[evidence.record], pairs[:, 0], pairs[:, 1], size, last)

    def read_by_all(self, source: Ints, reader: Ints) -> tuple[Ints, Ints]:
        """The edges into sets: of each source that all attempts of a set read, a number of one edge, and the set.

        What one attempt did not read not all did, so of each set only what the one read is looked at that read least::

            attempt 1 polls 10,000 records, and sends 10,000 values
            10,000 other attempts send one of them each, and read nothing       10,000 sets of two; nothing is to be looked at
        """
        members = among(reader, self.member)
        pairs, edge = np.unique(np.stack([reader[members], source[members]], axis=1), axis=0, return_index=True)
        edge = np.flatnonzero(members)[edge]
        readers, sources = pairs[:, 0], pairs[:, 1]
        begin, end = np.searchsorted(readers, self.member), np.searchsorted(readers, self.member, side="right")
        order = np.lexsort((end - begin, self.set_of))
        least = order[np.diff(self.set_of[order], prepend=-1) != 0]
        at, into = expanded(begin[least], end[least], self.set_of[least])
        by_set = np.argsort(self.set_of, kind="stable")
        first = np.searchsorted(self.set_of[by_set], into)
        nth, candidate = expanded(first, first + self.size[into], np.arange(len(into)))
        code = int(sources.max(initial=0)) + 1
        has_read = among(self.member[by_set[nth]] * code + sources[at[candidate]], readers * code + sources)
        by_all = np.bincount(candidate[has_read], minlength=len(into)) == self.size[into]
        return edge[at[by_all]], into[by_all]
