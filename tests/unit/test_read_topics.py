"""Which topics a checkpoint's offsets are of: ids are compared only where both are known."""

from __future__ import annotations

import pytest

from onceflow.transaction.progress import differ
from onceflow.transaction.read_topics import parsed


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [("a", "b", True), ("a", "a", False), (None, "b", False), ("a", "", False), ("", "b", False)],
)
def test_topics_differ_where_both_ids_are_known(before: str | None, now: str | None, expected: bool) -> None:
    assert differ(before, now) is expected


@pytest.mark.parametrize("text", ["", "{", '{"lines": "a"', "[]", "null", '"a"'])
def test_half_a_file_says_nothing(text: str) -> None:
    assert parsed(text) == {}


def test_ids_are_noted_by_topic() -> None:
    assert parsed('{"lines": "a", "odd": 1}') == {"lines": "a"}
