"""What must come out, counted from the CSV file alone: Python's csv and decimal, nothing of the pipeline."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sale:
    """One line that was sold. ``line`` is where it stands in the file; ``amount`` is in pounds."""

    line: int
    invoice: str
    stock_code: str
    description: str | None
    quantity: int
    amount: Decimal
    customer: str | None
    country: str


@dataclass(frozen=True, slots=True)
class Total:
    """Lines and pounds."""

    lines: int = 0
    amount: Decimal = Decimal(0)

    def plus(self, sale: Sale) -> Total:
        return Total(self.lines + 1, self.amount + sale.amount)


def expected_sales(data: Path) -> dict[int, Sale]:
    """Every line that is no cancellation, by its place in the file."""
    with data.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        column = {name: index for index, name in enumerate(next(reader))}
        sales = {}
        for row in reader:
            invoice = row[column["InvoiceNo"]]
            if invoice.startswith("C"):
                continue
            quantity = int(row[column["Quantity"]])
            sales[reader.line_num] = Sale(
                line=reader.line_num,
                invoice=invoice,
                stock_code=row[column["StockCode"]],
                description=row[column["Description"]] or None,
                quantity=quantity,
                amount=quantity * Decimal(row[column["UnitPrice"]]),
                customer=row[column["CustomerID"]] or None,
                country=row[column["Country"]],
            )
        return sales


def totals_of(sales: Iterable[Sale]) -> dict[str, Total]:
    """Lines and pounds per country."""
    totals: dict[str, Total] = defaultdict(Total)
    for sale in sales:
        totals[sale.country] = totals[sale.country].plus(sale)
    return dict(totals)
