"""Which damaged file of a checkpoint may be removed, and the query goes on with its state."""

from __future__ import annotations

import pytest

from onceflow.pipeline.checkpoint import CheckpointState


@pytest.mark.parametrize(
    ("damaged", "has_state", "can_be_mended"),
    [
        ("commits/7", False, True),
        ("commits/7", True, True),
        ("commits/6", False, True),
        ("commits/6", True, False),  # batch 7 is planned, and would look there for the state that it goes on from
        ("offsets/7", False, False),
        ("metadata", False, False),
        ("", False, False),
    ],
)
def test_only_a_commit_entry_whose_state_nobody_needs_can_be_removed(
    damaged: str, *, has_state: bool, can_be_mended: bool
) -> None:
    state = CheckpointState("query", 7, 1, damaged=damaged, has_state=has_state)
    assert state.can_be_mended is can_be_mended
