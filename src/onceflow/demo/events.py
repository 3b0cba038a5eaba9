"""The input: each row of the retail data as one event in the topic ``invoices``."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from onceflow.demo.topics import INVOICES
from onceflow.errors import RequestFailed

DATA = Path(__file__).with_name("data") / "online-retail-2010-12-01.csv"
_FLUSH_TIMEOUT_S = 60


def read_events(data: Path = DATA) -> Iterator[tuple[str, str]]:
    """Key (the invoice) and value (JSON) of each event.

    The columns stay text, as they are in the file. ``line``, where the row ends in the file, tells rows apart that are
    equal in every column: two equal rows are two sales.
    """
    with data.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        for row in rows:
            yield row["InvoiceNo"], json.dumps({"line": rows.line_num, **row}, ensure_ascii=False)


def load(bootstrap_servers: str) -> int:
    """Write all events, in the order of the file, and give their number. Raises RequestFailed if one is not accepted."""
    # The broker repeats nothing that this producer sends again, and keeps the order of each key.
    settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 20, "log_level": 2}
    producer = Producer(settings)
    refused: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(str(error))

    count = 0
    for key, value in read_events():
        producer.produce(INVOICES, key=key, value=value, on_delivery=delivered)
        producer.poll(0)
        count += 1
    left = producer.flush(_FLUSH_TIMEOUT_S)
    if left or refused:
        raise RequestFailed(f"{left or len(refused)} of {count} events were not written: {refused[:1]}")
    return count
