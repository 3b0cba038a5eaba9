"""Which topics a checkpoint's offsets are of: what is noted of that."""

from __future__ import annotations

import pytest

from onceflow.transaction.read_topics import parsed


@pytest.mark.parametrize("text", ["", "{", '{"lines": "a"', "[]", "null", '"a"'])
def test_half_a_file_says_nothing(text: str) -> None:
    assert parsed(text) == {}


def test_ids_are_noted_by_topic() -> None:
    assert parsed('{"lines": "a", "odd": 1}') == {"lines": "a"}
