"""The weaker guarantees do what they say: a driver that dies between records and offsets repeats a batch, or loses one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from onceflow.transaction.requests import Requests
from onceflow.transaction.writing import BatchWriter

if TYPE_CHECKING:
    from tests.conftest import Workbench

RECORDS = [(f"k{number % 5}", str(number)) for number in range(60)]


class Died(Exception):
    """The driver's death."""


def die(*arguments: object, **options: object) -> None:
    raise Died


def counts(bench: Workbench, target: str) -> Counter[tuple[str, str]]:
    return Counter(((m.key() or b"").decode(), (m.value() or b"").decode()) for m in bench.read(target))


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_without_a_failure_every_record_is_there_once(guarantee: str, bench: Workbench) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, RECORDS)
    bench.run(source, target, {"guarantee": guarantee})
    assert counts(bench, target) == Counter(RECORDS)


@pytest.mark.parametrize(
    ("guarantee", "dies_in", "times"),
    [
        ("at_least_once", (Requests, "commit_offsets"), 2),  # records are written, offsets are not: written again
        ("at_most_once", (BatchWriter, "write"), 0),  # progress is committed, records are not written: never again
        ("exactly_once", (BatchWriter, "write"), 1),
    ],
)
def test_a_driver_that_dies_between_records_and_offsets(
    guarantee: str, dies_in: tuple[type, str], times: int, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, RECORDS)
    with monkeypatch.context() as patched:
        patched.setattr(*dies_in, die)
        with pytest.raises(Exception, match="FOREACH_BATCH"):
            bench.run(source, target, {"guarantee": guarantee})
    bench.run(source, target, {"guarantee": guarantee})
    assert counts(bench, target) == Counter({record: times for record in RECORDS if times})
