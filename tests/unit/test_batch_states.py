"""Which batches are committed and which are planned: a checkpoint of real files beside a progress record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.errors import ConfigurationError
from onceflow.pipeline.batch_states import batch_states, is_behind, warning
from onceflow.pipeline.local_checkpoint import LocalCheckpoint, end_of_entry, planned_ms
from onceflow.transaction.progress import DIGESTS_KEPT, Batch, Progress, digest_of

Row = tuple[str, int, bool | None, bool | None]


def end(offset: int) -> list[object]:
    """Two sources; the second one has nothing yet."""
    return [{"lines": {"0": offset}}, None]


def progress(*ends: int, query: str = "q") -> Progress:
    found = Progress.empty("driver")
    for number, offset in enumerate(ends):
        found = found.advanced(Batch(number, query, "", digest_of(end(offset))), "driver")
    return found


def checkpoint(
    location: Path, *ends: int, query: str = "q", finished: int | None = None, times: Sequence[int] = ()
) -> LocalCheckpoint:
    """As Spark writes it; ``finished``: how many its commit log has, all if left out; ``times``: when each was planned."""
    (location / "offsets").mkdir(parents=True)
    (location / "commits").mkdir()
    (location / "metadata").write_text(json.dumps({"id": query}))
    for number, offset in enumerate(ends):
        lines = ["-" if source is None else json.dumps(source) for source in end(offset)]
        metadata = {"batchWatermarkMs": 0, **({"batchTimestampMs": times[number]} if times else {})}
        (location / "offsets" / str(number)).write_text("\n".join(["v1", json.dumps(metadata), *lines]))
        (location / "offsets" / f".{number}.crc").write_text("")
    for number in range(len(ends) if finished is None else finished):
        (location / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    found = LocalCheckpoint.read(location)
    assert found is not None
    return found


def rows(known: Progress | None, found: LocalCheckpoint | None, last: int = 10) -> list[Row]:
    return [(b.query_id, b.batch_id, b.committed, b.in_checkpoint) for b in batch_states(known, found, last)]


def test_a_batch_that_is_committed_as_it_was_planned_is_one_row(tmp_path: Path) -> None:
    known, found = progress(5, 9), checkpoint(tmp_path, 5, 9, 12, finished=1)
    assert rows(known, found) == [("q", 0, True, True), ("q", 1, True, False), ("q", 2, False, False)]
    assert warning(known, found, tmp_path) == ""


def test_batches_of_two_queries_are_never_one_row(tmp_path: Path) -> None:
    known, found = progress(5, 9), checkpoint(tmp_path, 5, query="another", finished=0)
    assert rows(known, found) == [("q", 0, True, False), ("q", 1, True, False), ("another", 0, None, False)]
    assert "is of another query, another: Kafka has committed batches of query q" in warning(known, found, tmp_path)


def test_a_batch_that_was_planned_anew_is_not_the_committed_one(tmp_path: Path) -> None:
    known, found = progress(5, 9, 12), checkpoint(tmp_path, 5, 20, finished=1)
    assert rows(known, found) == [
        ("q", 0, True, True), ("q", 1, True, False), ("q", 1, False, False), ("q", 2, True, False),
    ]  # fmt: skip
    assert "gives batch 1 other source offsets" in warning(known, found, tmp_path)


def test_a_batch_that_was_planned_again_at_another_time_is_warned_of(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, 5, 9, times=(100, 200))
    assert [each.planned_ms for each in found.planned.values()] == [100, 200]
    known = progress(5, 9)
    for times in ((), (100, 200), (200,), (1, 200)):
        assert warning(replace(known, planned_ms=times), found, tmp_path) == ""
    assert "gives batch 1 the source offsets that are committed, and another time" in warning(
        replace(known, planned_ms=(100, 201)), found, tmp_path
    )


@pytest.mark.parametrize(
    "entry", ["", "v1", "v1\n", "v1\n{}\n-", "v1\n[]\n-", 'v1\n{"batchTimestampMs":"x"}\n-', 'v1\n{"batch']
)
def test_an_entry_that_does_not_tell_its_time_has_none(entry: str) -> None:
    assert planned_ms(entry) == 0


def test_an_old_entry_that_another_driver_replaced_is_told_and_no_warning(tmp_path: Path) -> None:
    """The driver that committed goes on from memory; Spark never looks at that file again."""
    known, found = progress(5, 9, 12), checkpoint(tmp_path, 5, 10, 12)
    assert rows(known, found)[1:3] == [("q", 1, True, False), ("q", 1, False, True)]
    assert warning(known, found, tmp_path) == ""


@pytest.mark.parametrize("planned", [(), (5,), (5, 9)])
def test_a_checkpoint_from_a_backup_is_warned_of_before_a_start(tmp_path: Path, planned: tuple[int, ...]) -> None:
    """All that is in it is committed as it stands there; what Spark plans next with it is not."""
    known, found = progress(5, 9, 12), checkpoint(tmp_path, *planned)
    told = warning(known, found, tmp_path)
    end = f"ends with batch {len(planned) - 1}" if planned else "has no batch"
    assert f"{end}, Kafka has committed batches up to 2: it is older" in told


def test_a_checkpoint_is_as_new_as_the_progress(tmp_path: Path) -> None:
    """Nothing is committed but the claim; the newest batch is committed, or only planned."""
    found = checkpoint(tmp_path, 5, 9)
    assert [is_behind(known, found) for known in (None, progress(), progress(5), progress(5, 9))] == [False] * 4
    assert is_behind(progress(5, 9, 12), found)
    assert not is_behind(progress(5, 9, 12, query="another"), found)


def test_without_a_checkpoint_nothing_is_said_of_it(tmp_path: Path) -> None:
    assert rows(progress(5), None) == [("q", 0, True, None)]
    assert LocalCheckpoint.read(tmp_path / "none") is None
    assert "there is no checkpoint in" in warning(progress(5), None, tmp_path / "none")
    assert warning(progress(5), None, None) == ""


def test_what_the_progress_does_not_tell_is_not_known(tmp_path: Path) -> None:
    """Nothing committed under the name (at least once never does); a batch older than the digests that are kept."""
    found = checkpoint(tmp_path, *range(DIGESTS_KEPT + 2))
    assert {committed for _, _, committed, _ in rows(None, found)} == {None}
    assert warning(None, found, tmp_path) == ""
    known = progress(*range(DIGESTS_KEPT + 2))
    told = {number: committed for _, number, committed, _ in rows(known, found, last=100)}
    assert [number for number, committed in told.items() if committed is None] == [0, 1]
    assert len(told) == DIGESTS_KEPT + 2


def test_an_entry_of_an_unknown_format_is_not_taken_for_the_committed_batch(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5)
    (tmp_path / "offsets" / "0").write_text("v2\n{}\n{}")
    assert rows(progress(5), LocalCheckpoint.read(tmp_path)) == [("q", 0, None, True)]
    assert end_of_entry("v1\n{}\nno JSON") == end_of_entry("") == ""


@pytest.mark.parametrize(("last", "expected"), [(0, []), (1, [2]), (3, [0, 1, 2]), (9, [0, 1, 2])])
def test_the_last_batches_are_as_many_as_asked_for(tmp_path: Path, last: int, expected: list[int]) -> None:
    known, found = progress(5, 9, 12), checkpoint(tmp_path, 5, 9, 12)
    assert [number for _, number, _, _ in rows(known, found, last)] == expected


def test_an_entry_that_spark_removes_meanwhile_is_not_missed(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5, 9)
    (tmp_path / "offsets" / "0").unlink()
    (tmp_path / "offsets" / "0").symlink_to(tmp_path / "gone")  # listed, and not there when it is opened
    found = LocalCheckpoint.read(tmp_path)
    assert found is not None
    assert list(found.planned) == [1]


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("")
    with pytest.raises(ConfigurationError, match=f"the checkpoint {tmp_path} cannot be read"):
        LocalCheckpoint.read(tmp_path)
