"""Several readings of the sources: whether one committed offset of each partition tells where all of them are."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.transaction.source_ends import readings_agree


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
