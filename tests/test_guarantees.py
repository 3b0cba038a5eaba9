"""The weaker guarantees do what they say: a driver that dies between records and offsets repeats a batch, or loses one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceflow import KafkaSink
from onceflow.broker import EmbeddedBroker
from onceflow.transaction.requests import Requests
from onceflow.transaction.writing import BatchWriter

if TYPE_CHECKING:
    from tests.conftest import Fill, Reader, RunQuery, TopicFactory

RECORDS = [(f"k{number % 5}", str(number)) for number in range(60)]


class Died(Exception):
    """The driver's death."""


def die(*arguments: object, **options: object) -> None:
    raise Died


def counts(read: Reader, target: str) -> Counter[tuple[str, str]]:
    return Counter(((m.key() or b"").decode(), (m.value() or b"").decode()) for m in read(target))


def run(guarantee: str, source: str, target: str, run_query: RunQuery, broker: EmbeddedBroker, path: Path) -> None:
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers, guarantee=guarantee)
    try:
        run_query(source, sink, path)
    finally:
        sink.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_without_a_failure_every_record_is_there_once(
    guarantee: str,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    broker: EmbeddedBroker,
    tmp_path: Path,
) -> None:
    source, target = topic(2), topic(2)
    fill(source, RECORDS)
    run(guarantee, source, target, run_query, broker, tmp_path)
    assert counts(read, target) == Counter(RECORDS)


@pytest.mark.parametrize(
    ("guarantee", "dies_in", "times"),
    [
        ("at_least_once", (Requests, "commit_offsets"), 2),  # records are written, offsets are not: written again
        ("at_most_once", (BatchWriter, "write"), 0),  # progress is committed, records are not written: never again
        ("exactly_once", (BatchWriter, "write"), 1),
    ],
)
def test_a_driver_that_dies_between_records_and_offsets(
    guarantee: str,
    dies_in: tuple[type, str],
    times: int,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = topic(2), topic(2)
    fill(source, RECORDS)
    with monkeypatch.context() as patched:
        patched.setattr(*dies_in, die)
        with pytest.raises(Exception, match="FOREACH_BATCH"):
            run(guarantee, source, target, run_query, broker, tmp_path)
    run(guarantee, source, target, run_query, broker, tmp_path)
    assert counts(read, target) == Counter({record: times for record in RECORDS if times})
