"""Files that a run has found and read no row of: the next run knows them, whatever they are called by then."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.ingest.rotating import Log, unknown_births
from tests.ingest.support import commit, files, look, take, values

from onceflow.errors import ConfigurationError, InputError, SourceChanged
from onceflow.ingest.file_position import FilePosition
from onceflow.ingest.files import FileOptions, FileSource, Format
from onceflow.ingest.terms import FOUND, is_begun

ROTATED = ["app.jsonl.1", "app.jsonl-20261122", "app.jsonl.old", "app.1.jsonl", "app-20261122.jsonl"]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def found(positions: dict[str, str]) -> list[str]:
    """The names of the files that are noted."""
    return sorted(Path(json.loads(text)["path"]).name for key, text in positions.items() if key.startswith(FOUND))


@pytest.mark.parametrize("born", [True, False], ids=["born", "nobody-knows-when"])
@pytest.mark.parametrize("rotated", ROTATED)
def test_a_file_that_was_renamed_between_two_runs_before_the_first_row_of_its_name(
    log: Log, monkeypatch: pytest.MonkeyPatch, rotated: str, *, born: bool
) -> None:
    """No position tells of it, and the plain path finds the next one alone."""
    if not born:
        unknown_births(monkeypatch)
    log.path.touch()
    log.take("app.jsonl")
    assert found(log.positions) == ["app.jsonl"]
    assert not is_begun(log.positions), "it counts nothing"
    log.write(3)
    os.utime(log.path, ns=(0, 0))  # the clock of file systems is coarse
    log.path.rename(log.path.with_name(rotated))
    log.write(2)
    log.take("app.jsonl")
    log.check()
    log.take("app.jsonl")
    assert found(log.positions) == [], "they have positions by now"


@pytest.mark.parametrize("rotated", ROTATED)
def test_where_births_are_unknown_a_running_ingest_knows_it_by_the_same_names(
    log: Log, monkeypatch: pytest.MonkeyPatch, rotated: str
) -> None:
    unknown_births(monkeypatch)
    log.path.touch()
    source = files(log.path, Format.JSONL)
    assert take(source, {}) == []
    log.write(2)
    log.path.rename(log.path.with_name(rotated))
    assert len(look(source, {})) == 2


def test_a_file_whose_turn_had_not_come_when_the_run_was_killed(tmp_path: Path) -> None:
    positions, read = dict[str, str](), list[str]()
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(f'"{name}"\n')
    patterns = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    read += values(take(FileSource(FileOptions(patterns, Format.JSONL)), positions, batches=1))
    assert (read, found(positions)) == (['"a"'], ["b.jsonl"])
    (tmp_path / "b.jsonl").rename(tmp_path / "b.jsonl.1")
    (tmp_path / "b.jsonl").touch()
    read += values(take(FileSource(FileOptions(patterns, Format.JSONL)), positions))
    assert read == ['"a"', '"b"']


def test_more_than_one_rotation_before_the_first_row_is_refused(log: Log) -> None:
    log.path.touch()
    log.take("app.jsonl")
    for number in (2, 1):
        log.write(2)
        log.path.rename(f"{log.path}.{number}")
    log.write(1)
    assert log.refused("app.jsonl").fields["paths"] == (f"{log.path}.1",)


@pytest.mark.parametrize("born", [True, False], ids=["born", "nobody-knows-when"])
@pytest.mark.parametrize("is_one_run", [True, False])
def test_a_file_whose_first_row_gets_its_end_when_it_is_renamed_already(
    log: Log, monkeypatch: pytest.MonkeyPatch, *, born: bool, is_one_run: bool
) -> None:
    """It is looked for under the name that it has got, which no pattern finds."""
    if not born:
        unknown_births(monkeypatch)
    source, positions, rows = files(log.path, Format.JSONL), dict[str, str](), list[str]()
    log.path.touch()
    take(source, positions)
    log.path.write_text('{"n":')
    log.path.rename(f"{log.path}.1")
    for text in ("0", "}\n"):
        source = source if is_one_run else files(log.path, Format.JSONL)
        rows += values(look(source, positions) if is_one_run else take(source, positions))
        with Path(f"{log.path}.1").open("a") as file:
            file.write(text)
    rows += values(look(source, positions) if is_one_run else take(files(log.path, Format.JSONL), positions))
    assert rows == ['{"n":0}']


@pytest.mark.parametrize("born", [True, False], ids=["born", "nobody-knows-when"])
def test_a_link_that_was_pointed_elsewhere_between_two_runs(
    log: Log, monkeypatch: pytest.MonkeyPatch, *, born: bool
) -> None:
    if not born:
        unknown_births(monkeypatch)
    (log.path.parent / "days").mkdir()
    days = [log.path.parent / "days" / day for day in ("1.jsonl", "2.jsonl")]
    days[0].touch()
    log.path.symlink_to(days[0])
    log.take("app.jsonl")
    log.write(2, days[0])
    os.utime(days[0], ns=(0, 0))
    log.write(3, days[1])
    log.path.unlink()
    log.path.symlink_to(days[1])
    log.take("app.jsonl")
    log.check()


def test_devices_that_are_numbered_otherwise_meanwhile(log: Log) -> None:
    log.path.touch()
    log.take("app.jsonl")
    log.positions = {key.replace(FOUND, f"{FOUND}ff"): text for key, text in log.positions.items()}
    log.write(2)
    log.path.rename(f"{log.path}.1")
    log.take("app.jsonl")
    log.check()


def test_a_rotation_and_devices_that_are_numbered_otherwise_at_once(log: Log) -> None:
    log.write(3)
    log.take("app.jsonl")
    log.positions = {key: json.dumps({**json.loads(text), "device": 99}) for key, text in log.positions.items()}
    log.write(2)
    log.path.rename(f"{log.path}.1")
    log.write(2)
    log.take("app.jsonl")
    log.check()


def test_what_is_read_in_the_transaction_that_would_note_it_is_not_noted(log: Log) -> None:
    log.write(2)
    log.take("app.jsonl")
    [key] = log.positions
    assert key.startswith("file:")


def test_blank_lines_are_no_row(log: Log) -> None:
    """Their position waits for the first row of the name, and is lost if the run ends before."""
    log.path.write_text("\n\n")
    log.take("app.jsonl")
    log.positions = {key: text for key, text in log.positions.items() if key.startswith(FOUND)}
    assert found(log.positions) == ["app.jsonl"]
    log.write(2)
    log.path.rename(f"{log.path}.1")
    log.take("app.jsonl")
    log.check()


def test_a_run_that_goes_on_commits_no_note_twice(log: Log) -> None:
    log.path.touch()
    source, positions = files(log.path, Format.JSONL), dict[str, str]()
    take(source, positions)
    assert [list(source.batches()) for _ in range(3)] == [[], [], []]
    log.write(1)
    for batch in source.batches():
        commit(positions, batch)
    assert found(positions) == []
    assert list(source.batches()) == []


def test_what_no_pattern_finds_and_is_meant_is_not_taken_out_by_that(log: Log) -> None:
    """The one between two rotations, whose turn had not come when the run was killed that was told to read it."""
    log.path.touch()
    log.take("app.jsonl")
    for number in (2, 1):
        log.write(2)
        log.path.rename(f"{log.path}.{number}")
    log.write(1)
    source = files(log.path, Format.JSONL, accept_new=True)
    log.taken += values(take(source, log.positions, batches=1))
    assert len(log.taken) == 2
    assert found(log.positions) == ["app.jsonl", "app.jsonl.1"]
    log.take("app.jsonl")
    assert log.taken == [f'{{"n":{number}}}' for number in range(5)]


# ----------------------------------------------------------------------------------------- what is not taken for such a file


def test_a_file_that_was_rotated_and_is_refused_is_read_when_it_is_corrected(tmp_path: Path) -> None:
    """No pattern finds it by the name that it has by then, and no row of it is committed."""
    path, positions = tmp_path / "app.log", dict[str, str]()
    path.touch()
    take(files(path), positions)
    path.write_text("a,b\n1,2,3\n")
    rotated = path.rename(tmp_path / "app.log.1")
    path.write_text("a,b\n5,6\n")
    for _ in range(2):
        with pytest.raises(InputError):
            take(files(path), positions)
    rotated.write_text("a,b\n1,2\n3,4\n")
    assert len(take(files(path), positions)) == 3


@pytest.mark.parametrize("is_corrected", [True, False], ids=["corrected", "still-wrong"])
def test_a_file_that_is_refused_and_written_anew_under_its_name_is_not_passed_over(
    tmp_path: Path, *, is_corrected: bool
) -> None:
    """As an editor or ``sed -i`` does it: another file is moved there, which nobody has found."""
    path, positions = tmp_path / "app.log", dict[str, str]()
    path.touch()
    take(files(path), positions)
    path.write_text("a,b\n1,2,3\n")
    rotated = path.rename(tmp_path / "app.log.1")
    path.write_text("a,b\n5,6\n")
    with pytest.raises(InputError):
        take(files(path), positions)
    written = tmp_path / "written"
    written.write_text("a,b\n1,2\n3,4\n" if is_corrected else "a,b\n1,2,3\n")
    written.replace(rotated)
    for _ in range(2):
        with pytest.raises(SourceChanged, match="no pattern finds") as caught:
            take(files(path), positions)
        assert caught.value.fields["paths"] == (str(rotated),)
    if is_corrected:
        assert len(take(files(path, accept_new=True), positions)) == 3
        assert take(files(path), positions) == []


def test_a_file_that_is_refused_and_written_anew_is_read_where_a_pattern_finds_it(tmp_path: Path) -> None:
    path, positions = tmp_path / "app.log", dict[str, str]()
    path.touch()
    take(files(path), positions)
    path.write_text("a,b\n1,2,3\n")
    rotated = path.rename(tmp_path / "app.log.1")
    path.write_text("a,b\n5,6\n")
    with pytest.raises(InputError):
        take(files(path), positions)
    written = tmp_path / "written"
    written.write_text("a,b\n1,2\n3,4\n")
    written.replace(rotated)
    assert len(take(files(f"{path}*"), positions)) == 3


@pytest.mark.parametrize("is_link", [False, True], ids=["file", "link"])
def test_what_is_written_anew_under_the_name_that_a_pattern_found_is_taken_out_with_the_pattern(
    tmp_path: Path, *, is_link: bool
) -> None:
    """Who names another file now means that one alone."""
    path, other, positions = tmp_path / "a.csv", tmp_path / "b.csv", dict[str, str]()
    there = tmp_path / "today.csv" if is_link else path
    there.touch()
    if is_link:
        path.symlink_to(there)
    take(files(path), positions)
    assert found(positions) == [there.name]
    written = tmp_path / "written"
    written.write_text("a,b\n1,2\n")
    written.replace(there)
    other.write_text("a,b\n3,4\n")
    assert len(take(files(other), positions)) == 1


def test_a_file_that_is_refused_is_kept_out_by_another_directory(tmp_path: Path) -> None:
    path, positions = tmp_path / "a.csv", dict[str, str]()
    path.touch()
    take(files(path), positions)
    assert found(positions) == ["a.csv"]
    path.write_text("a,b\n1\n")
    with pytest.raises(InputError):
        take(files(path), positions)
    refused = path.rename(tmp_path / "a.csv.bad")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"a\.csv\.bad"):  # it may be the work of a rotation
        take(files(path), positions)
    (tmp_path / "bad").mkdir()
    refused.rename(tmp_path / "bad" / "a.csv")
    assert len(take(files(path), positions)) == 1


def test_a_file_that_became_something_else_meanwhile_is_left_alone(log: Log) -> None:
    log.path.touch()
    log.take("app.jsonl")
    log.path.rename(log.path.with_name("notes.txt")).write_text("to do\n")
    log.write(1)
    log.take("app.jsonl")
    log.check()


def test_a_file_that_was_taken_out_of_the_patterns_stays_out(tmp_path: Path) -> None:
    positions: dict[str, str] = {}
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in (a, b):
        path.touch()
    take(files(tmp_path / "*.jsonl", Format.JSONL), positions)
    assert found(positions) == ["a.jsonl", "b.jsonl"]
    take(files(a, Format.JSONL), positions)
    assert found(positions) == ["a.jsonl"]
    b.write_text("1\n")
    b.rename(tmp_path / "b.jsonl.1")
    assert take(files(a, Format.JSONL), positions) == []


def test_an_earlier_version_refuses_what_it_does_not_know(log: Log) -> None:
    log.path.touch()
    log.take("app.jsonl")
    [text] = log.positions.values()
    with pytest.raises(ConfigurationError, match="by a later version"):
        FilePosition.of(text)


def test_a_refused_file_that_was_renamed_is_refused_with_the_way_out(log: Log) -> None:
    """Its new name keeps it out of the pattern, and not out of the ingest; another directory does."""
    log.path.write_text("no json\n")
    source, aside = files(log.path, Format.JSONL, key="n"), log.path.with_name("app.jsonl.bad")
    source.restore({})
    with pytest.raises(InputError, match="line 1 is no JSON") as first:
        look(source, log.positions)
    assert "another directory" not in first.value.action
    log.path.rename(aside)
    log.write(2)
    for again in (source, files(log.path, Format.JSONL, key="n")):
        again.restore(log.positions)
        with pytest.raises(InputError, match=f"{aside}: line 1 is no JSON") as then:
            look(again, log.positions)
        assert (
            "it was renamed, and is read all the same: to keep it out move it to another directory" in then.value.action
        )
        assert then.value.fields == {**first.value.fields, "path": str(aside)}
    (log.path.parent / "bad").mkdir()
    aside.rename(log.path.parent / "bad" / aside.name)
    assert values(take(files(log.path, Format.JSONL, key="n"), log.positions)) == ['{"n":0}', '{"n":1}']
