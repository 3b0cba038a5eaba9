"""The demo's proof must find every way in which the output can be wrong: each test tampers with a right output."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from onceflow.demo.events import DATA
from onceflow.demo.expected import Sale, Total, expected_sales
from onceflow.demo.observed import Record
from onceflow.demo.proof import Findings, prove

PARTITIONS = 4
EXPECTED = expected_sales(DATA)

Records = list[Record]


def right_sales() -> Records:
    """What a right pipeline writes: every sale, the lines of an invoice in order and in one partition."""
    records: Records = []
    for sale in EXPECTED.values():
        value = {
            "line": sale.line,
            "invoice": sale.invoice,
            "stock_code": sale.stock_code,
            "description": sale.description,
            "quantity": sale.quantity,
            "pence": int(sale.amount * 100),
            "customer": sale.customer,
            "country": sale.country,
        }
        records.append(record(records, "sales", sale.invoice, {k: v for k, v in value.items() if v is not None}))
    return records


def right_revenue(every: int = 200) -> Records:
    """Running totals, told again for each country that sold something in the last ``every`` lines."""
    records: Records = []
    totals: dict[str, Total] = {}
    changed: dict[str, None] = {}
    for number, sale in enumerate(EXPECTED.values(), start=1):
        totals[sale.country] = totals.get(sale.country, Total()).plus(sale)
        changed[sale.country] = None
        if number % every == 0 or number == len(EXPECTED):
            for country in changed:
                total = totals[country]
                value = {"country": country, "lines": total.lines, "pence": int(total.amount * 100)}
                records.append(record(records, "revenue", country, value))
            changed.clear()
    return records


def record(before: Records, topic: str, key: str, value: dict[str, Any]) -> Record:
    text = json.dumps(value, ensure_ascii=False).encode()
    return Record(topic, sum(key.encode()) % PARTITIONS, len(before), key.encode(), text)


def changed(record: Record, **fields: object) -> Record:
    value = {**json.loads(record.value or b""), **fields}
    return dataclasses.replace(record, value=json.dumps(value).encode())


def found(sales: Records | None = None, revenue: Records | None = None, uncommitted: int = 0) -> Findings:
    return prove(
        EXPECTED,
        right_sales() if sales is None else sales,
        right_revenue() if revenue is None else revenue,
        uncommitted,
    )


def test_the_file_is_counted() -> None:
    assert len(EXPECTED) == 3108 - 26, "rows of the file, without the cancellations"
    assert EXPECTED[2] == Sale(
        line=2,
        invoice="536365",
        stock_code="85123A",
        description="WHITE HANGING HEART T-LIGHT HOLDER",
        quantity=6,
        amount=Decimal("15.30"),
        customer="17850.0",
        country="United Kingdom",
    )
    assert not any(sale.invoice.startswith("C") for sale in EXPECTED.values())


def test_equal_rows_are_different_sales() -> None:
    contents = {dataclasses.replace(sale, line=0) for sale in EXPECTED.values()}

    assert len(contents) < len(EXPECTED)


def test_a_right_output_holds() -> None:
    findings = found()

    assert findings.holds
    assert findings.sales.read == findings.sales.expected == len(EXPECTED)
    assert findings.sales.amount_read == sum(sale.amount for sale in EXPECTED.values())
    assert findings.revenue.countries == 7


def test_an_empty_output_is_all_missing() -> None:
    findings = found([], [])

    assert not findings.holds
    assert len(findings.sales.missing) == len(EXPECTED)
    assert len(findings.revenue.wrong_totals) == 7


def test_a_lost_sale() -> None:
    sales = right_sales()
    lost = json.loads(sales.pop(1000).value or b"")

    findings = found(sales)

    assert not findings.holds
    assert findings.sales.missing == (lost["line"],)
    assert findings.sales.wrong_countries == (lost["country"],)
    assert findings.sales.amount_read == findings.sales.amount_expected - Decimal(lost["pence"]) / 100


@pytest.mark.parametrize("again_at", [1001, 3082])
def test_a_sale_written_twice(again_at: int) -> None:
    sales = right_sales()
    sales.insert(again_at, dataclasses.replace(sales[1000], offset=9999))

    findings = found(sales)

    assert not findings.holds
    assert len(findings.sales.duplicated) == 1
    assert not findings.sales.missing
    assert not findings.sales.unexpected


def test_one_sale_lost_and_another_twice() -> None:
    """The count is right, the records are not."""
    sales = right_sales()
    sales[1000] = dataclasses.replace(sales[1001], offset=9999)

    findings = found(sales)

    assert findings.sales.read == findings.sales.expected
    assert not findings.holds
    assert len(findings.sales.missing) == len(findings.sales.duplicated) == 1


def test_two_sales_of_a_key_in_the_wrong_order() -> None:
    sales = right_sales()
    assert sales[0].key == sales[1].key
    sales[0], sales[1] = sales[1], sales[0]

    findings = found(sales)

    assert not findings.holds
    assert findings.sales.out_of_order == ("536365",)
    assert not findings.sales.missing
    assert not findings.sales.duplicated
    assert not findings.sales.unexpected


def test_a_key_in_two_partitions_has_no_order() -> None:
    sales = right_sales()
    assert sales[0].key == sales[1].key
    sales[1] = dataclasses.replace(sales[1], partition=sales[0].partition + 1)

    assert "536365" in found(sales).sales.out_of_order


def test_different_keys_have_no_order() -> None:
    sales = right_sales()

    assert found(sorted(sales, key=lambda each: each.key or b"", reverse=True)).holds


@pytest.mark.parametrize(
    "field",
    [
        {"quantity": 7},
        {"country": "France"},
        {"description": "white hanging heart t-light holder"},
        {"customer": None},
        {"line": 3},
    ],
)
def test_an_altered_sale(field: dict[str, object]) -> None:
    sales = right_sales()
    sales[0] = changed(sales[0], **field)

    findings = found(sales)

    assert not findings.holds
    assert len(findings.sales.unexpected) == 1
    assert findings.sales.missing == (2,)


def test_a_penny_too_much() -> None:
    sales = right_sales()
    sales[0] = changed(sales[0], pence=1531)

    findings = found(sales)

    assert not findings.holds
    assert findings.sales.amount_read - findings.sales.amount_expected == Decimal("0.01")
    assert findings.sales.wrong_countries == ("United Kingdom",)


@pytest.mark.parametrize(
    "tamper",
    [
        lambda one: dataclasses.replace(one, value=b"no JSON"),
        lambda one: dataclasses.replace(one, value=b"[]"),
        lambda one: dataclasses.replace(one, value=None),
        lambda one: dataclasses.replace(one, key=None),
        lambda one: dataclasses.replace(one, key=b"another"),
        lambda one: changed(one, pence=1530.0),
        lambda one: changed(one, line="2"),
    ],
)
def test_a_record_that_is_no_sale(tamper: Callable[[Record], Record]) -> None:
    sales = right_sales()
    sales.append(dataclasses.replace(tamper(sales[0]), offset=9999))

    findings = found(sales)

    assert not findings.holds
    assert len(findings.sales.unexpected) == 1
    assert not findings.sales.missing
    assert not findings.sales.duplicated


def test_a_cancellation_that_was_not_dropped() -> None:
    sales = right_sales()
    sales.append(changed(dataclasses.replace(sales[0], key=b"C536379", offset=9999), invoice="C536379", line=143))

    assert len(found(sales).sales.unexpected) == 1


def test_a_last_total_that_is_a_penny_off() -> None:
    revenue = right_revenue()
    last = json.loads(revenue[-1].value or b"")
    revenue[-1] = changed(revenue[-1], pence=last["pence"] + 1)

    findings = found(revenue=revenue)

    assert not findings.holds
    assert findings.revenue.wrong_totals == (last["country"],)


def test_a_last_total_that_is_missing() -> None:
    revenue = right_revenue()
    last = json.loads(revenue.pop().value or b"")

    findings = found(revenue=revenue)

    assert not findings.holds
    assert findings.revenue.wrong_totals == (last["country"],)


def test_a_total_told_twice() -> None:
    revenue = right_revenue()
    revenue.insert(1, dataclasses.replace(revenue[0], offset=9999))

    findings = found(revenue=revenue)

    assert not findings.holds
    assert findings.revenue.duplicated == ("United Kingdom",)


def test_totals_that_go_back() -> None:
    revenue = right_revenue()
    first, second = [at for at, each in enumerate(revenue) if each.key == b"United Kingdom"][:2]
    revenue[first], revenue[second] = revenue[second], revenue[first]

    findings = found(revenue=revenue)

    assert not findings.holds
    assert findings.revenue.out_of_order == ("United Kingdom",)


def test_a_country_that_is_not_in_the_file() -> None:
    revenue = right_revenue()
    revenue.append(record(revenue, "revenue", "Atlantis", {"country": "Atlantis", "lines": 1, "pence": 1}))

    findings = found(revenue=revenue)

    assert not findings.holds
    assert len(findings.revenue.unexpected) == 1


def test_something_left_hanging() -> None:
    findings = found(uncommitted=1)

    assert not findings.holds
    assert findings.sales.holds
    assert findings.revenue.holds
