"""What a broker says of single records, as rows of whoever gave them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from onceflow.errors import InputError, RecordTooLarge
from onceflow.ingest.refused_rows import AttemptTopics, refused_rows
from onceflow.outbox.records import as_records
from onceflow.outbox.refusals import error_of, refused_by_kafka
from onceflow.outbox.table import OutboxRow
from onceflow.transaction.partitioner import assign_partitions
from onceflow.transaction.router import TopicInfo

COUNT = 3
LATE = "Timestamp 4102444800000 of message with offset 1 is out of range."


def topics(count: int = COUNT) -> AttemptTopics:
    return AttemptTopics(lambda topic: TopicInfo(count, 1_000_000))


def keyed(*keys: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string())})


def refused(partition: int, records: dict[int, str | None], topic: str = "out") -> InputError:
    return InputError("the broker says no", topic=topic, partition=partition, records=records)


def placed(batches: list[pa.RecordBatch], partition: int, seed: int = 0) -> list[int]:
    """The row numbers that the producer sends there, one batch after the other."""
    found: list[int] = []
    first = 0
    for batch in batches:
        parts = assign_partitions(
            batch.column("key"), None, COUNT, rows=batch.num_rows, seed=seed, first_row=first
        ).tolist()
        found += [first + n for n, part in enumerate(parts) if part == partition]
        first += batch.num_rows
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "batches",
    [
        [keyed(*"abcdefghij")],
        [keyed(*"abcde"), keyed(*"fghij"), keyed(*"ab")],
        [keyed(*[None] * 300), keyed(*[None] * 600)],
    ],
    ids=["one batch", "three", "without keys"],
)
def test_a_record_is_the_row_that_was_sent_there(batches: list[pa.RecordBatch], seed: int) -> None:
    rows = [("else", keyed("x")), *(("out", batch) for batch in batches)]
    seen = set()
    for partition in range(COUNT):
        there = placed(batches, partition, seed)
        for record, row in enumerate(there):
            assert refused_rows(refused(partition, {record: LATE}), rows, topics(), seed) == {row: LATE}
            seen.add(row)
    assert seen == set(range(sum(batch.num_rows for batch in batches)))


def test_several_are_named_and_one_without_a_reason_gets_one() -> None:
    rows = [("out", keyed(*"aaaa"))]
    [partition] = set(assign_partitions(pa.array(["a"]), None, COUNT, rows=1, seed=0, first_row=0).tolist())
    named = refused_rows(refused(partition, {0: LATE, 3: None}), rows, topics(), 0)
    assert named == {0: LATE, 3: "the broker refuses it"}


def test_a_partition_that_is_added_meanwhile_moves_no_row() -> None:
    counts = iter([COUNT, COUNT + 4])
    met = AttemptTopics(lambda topic: TopicInfo(next(counts), 1_000_000))
    assert met.find("out").partitions == COUNT
    rows = [("out", keyed(*"abcdefghij"))]
    there = placed([rows[0][1]], 1)
    assert refused_rows(refused(1, {len(there) - 1: LATE}), rows, met, 0) == {there[-1]: LATE}


@pytest.mark.parametrize("error", [InputError("no names"), RecordTooLarge("large", topic="out", partition=1, row=7)])
def test_where_no_record_is_named_no_row_is(error: InputError) -> None:
    assert refused_rows(error, [("out", keyed("a"))], topics(), 0) == {}


# ------------------------------------------------------------------------------------------------------- of the outbox


def row(position: int, kind: str = "order", **fields: Any) -> OutboxRow:
    found: dict[str, Any] = {
        "id": f"e{position}",
        "aggregateid": "7",
        "type": "Changed",
        "payload": b"1",
        "inserted_at_ms": 5,
        **fields,
    }
    return OutboxRow(position=position, aggregatetype=kind, **found)


def test_rows_are_counted_within_their_topic() -> None:
    rows = [row(11), row(12, "invoice"), row(13), row(14, "invoice")]
    error = InputError("no", topic="outbox.event.invoice", rows={1: LATE})
    assert refused_by_kafka(error, rows) == [(rows[3], LATE)]
    large = RecordTooLarge("large", topic="outbox.event.order", row=1)
    assert refused_by_kafka(large, rows) == [(rows[2], "large")]


@pytest.mark.parametrize("topic", ["onceflow-positions-outbox-shop", "outbox.dead-letter.shop", None])
def test_what_is_no_event_is_no_row_s_fault(topic: str | None) -> None:
    assert refused_by_kafka(InputError("no", topic=topic, rows={0: LATE}), [row(1)]) == []


def test_the_relay_names_them_as_the_table_has_them() -> None:
    rows = [row(number) for number in range(1, 13)]
    error = error_of(InputError("no", topic="outbox.event.order"), [(each, LATE) for each in rows])
    assert f"event e1 (type Changed) of order '7' at position 1: {LATE}" in error.message
    assert "and 2 more" in error.message
    assert "--refused dead-letter" in error.action
    assert "message.timestamp.after.max.ms" in error.action
    assert error.fields["positions"] == tuple(range(1, 13))


def test_a_letter_does_not_carry_the_time_that_was_refused() -> None:
    [(topic, batch)] = as_records([row(1, inserted_at_ms=4_102_444_800_000)], "/outbox", 0, {1: LATE}, "letters")
    assert topic == "letters"
    assert batch.column("timestamp").to_pylist() == [None]
    assert json.loads(batch.column("value")[0].as_py())["reason"] == LATE
