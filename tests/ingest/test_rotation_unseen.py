"""Rotations of which the ingest has seen the end alone: nothing lost in silence, nothing twice, no more refused than must be."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest
from tests.ingest.rotating import Log, rotate, take_on, unknown_births, until_it_gets_the_inode_of
from tests.ingest.support import files, take

from onceflow.errors import SourceChanged
from onceflow.ingest.files import FileSource, Format


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def started(log: Log, pattern: str = "app.jsonl") -> FileSource:
    source = files(log.path.parent / pattern, Format.JSONL)
    source.restore(dict(log.positions))
    return source


def rotate_over(log: Log, to: str = "app.jsonl.1") -> None:
    """As ``rotate 1`` does: what was there before is gone."""
    log.path.replace(log.path.with_name(to))


def paths(error: SourceChanged) -> list[str]:
    return sorted(Path(path).name for path in error.fields["paths"])


# -------------------------------------------------------------------------------------------------- no loss in silence


@pytest.mark.parametrize("rotated", ["app.jsonl.1", "app.jsonl.old"])
def test_what_has_the_place_of_a_rotated_file_is_not_passed_over(log: Log, rotated: str) -> None:
    """app.jsonl was made behind the last look, so nothing but the place of the file before it tells of it."""
    log.write(3)
    log.take("app.jsonl")
    rotate_over(log, rotated)
    log.take("app.jsonl*")
    log.write(2)
    rotate_over(log, rotated)
    log.write(2)
    assert paths(log.refused("app.jsonl")) == [rotated]


@pytest.mark.parametrize("generations", [2, 3])
def test_all_that_were_begun_since_are_named_where_the_last_one_is_deleted(log: Log, generations: int) -> None:
    """More rotations than are kept; who says new for app.jsonl alone would pass over the others."""
    log.write(3)
    log.take("app.jsonl")
    for _ in range(generations + 1):
        Path(f"{log.path}.{generations}").unlink(missing_ok=True)
        rotate(log, generations)
        log.write(2)
    kept = [f"app.jsonl.{number}" for number in range(1, generations + 1)]
    assert paths(log.refused("app.jsonl")) == ["app.jsonl", *kept]
    log.taken.clear()
    log.take("app.jsonl", accept_new=True)
    assert len(log.taken) == 2 * (generations + 1)


@pytest.mark.parametrize("rotated", ["app.jsonl.old", "app.1.jsonl", "app-20261122.jsonl"])
def test_it_is_named_by_whatever_name_a_rotation_gives(log: Log, rotated: str) -> None:
    """One is kept; by the name of the log the next one is refused, and who says new for that would pass over the kept one."""
    log.write(3)
    log.take("app.jsonl")
    for _ in range(2):
        rotate_over(log, rotated)
        log.write(2)
    assert paths(log.refused("app.jsonl")) == sorted(["app.jsonl", rotated])


def test_what_is_written_late_to_a_file_that_was_never_found_is_not_passed_over(log: Log) -> None:
    """Two rotations without a row between, and no new file yet: a worker that has not heard of them goes on with the first."""
    log.write(3)
    log.take("app.jsonl")
    rotate(log)
    log.path.touch()
    rotate(log)
    log.take("app.jsonl")
    log.write(2, Path(f"{log.path}.1"))
    assert paths(log.refused("app.jsonl")) == ["app.jsonl.1"]


def test_a_late_row_of_the_file_before_does_not_hide_the_one_between(log: Log) -> None:
    """Which was last written before that, but is younger. The numbers are where logrotate's ``extension`` has them."""
    first, second = (log.path.with_name(f"app.{number}.jsonl") for number in (1, 2))
    log.write(3)
    log.take("app.jsonl")
    log.path.rename(first)
    log.write(6)
    os.utime(log.path, ns=(0, 0))
    log.write(1, first)
    first.rename(second)
    log.path.rename(first)
    log.write(1)
    assert paths(log.refused("app.jsonl")) == ["app.1.jsonl"]


def test_two_rotations_between_two_looks_at_a_file_that_was_found_empty(log: Log) -> None:
    log.path.touch()
    source = started(log)
    assert take_on(source) == []
    for _ in range(2):
        log.write(2)
        rotate(log)
    log.write(2)
    with pytest.raises(SourceChanged) as caught:
        take_on(source)
    assert paths(caught.value) == ["app.jsonl.1"]


@pytest.mark.parametrize("name", ["worker-1", "export-20261122"])
def test_a_file_whose_own_name_ends_in_a_number_is_not_begun_anew_unseen(log: Log, name: str) -> None:
    """One look falls on the moment at which it is empty: no rotation has given it that name."""
    log.path = log.path.with_name(name)
    log.write(3)
    source = started(log, "*-*")
    assert len(take_on(source)) == 3
    log.write(2)
    log.path.unlink()
    log.path.with_name("takes its inode").touch()
    log.path.touch()
    with pytest.raises(SourceChanged):
        take_on(source)


@pytest.mark.parametrize("left", [0, 400])
def test_a_file_that_was_taken_for_new_is_read_on(log: Log, left: int) -> None:
    """Rewritten in place with what it had before: the position that was given up is no word on it any more."""
    log.write(500)
    log.take("app.jsonl")
    lines = log.path.read_text().splitlines(keepends=True)
    log.path.write_text("".join(lines[:left]))
    log.take("app.jsonl", accept_new=True)
    log.path.write_text("".join(lines))
    log.write(50)
    log.taken.clear()
    source = started(log)
    assert len(take_on(source)) == 550 - left
    assert [len(list(source.batches())) for _ in range(3)] == [0, 0, 0], "and nothing is committed without end"


# ------------------------------------------------------------------------------------------- nothing twice, nothing foreign


@pytest.mark.parametrize("packed", [False, True])
def test_a_copy_beside_its_original_is_refused(log: Log, *, packed: bool) -> None:
    """A look between the copy and the emptying (copytruncate), or while gzip has not removed what it packs."""
    log.write(3)
    log.take()
    if packed:
        Path(f"{log.path}.gz").write_bytes(gzip.compress(log.path.read_bytes()))
    else:
        shutil.copy(log.path, f"{log.path}.1")
    assert "has the content of" in log.refused().message
    assert "which is gone" not in log.refused().message


@pytest.mark.parametrize("name", ["app.jsonl.1", "app.1.jsonl"])
@pytest.mark.parametrize("size", [1024, 2000, None], ids=["begun", "half", "whole"])
def test_a_copy_that_is_still_written_is_refused(log: Log, name: str, size: int | None) -> None:
    """A look in the middle of the copy: it has less than what was read of its original."""
    log.write(300)
    log.take("app*")
    log.path.with_name(name).write_bytes(log.path.read_bytes()[:size])
    assert paths(log.refused("app*")) == [name]
    log.write(2)
    log.path.with_name(name).unlink()
    log.take("app*")
    log.check()


def test_a_copy_that_was_cut_short_is_refused_where_its_original_is_gone(log: Log) -> None:
    log.write(300)
    log.take()
    Path(f"{log.path}.1").write_bytes(log.path.read_bytes()[:2000])
    log.path.unlink()
    assert "has the beginning of" in log.refused().message


@pytest.mark.parametrize("rotated", ["app.jsonl.1", "app.jsonl.gz"])
def test_a_copy_that_is_read_as_a_new_file_takes_no_position_from_its_original(log: Log, rotated: str) -> None:
    log.write(3)
    log.take()
    copied = log.path.read_bytes()
    log.path.with_name(rotated).write_bytes(gzip.compress(copied) if rotated.endswith("gz") else copied)
    log.refused()
    log.write(1)
    log.take(accept_new=True)
    assert len(log.taken) == 3 + 1 + 3
    log.write(1)
    log.take()
    assert log.taken[7:] == ['{"n":4}']
    assert len(set(log.identities)) == 8


@pytest.mark.parametrize("name", ["foreign.db", "app.jsonl-x"])
def test_where_births_are_unknown_what_gets_the_inode_of_a_file_that_was_read_is_left_alone(
    log: Log, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    unknown_births(monkeypatch)
    foreign = log.path.with_name(name)
    log.write(3)
    log.take("app.jsonl")
    for _ in until_it_gets_the_inode_of(log.path, foreign):
        foreign.write_text('{"n":"foreign"}\n')
    log.take("app.jsonl")
    log.check()


def test_where_births_are_unknown_a_file_that_was_read_is_known_by_its_content_under_any_name(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_births(monkeypatch)
    log.write(3)
    log.take("app.jsonl")
    log.write(2)
    log.path.rename(log.path.with_name("of yesterday"))
    log.write(2)
    log.take("app.jsonl")
    log.check()


# ---------------------------------------------------------------------------------------------- no more than must be refused


def test_a_copy_that_no_pattern_finds_is_left_alone(log: Log) -> None:
    log.write(3)
    log.take("app.jsonl")
    shutil.copy(log.path, f"{log.path}.1")
    log.write(2)
    log.take("app.jsonl")
    log.check()


@pytest.mark.parametrize("rotated", ["app.jsonl.1", "app.jsonl.old"])
def test_a_quiet_day_takes_the_name_that_a_file_had_when_it_was_found_first(log: Log, rotated: str) -> None:
    """It was rotated before the ingest began; the log beside it tells that its number is one of a rotation."""
    log.write(3, log.path.with_name(rotated))
    log.path.touch()
    log.take()
    rotate_over(log, rotated)
    log.write(2)
    log.take()
    log.check()


def test_files_with_the_same_wide_header_are_different_ones(tmp_path: Path) -> None:
    """More than is looked at of a file's beginning."""
    header, positions = ",".join(f"column_number_{number}" for number in range(100)), dict[str, str]()
    for day in "12":
        path = tmp_path / f"{day}.csv"
        path.write_text(f"{header}\n{','.join([day] * 100)}\n")
        assert len(take(files(tmp_path / "*.csv", Format.CSV), positions)) == 1
        path.unlink()


@pytest.mark.parametrize("rows", [0, 1])
def test_a_header_that_files_share_makes_none_a_copy_of_the_other(tmp_path: Path, rows: int) -> None:
    """It stands alone for a while, and what follows in a longer file says nothing of a shorter one."""
    first, second, positions = tmp_path / "sales.csv", tmp_path / "sales-2.csv", dict[str, str]()
    header = ",".join(f"column_{number}" for number in range(90 if rows == 0 else 200)) + "\n"
    first.write_text(header + ("," * (header.count(",") - 1) + "1,2\n") * 50)
    assert len(take(files(tmp_path / "sales*.csv", Format.CSV), positions)) == 50
    second.write_text(header + ("," * (header.count(",") - 1) + "3,4\n") * rows)
    assert len(take(files(tmp_path / "sales*.csv", Format.CSV), positions)) == rows


def test_away_for_as_many_rotations_as_are_kept(log: Log) -> None:
    """Names go from one to the next: .1 and .2 were those of files that were read and are deleted."""

    def kept_three() -> None:
        Path(f"{log.path}.3").unlink(missing_ok=True)
        rotate(log)
        log.write(2)

    log.write(2)
    log.take()
    for _ in range(3):
        kept_three()
        log.take()
    for _ in range(3):
        kept_three()
    log.take()
    log.check()


@pytest.mark.parametrize("rotated", ["app.1.jsonl", "app.jsonl.old"])
def test_days_without_a_row_by_other_names(log: Log, rotated: str) -> None:
    log.write(3)
    source = started(log, "app*")
    assert len(take_on(source)) == 3
    for _ in range(2):
        log.path.replace(log.path.with_name(rotated))
        log.path.touch()
        assert take_on(source) == []


def test_the_log_of_another_worker_is_no_rotation(log: Log) -> None:
    """It was begun later, and its number is its own."""
    log.write(2)
    log.take("app.jsonl")
    log.path.with_name("app-2.jsonl").write_text('{"n":"of another log"}\n')
    rotate(log)
    log.take("app.jsonl")
    log.write(2)
    log.take("app.jsonl")
    log.check()


def test_days_with_a_header_alone(tmp_path: Path) -> None:
    path, positions = tmp_path / "app.csv", dict[str, str]()
    path.write_text("a\n1\n")
    assert len(take(files(f"{path}*", Format.CSV), positions)) == 1
    for _ in range(2):
        path.replace(f"{path}.1")
        path.write_text("a\n")
        assert take(files(f"{path}*", Format.CSV), positions) == []


def test_a_rotation_behind_a_link_into_another_directory(log: Log) -> None:
    """As containers' logs lie: the link stays, what it leads to is renamed and begun anew."""
    pods = log.path.parent / "pods"
    pods.mkdir()
    target = pods / "0.log"
    log.path.symlink_to(target)
    log.write(3)
    log.take("app.jsonl")
    log.write(2)
    target.rename(pods / "0.log.20261122-101010")
    log.write(2)
    log.take("app.jsonl")
    log.check()


def test_killed_before_the_new_place_of_a_renamed_file_is_committed(log: Log) -> None:
    """Its name is that of the next one by then, and of the one after that when the ingest is back."""
    log.write(3)
    log.take("app.jsonl")
    rotate_over(log)
    log.write(2)
    log.taken += [row.value for row in take(files(log.path, Format.JSONL), log.positions, batches=1)]
    rotate_over(log)
    log.write(2)
    log.take("app.jsonl")
    assert log.taken == [f'{{"n":{number}}}' for number in range(7)]
