"""Damage to output alone, which only the copiers' function tells from good output: nothing that was sent is lost, or repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.verify.checker.mutants import Damage, Mutant, Row, Rows, leave_the_last_record_to_nobody

OUTPUT_MUTANTS: list[Mutant] = []


def diverges(told: str, *beside: str) -> Callable[[Damage], Damage]:
    """Registers a damage of which this is to be ``told``; ``beside``: what other checks find as well."""

    def register(damage: Damage) -> Damage:
        OUTPUT_MUTANTS.append(Mutant(damage.__name__, damage, ("diverged_output", *beside), told))
        return damage

    return register


@diverges("output of this record is missing")
def never_write_a_record(rows: Rows) -> list[Row]:
    """A transaction consumes it, and sends what it sends without this one."""
    row = rows.pick(_written(rows))[0]
    return Rows(rows.without_reads_of(row), 0).without(row)


@diverges("nothing in the input leads to this record")
def write_a_record_of_nothing(rows: Rows) -> list[Row]:
    return _with_one_more(rows, rows.pick(_written(rows))[0]["key"], 10**9)


@diverges("nothing in the input leads to this record", "duplicated")
def write_a_record_once_more(rows: Rows) -> list[Row]:
    row = rows.pick(_written(rows))[0]
    return _with_one_more(rows, row["key"], row["value"])


@diverges("it stands before output of an earlier record")
def write_two_records_in_another_order(rows: Rows) -> list[Row]:
    """They are sent in the order in which they stand, so that no other check sees anything wrong."""
    pairs = [pair for sends in rows.copies().values() for pair in itertools.pairwise(sends)]
    one, other = rows.random.choice([(one, other) for one, other in pairs if one["key"] == other["key"]])
    values = {one["value"]: other["value"], other["value"]: one["value"]}

    def after(row: Row) -> Row:
        swapped = row["key"] == one["key"] and row["kind"] in ("send", "poll") and row["value"] in values
        return {**row, "value": values[row["value"]]} if swapped else row

    return [after(row) for row in rows.all]


@diverges("another transaction wrote it than consumed its input")
def write_a_record_in_another_transaction(rows: Rows) -> list[Row]:
    row = rows.pick(_written(rows))[0]
    same = {name: row[name] for name in ("kind", "key", "offset", "value")}
    return Rows(rows.and_then({**same, "process": "another copier", "txn": 10**6}), 0).without(row)


@diverges("its input is not committed as processed", "stuck_progress")
def write_a_record_that_is_left_to_nobody(rows: Rows) -> list[Row]:
    return leave_the_last_record_to_nobody(rows)


def _written(rows: Rows) -> list[Row]:
    """The output of committed transactions, as far as the log surely still has it."""
    return [row for sends in rows.copies().values() for row in sends]


def _with_one_more(rows: Rows, key: str, value: int) -> list[Row]:
    """A transaction that consumes nothing has written it to the end."""
    new = {"key": key, "value": value, "offset": rows.last(key) + 5}
    return rows.and_then(
        {"process": "another copier", "kind": "send", "txn": 10**6, **new},
        {"process": "late reader", "kind": "poll", **new},
    )
