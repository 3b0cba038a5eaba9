"""Compares what came out with what must come out. Pure: records in, findings out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from onceflow.demo.expected import Sale, Total, totals_of
from onceflow.demo.observed import Record


@dataclass(frozen=True, slots=True)
class SalesFindings:
    """The topic of single sales. A record that is not exactly its line of the file is unexpected."""

    expected: int
    read: int
    missing: tuple[int, ...]
    duplicated: tuple[int, ...]  # the line of each record too many
    unexpected: tuple[str, ...]
    out_of_order: tuple[str, ...]  # the key of each record that comes too late
    amount_expected: Decimal
    amount_read: Decimal
    wrong_countries: tuple[str, ...]

    @property
    def holds(self) -> bool:
        wrong = (self.missing, self.duplicated, self.unexpected, self.out_of_order, self.wrong_countries)
        return not any(wrong) and self.read == self.expected and self.amount_read == self.amount_expected


@dataclass(frozen=True, slots=True)
class RevenueFindings:
    """The topic of running totals. ``wrong_totals``: the countries whose last total is not the one of the file."""

    countries: int
    read: int
    duplicated: tuple[str, ...]  # the country of each record that tells a total again
    unexpected: tuple[str, ...]
    out_of_order: tuple[str, ...]
    wrong_totals: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not any((self.duplicated, self.unexpected, self.out_of_order, self.wrong_totals))


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the proof found of one pipeline. ``uncommitted``: offsets that no read_committed reader gets to."""

    sales: SalesFindings
    revenue: RevenueFindings
    uncommitted: int

    @property
    def holds(self) -> bool:
        return self.sales.holds and self.revenue.holds and self.uncommitted == 0


def prove(
    expected: Mapping[int, Sale], sales: Sequence[Record], revenue: Sequence[Record], uncommitted: int
) -> Findings:
    """Every expected sale exactly once, unchanged and in order per key; sums to the penny; nothing left hanging."""
    totals = totals_of(expected.values())
    return Findings(_sales_findings(expected, totals, sales), _revenue_findings(totals, revenue), uncommitted)


def _sales_findings(
    expected: Mapping[int, Sale], totals: Mapping[str, Total], records: Sequence[Record]
) -> SalesFindings:
    read = [(record, sale) for record in records if (sale := _sale(record)) is not None]
    right = [(record, sale) for record, sale in read if expected.get(sale.line) == sale]
    times = Counter(sale.line for _, sale in right)
    read_totals = totals_of(sale for _, sale in read)
    return SalesFindings(
        expected=len(expected),
        read=len(records),
        missing=tuple(sorted(expected.keys() - times.keys())),
        duplicated=tuple(sorted((times - Counter(times.keys())).elements())),
        unexpected=_others(records, [record for record, _ in right]),
        out_of_order=_out_of_order((record, sale.line) for record, sale in right),
        amount_expected=_sum(totals),
        amount_read=_sum(read_totals),
        wrong_countries=_different(totals, read_totals),
    )


def _revenue_findings(totals: Mapping[str, Total], records: Sequence[Record]) -> RevenueFindings:
    read = [(record, *told) for record in records if (told := _country_total(record)) is not None]
    right = [(record, country, total) for record, country, total in read if country in totals]
    times = Counter((country, total) for _, country, total in right)
    last = {country: total for _, country, total in right}
    return RevenueFindings(
        countries=len(totals),
        read=len(records),
        duplicated=tuple(sorted(country for country, _ in (times - Counter(times.keys())).elements())),
        unexpected=_others(records, [record for record, _, _ in right]),
        out_of_order=_out_of_order((record, total.lines) for record, _, total in right),
        wrong_totals=_different(totals, last),
    )


# --------------------------------------------------------------------------------------------------------------- records


def _sale(record: Record) -> Sale | None:
    fields = _fields(record)
    try:
        sale = Sale(
            line=_whole(fields["line"]),
            invoice=fields["invoice"],
            stock_code=fields["stock_code"],
            description=fields.get("description"),
            quantity=_whole(fields["quantity"]),
            amount=_pounds(fields["pence"]),
            customer=fields.get("customer"),
            country=fields["country"],
        )
        return sale if record.key == sale.invoice.encode() else None
    except (KeyError, TypeError, AttributeError):
        return None


def _country_total(record: Record) -> tuple[str, Total] | None:
    fields = _fields(record)
    try:
        country = fields["country"]
        total = Total(_whole(fields["lines"]), _pounds(fields["pence"]))
        return (country, total) if record.key == country.encode() else None
    except (KeyError, TypeError, AttributeError):
        return None


def _fields(record: Record) -> dict[str, Any]:
    try:
        fields = json.loads(record.value or b"")
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _whole(number: object) -> int:
    if not isinstance(number, int):
        raise TypeError(f"{number!r} is no whole number")
    return number


def _pounds(pence: object) -> Decimal:
    return Decimal(_whole(pence)).scaleb(-2)


# ----------------------------------------------------------------------------------------------------------- comparisons


def _others(records: Sequence[Record], known: Sequence[Record]) -> tuple[str, ...]:
    """Which of ``records`` are not among ``known``, as text."""
    positions = {(record.topic, record.partition, record.offset) for record in known}
    others = [record for record in records if (record.topic, record.partition, record.offset) not in positions]
    return tuple(f"{each.topic}-{each.partition}@{each.offset}: {each.value!r}" for each in others)


def _out_of_order(numbered: Iterable[tuple[Record, int]]) -> tuple[str, ...]:
    """The keys of the records whose number is below one that came before, or that are in another partition than it."""
    last: dict[bytes | None, tuple[int, int]] = {}
    late = []
    for record, number in numbered:
        partition, before = last.get(record.key, (record.partition, number))
        if record.partition != partition or number < before:
            late.append((record.key or b"").decode(errors="replace"))
        last[record.key] = record.partition, max(before, number)
    return tuple(late)


def _different(expected: Mapping[str, Total], read: Mapping[str, Total]) -> tuple[str, ...]:
    return tuple(sorted(each for each in expected.keys() | read.keys() if expected.get(each) != read.get(each)))


def _sum(totals: Mapping[str, Total]) -> Decimal:
    return sum((total.amount for total in totals.values()), Decimal(0))
