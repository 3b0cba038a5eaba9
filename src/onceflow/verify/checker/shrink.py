"""The smallest history that shows a finding: everything is taken away that the finding does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import FunctionInvalid
from onceflow.verify.checker.registry import CHECKS, Check
from onceflow.verify.checker.verdict import check_history
from onceflow.verify.history.coding import Ints, among, dense, plain_numbers


def shrink(table: pa.Table, finding: dict[str, object], check: Check | None = None) -> pa.Table:
    """A part of a history that shows the same finding (all of it but its rows), and of which nothing can be left out.

    First whole transactions and operations are removed, then rows. ``check`` is needed for anomalies beyond ``CHECKS``.
    """
    check = check or CHECKS[str(finding["anomaly"])]

    def shows(rows: Ints) -> bool:
        try:
            found = check_history(table.take(pa.array(rows)), [check]).findings
        except FunctionInvalid:  # of this part of the input the user's function makes nothing
            return False
        return any(_same(each, finding) for each in _candidates(found, finding))

    everything = np.arange(len(table))
    if not shows(everything):
        raise ValueError(f"the history does not show {finding['anomaly']} at this place")
    rows = next(part for part in _parts(table, finding) if shows(part))
    units = _units(table)
    for group in (units, everything):
        rows = _in_order(minimal(_split(rows, group[rows]), lambda chosen: shows(_in_order(chosen))))
    return table.take(pa.array(rows))


def minimal(pieces: Sequence[Ints], shows: Callable[[Sequence[Ints]], bool]) -> Sequence[Ints]:
    """Fewest pieces that still show it: none of them can be left out alone (Zeller's ddmin, complements only)."""
    chunk = max(1, len(pieces) // 2)
    while True:
        reduced = False
        start = 0
        while start < len(pieces):
            rest = [*pieces[:start], *pieces[start + chunk :]]
            if rest and shows(rest):
                pieces, reduced = rest, True
            else:
                start += chunk
        if chunk == 1 and not reduced:
            return pieces
        chunk = max(1, chunk // 2)


def _parts(table: pa.Table, finding: dict[str, object]) -> Iterator[Ints]:
    """Guesses of what is enough, small ones first: the operations named, all on the same partition, everything."""
    units, rows = _units(table), np.asarray(finding["rows"], np.int64)
    named = among(units, units[rows])
    yield np.flatnonzero(named)
    beside = np.asarray(pc.equal(table["key"], finding["key"]).fill_null(False))
    keyless = np.asarray(table["key"].is_null())
    yield np.flatnonzero(named | beside | keyless)
    yield np.arange(len(table))


def _candidates(found: pa.Table, finding: dict[str, object]) -> list[dict[str, object]]:
    same_key = pc.equal(found["key"], finding["key"]) if finding["key"] is not None else found["key"].is_null()
    return list(found.filter(same_key).to_pylist())


def _same(one: dict[str, object], other: dict[str, object]) -> bool:
    return all(one[name] == other[name] for name in ("anomaly", "key", "offset", "value", "detail"))


def _units(table: pa.Table) -> Ints:
    txn, op = dense(plain_numbers(table["txn"])), dense(plain_numbers(table["op"]))
    return np.where(txn >= 0, txn, op + int(txn.max(initial=-1)) + 1)


def _split(rows: Ints, group: Ints) -> list[Ints]:
    """The rows by group, each part in order."""
    order = np.argsort(group, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(group[order])) + 1)


def _in_order(parts: Sequence[Ints]) -> Ints:
    return np.sort(np.concatenate(parts))
