"""Which frame of a batch is refused: one more of the same run, under the same name. All others may come."""

from __future__ import annotations

import pytest

from onceflow.errors import UnsafeSession
from onceflow.transaction import once_a_batch
from onceflow.transaction.once_a_batch import check_first, note_done


@pytest.fixture(autouse=True)
def nothing_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_a_batch, "_done", {})


def test_a_batch_may_come_until_it_is_done() -> None:
    check_first("cluster", "orders", "run", 7)
    check_first("cluster", "orders", "run", 7)


def test_a_second_frame_of_a_batch_that_is_done_is_refused() -> None:
    note_done("cluster", "orders", "run", 7)
    with pytest.raises(
        UnsafeSession, match=r"(?s)'orders': batch 7 was committed a moment ago.*unite the frames"
    ) as caught:
        check_first("cluster", "orders", "run", 7)
    assert caught.value.fields == {"name": "orders", "batch_id": 7}


@pytest.mark.parametrize(
    "other",
    [
        ("another cluster", "orders", "run", 7),
        ("cluster", "another name", "run", 7),
        ("cluster", "orders", "another run", 7),
        ("cluster", "orders", "run", 8),
    ],
)
def test_another_cluster_name_run_or_batch_may_come(other: tuple[str, str, str, int]) -> None:
    """The same batch of another run is a repetition, as after a crash."""
    note_done("cluster", "orders", "run", 7)
    check_first(*other)


def test_what_was_done_last_is_what_counts() -> None:
    note_done("cluster", "orders", "run", 7)
    note_done("cluster", "orders", "run", 8)
    check_first("cluster", "orders", "run", 7)
    with pytest.raises(UnsafeSession):
        check_first("cluster", "orders", "run", 8)
