"""A cleaner that never rests: compaction takes what was not read yet, under a pipeline's source, its output and a Reader.

Whoever reads a compacted topic has asked for the newest value of each key. What is older may be gone, and leaves offsets at
which there is nothing: that is no loss, and nothing else may be missed for it. All topics of this broker are cleaned, those in
which the cluster keeps offsets and transactions too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from tests.conftest import HEAP_MB, read_topic
from tests.faults.support import eventually
from tests.log_ends import log_ends
from tests.reader.support import Place
from tests.test_state import expected, last_totals, records, totals

from onceflow.broker import EmbeddedBroker

if TYPE_CHECKING:
    from tests.conftest import Fill, Workbench

pytestmark = pytest.mark.faults

CLEANS_ALWAYS = {
    "log.cleanup.policy": "compact",
    "log.roll.ms": "50",
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "0",
}
KEYS = [f"k{number}" for number in range(5)]
DELETED = "deleted"
LAST = "last"  # of the newest segment, which is not cleaned
PATIENCE_S = 240.0
Record = tuple[str, str | None]


@pytest.fixture(scope="module", params=[1, 2])
def cleaning(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker of each transaction version."""
    directory = tmp_path_factory.mktemp("cleaning")
    version = request.param
    with EmbeddedBroker(directory, transaction_version=version, heap_mb=HEAP_MB, config=CLEANS_ALWAYS) as running:
        yield running


@pytest.fixture
def cleaned(bench: Workbench, cleaning: EmbeddedBroker) -> Workbench:
    return replace(
        bench,
        broker=cleaning,
        topic=partial(bench.topic, on=cleaning),
        fill=partial(bench.fill, on=cleaning),
        read=partial(bench.read, on=cleaning),
        run_query=partial(bench.run_query, on=cleaning),
    )


def record_of(message: Message) -> Record:
    key, value = message.key(), message.value()
    assert isinstance(key, bytes)
    return key.decode(), value.decode() if isinstance(value, bytes) else None


def but_the_last(found: list[Record]) -> list[Record]:
    return [each for each in found if each[0] != LAST]


def until_cleaned(broker: EmbeddedBroker, topic: str, fill: Fill) -> list[Record]:
    """What is left when each key has its newest value alone. Each look begins a segment: the newest one is not cleaned."""

    def look() -> list[Record]:
        fill(topic, [(LAST, "x")], on=broker)
        return but_the_last([record_of(each) for each in read_topic(broker, topic)])

    def is_clean(left: list[Record]) -> bool:
        return max(Counter(key for key, _ in left).values()) == 1 and (DELETED, None) not in left

    return eventually(look, is_clean, f"{topic} is cleaned", PATIENCE_S)


def rounds(first: int, last: int) -> list[Record]:
    return [(key, f"{key}-{number}") for number in range(first, last) for key in KEYS]


FIRST, SECOND = rounds(0, 6), [(DELETED, "x"), *rounds(6, 20), (DELETED, None)]
NEWEST = rounds(19, 20)


def check_that_who_takes_gaps_for_losses_would_be_wrong(broker: EmbeddedBroker, topic: str) -> None:
    """The control: at most of the offsets behind those that were read there is nothing, and it takes each of these for a loss."""
    offsets = sorted(each.offset() or 0 for each in read_topic(broker, topic))
    assert offsets[-1] - len(FIRST) > 2 * len(offsets)
    lost, due = 0, len(FIRST)
    for offset in offsets:
        if offset >= due:
            lost, due = lost + offset - due, offset + 1
    assert lost > len(offsets)


def test_a_pipeline_reads_what_is_left_once_and_takes_no_gap_for_a_loss(cleaned: Workbench, fill: Fill) -> None:
    source, target = cleaned.topic(), cleaned.topic(config={"cleanup.policy": "delete"})
    cleaned.fill(source, FIRST)
    cleaned.run(source, target, maxOffsetsPerTrigger=10)
    cleaned.fill(source, SECOND)
    assert until_cleaned(cleaned.broker, source, fill) == NEWEST
    check_that_who_takes_gaps_for_losses_would_be_wrong(cleaned.broker, source)
    cleaned.run(source, target, maxOffsetsPerTrigger=10)
    assert but_the_last([record_of(each) for each in cleaned.read(target)]) == FIRST + NEWEST


def test_an_output_that_is_cleaned_while_it_is_written_is_complete(cleaned: Workbench) -> None:
    """The audit counts what the leaders hold: what is cleaned behind the open transaction is not missed in it."""
    source, target = cleaned.topic(2), cleaned.topic(2)

    def run(until: int, on_step: Callable[[str, int], None] | None = None) -> None:
        cleaned.fill(source, records(until)[until - 120 :])
        options = {"transform": totals, "mode": "update", "maxOffsetsPerTrigger": 40}
        waits = {"on_step": on_step, "transaction_timeout_ms": 600_000}  # for the cleaner, with the transaction open
        cleaned.run(source, target, waits if on_step else {}, **options)

    def older() -> Counter[str]:
        uncommitted = cleaned.read(target, committed=False)
        return Counter(record_of(each)[0] for each in uncommitted if (each.offset() or 0) < ends[each.partition() or 0])

    def clean(step: str, batch_id: int) -> None:
        if step == "AUDIT":
            met.append(batch_id)
            eventually(
                older, lambda left: max(left.values(), default=0) <= 1, "what came before is cleaned", PATIENCE_S
            )

    run(120)
    met = list[int]()
    ends = log_ends(AdminClient({"bootstrap.servers": cleaned.broker.bootstrap_servers}), target, range(2))
    run(240, clean)
    assert len(met) >= 3
    assert last_totals(cleaned, target) == expected(240)


def test_a_reader_handles_what_is_left_once_and_takes_no_gap_for_a_loss(
    cleaning: EmbeddedBroker, fill: Fill, tmp_path: Path
) -> None:
    place = Place(cleaning, tmp_path)
    try:
        fill(place.topic, FIRST, on=cleaning)
        place.book_all()
        assert len(place.effects()) == len(FIRST)
        fill(place.topic, SECOND, on=cleaning)
        assert until_cleaned(cleaning, place.topic, fill) == NEWEST
        check_that_who_takes_gaps_for_losses_would_be_wrong(cleaning, place.topic)
        place.book_all()
        new = place.effects()[len(FIRST) :]
        assert [each for each in new if each != "x"] == [value for _, value in NEWEST]
        assert place.committed() == log_ends(place.admin, place.topic, [0])
    finally:
        place.close()
