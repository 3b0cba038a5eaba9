"""Errors of single rows, found in Spark's text: they promise no more than each guarantee keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import InputError
from onceflow.pipeline.loops import find_loop
from onceflow.pipeline.malformed import find_malformed


@pytest.mark.parametrize(
    ("find", "text"),
    [
        (find_loop, "onceflow: a source of the plan reads the topic <lines>"),
        (find_malformed, "onceflow: malformed JSON in topic lines, partition 0, offset 3"),
    ],
)
def test_only_exactly_once_has_written_nothing_of_a_batch_with_such_a_row(
    find: Callable[[str], InputError | None], text: str
) -> None:
    """Under at least once what came before the row may be out; under at most once the batch is committed before it is written."""
    found = find(f"x\n\tat a.b\nCaused by: {text} SQLSTATE")
    assert found is not None
    assert found.fields["topic"] == "lines"
    assert "; under exactly_once nothing of " in found.message
    assert find("another error") is None
