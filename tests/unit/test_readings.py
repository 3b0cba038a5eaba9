"""Several readings of the sources: whether one committed offset of each partition tells where all of them are."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.transaction.source_ends import all_kafka, kafka_offsets, readings_agree, rows_between


@pytest.mark.parametrize(
    "sources",
    [
        [],
        [None, {"t": {"0": 5}}],
        [{"t": {"0": 5, "1": 7}}, {"t": {"1": 7, "0": 5}}],
        [{"t": {"0": 5}}, {"u": {"0": 6}}, {"t": {"0": 5}}],
        [{"t": {"0": 5}, "u": {"0": 6}}, {"t": {"0": 5}, "v": {"0": 1}}],
        [{"t": {"0": 5}}, {"t": {"1": 7}}],
        [{"logOffset": 3}, {"logOffset": 4}],
    ],
    ids=[
        "none", "one has none yet", "the same", "another topic in between", "a topic in common", "no partition in common",
        "files",
    ],
)  # fmt: skip
def test_one_offset_tells_of_all(sources: list[Any]) -> None:
    assert readings_agree(sources)


@pytest.mark.parametrize(
    "sources",
    [
        [{"t": {"0": 5}}, {"t": {"0": 6}}],
        [{"t": {"0": 5}}, {"u": {"0": 1}}, {"t": {"0": 6}}],
        [{"t": {"0": 5}}, {"t": {"0": 5, "1": 7}}],
    ],
    ids=["other offsets", "another topic in between", "a partition that one alone knows"],
)
def test_one_offset_does_not_tell_of_readings_that_are_elsewhere(sources: list[Any]) -> None:
    assert not readings_agree(sources)


def test_of_a_partition_that_is_read_twice_the_lower_offset_is_told() -> None:
    slower, faster = {"t": {"0": 5, "1": 9}}, {"t": {"0": 6, "1": 8}, "u": {"3": 1}}
    merged = {("t", 0): 5, ("t", 1): 8, ("u", 3): 1}
    assert kafka_offsets([slower, None, faster]) == kafka_offsets([faster, slower, {"logOffset": 3}]) == merged


@pytest.mark.parametrize(
    ("offsets", "is_kafka"),
    [
        ({"t": {"0": 5}}, True),
        ({}, True),
        ({"t": {"0": "5"}}, False),
        ({"t": {"zero": 5}}, False),
        ({"t": {0: 5}}, True),
        ({"logOffset": 3}, False),
        (3, False),
    ],
)
def test_only_kafka_tells_an_offset_of_each_partition(offsets: Any, is_kafka: bool) -> None:
    assert all_kafka([{"t": {"0": 1}}, None, offsets]) is is_kafka
    assert (kafka_offsets([offsets]) == {}) is (not is_kafka or offsets == {})


def test_rows_lie_between_two_offsets_and_a_partition_that_is_new_begins_at_the_first() -> None:
    start = {"t": {"0": 5, "1": 7}}
    assert rows_between(start, {"t": {"0": 8, "1": 7, "2": 4}, "u": {"0": 2}}) == 3 + 0 + 4 + 2
    assert rows_between(start, {"t": {"0": 2, "1": 9}}) == 2, "a topic that was made anew takes none away"
    assert rows_between({}, {}) == 0
