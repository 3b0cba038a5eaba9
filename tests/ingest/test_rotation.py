"""Which file is which: renamed, begun anew, emptied, overwritten, packed, linked."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from tests.ingest.rotating import Log, rotate, take_on, unknown_births, until_it_gets_the_inode_of
from tests.ingest.support import files, look, take, values

from onceflow.errors import ConfigurationError, SourceChanged
from onceflow.ingest import discovery, watched
from onceflow.ingest import files as files_module
from onceflow.ingest.file_position import Print
from onceflow.ingest.files import FileOptions, FileSource, Format
from onceflow.ingest.terms import FOUND


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.mark.parametrize("pattern", ["app.jsonl*", "app.jsonl"])
def test_rotation_by_renaming(log: Log, pattern: str) -> None:
    """Rows that came between the last look and the rotation are read, even where no pattern finds the old file any more."""
    for _ in range(3):
        log.write(5)
        log.take(pattern)
        log.write(3)
        rotate(log)
        log.write(4)
        log.take(pattern)
    log.check()


@pytest.mark.parametrize(("pattern", "expected"), [("app.jsonl*", "repeated"), ("app.jsonl", "lost")])
def test_control_who_knows_a_file_by_its_name_alone_repeats_or_loses_rows(
    log: Log, pattern: str, expected: str
) -> None:
    by_name: dict[Path, int] = {}

    def take_by_name() -> None:
        for path in sorted(log.path.parent.glob(pattern)):
            content = path.read_bytes()
            begin = by_name.get(path, 0) if by_name.get(path, 0) <= len(content) else 0  # it was begun anew
            log.taken += content[begin:].decode().splitlines()
            by_name[path] = len(content)

    log.write(5)
    take_by_name()
    log.write(3)
    rotate(log)
    log.write(4)
    take_by_name()
    written = [f'{{"n":{number}}}' for number in range(log.written)]
    assert expected == ("lost" if set(written) - set(log.taken) else "repeated")
    assert len(log.taken) != log.written


def test_a_log_that_is_rotated_and_not_begun_anew_is_no_mistake(log: Log) -> None:
    """A run of one look reads the rest of it, and ends well; so does the next one."""
    log.write(5)
    log.take("app.jsonl")
    log.write(3)
    rotate(log)
    for _ in range(2):
        source = files(log.path, Format.JSONL)
        source.check_any()
        log.taken += values(take(source, log.positions))
        source.check_end()
    assert log.taken == [f'{{"n":{number}}}' for number in range(8)]
    source = files(log.path, Format.JSONL)
    assert take(source, {}) == []
    with pytest.raises(ConfigurationError, match=r"app.jsonl matches no file"):
        source.check_end()


def rotated_twice_unseen(log: Log) -> None:
    """Five rows are read as app.jsonl; the next three are never found under that name."""
    log.write(5)
    log.take("app.jsonl")
    for count in (3, 2):
        rotate(log)
        log.write(count)


def test_a_file_that_was_begun_and_renamed_since_the_last_look_is_refused(log: Log) -> None:
    """No pattern finds it any more, so its rows would be passed over in silence."""
    rotated_twice_unseen(log)
    assert log.refused("app.jsonl").fields["paths"] == (f"{log.path}.1",)


@pytest.mark.parametrize("how", [{"pattern": "app.jsonl", "accept_new": True}, {"pattern": "app.jsonl*"}])
def test_a_file_that_was_passed_over_is_read_when_asked_for(log: Log, how: dict[str, Any]) -> None:
    rotated_twice_unseen(log)
    log.take(**how)
    rotate(log)
    log.write(4)
    log.take("app.jsonl")
    log.check()


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_file_that_was_passed_over_is_not_lost_when_a_start_was_killed_before_it(log: Log, *, is_noted: bool) -> None:
    """The rest of the file before it is committed. Where that lies now must not be, or nothing would tell of the one between
    where it is not noted what was found, as in earlier versions.
    """
    log.write(5)
    log.take("app.jsonl")
    log.write(4)
    for count in (3, 2):
        rotate(log)
        log.write(count)
    source = files(log.path, Format.JSONL, accept_new=True)
    log.taken += values(take(source, log.positions, batches=1))
    assert len(log.taken) == 9, "killed behind the rest"
    if not is_noted:
        log.positions = {key: text for key, text in log.positions.items() if not key.startswith(FOUND)}
        assert log.refused("app.jsonl").fields["paths"] == (f"{log.path}.1",)
    log.take("app.jsonl", accept_new=not is_noted)
    assert log.taken == [f'{{"n":{number}}}' for number in range(log.written)]
    rotate(log)
    log.write(1)
    log.take("app.jsonl")
    assert len(log.taken) == log.written


def test_dates_tell_a_rotation_as_numbers_do(log: Log) -> None:
    log.write(5)
    log.take("app.jsonl")
    for day in ("20261121", "20261122"):
        log.path.rename(f"{log.path}-{day}")
        log.write(3)
    assert log.refused("app.jsonl").fields["paths"] == (f"{log.path}-20261122",)


@pytest.mark.parametrize(
    "name", ["app.jsonl.7", "app.jsonl.1.sha256", "app.jsonl.lock", "other.jsonl.3", "app.jsonl.8"]
)
def test_what_is_beside_a_rotated_file_and_no_part_of_it_is_left_alone(log: Log, name: str) -> None:
    """An older one that was there before the ingest began, and names that no rotation gives; nor one that is empty."""
    beside = log.path.with_name(name)
    beside.write_text("" if name.endswith("8") else '{"n":"beside"}\n')
    log.write(5)
    if name.endswith("7"):
        os.utime(beside, ns=(0, 0))
    else:
        os.utime(log.path, ns=(0, 0))
    log.take("app.jsonl")
    rotate(log)
    log.write(3)
    log.take("app.jsonl")
    log.check()


def test_the_rotation_of_another_log_is_left_alone(tmp_path: Path) -> None:
    """worker-2.log.1 is dated likewise, but the number before the dot tells logs apart, not generations."""
    log = Log(tmp_path)
    log.path = tmp_path / "worker-1.jsonl"
    other = tmp_path / "worker-2.jsonl.1"
    log.write(5)
    log.take(log.path.name)
    rotate(log)
    log.write(2)
    other.write_text('{"n":"of another log"}\n')
    log.take(log.path.name)
    rotate(log)
    log.write(2)
    rotate(log)
    log.write(2)
    assert log.refused(log.path.name).fields["paths"] == (f"{log.path}.1",), "its own one is seen"


def test_generations_of_two_digits_are_seen(log: Log) -> None:
    log.write(5)
    log.take("app.jsonl")
    rotate(log)
    log.take("app.jsonl.1")
    Path(f"{log.path}.1").rename(f"{log.path}.12")
    log.write(3, Path(f"{log.path}.9"))
    log.write(2)
    assert log.refused("app.jsonl").fields["paths"] == (f"{log.path}.9",)


def test_a_file_that_is_deleted_meanwhile_hides_none_that_was_passed_over(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody tidies the directory up while it is looked through: what was listed before the others is gone."""
    rotated_twice_unseen(log)
    gone = Path(f"{log.path}.7")
    listed = os.scandir

    def deleted(directory: Path) -> Iterator[os.DirEntry[str]]:
        gone.touch()
        entries = sorted(listed(directory), key=lambda entry: entry.name, reverse=True)
        gone.unlink()
        yield from entries

    monkeypatch.setattr("onceflow.ingest.passed_over.os.scandir", deleted)
    assert log.refused("app.jsonl").fields["paths"] == (f"{log.path}.1",)


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_link_beside_a_rotation_is_the_file_that_it_leads_to(log: Log, *, accept_new: bool) -> None:
    log.write(5)
    log.take("app.jsonl")
    rotate(log)
    Path(f"{log.path}.2").symlink_to(f"{log.path}.1")
    log.write(2)
    log.take("app.jsonl", accept_new=accept_new)
    log.check()


def test_another_spelling_of_the_directory_is_no_rename(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to("logs")
    log, beside = Log(tmp_path / "logs"), tmp_path / "logs" / "app-8.jsonl"
    log.path = tmp_path / "logs" / "app-7.jsonl"
    log.write(5)
    log.take("app-7.jsonl")
    beside.write_text('{"n":"of another log"}\n')
    log.write(2)
    log.take("../link/app-7.jsonl")
    log.check()


def test_a_replaced_file_is_refused_by_another_spelling_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to("logs")
    log = Log(tmp_path / "logs")
    log.write(5)
    log.take("app.jsonl")
    fresh = log.path.with_name("fresh")
    fresh.write_text('{"n":"new"}\n')
    fresh.replace(log.path)
    assert "not the file that was read under this name" in log.refused("../link/app.jsonl").message


@pytest.mark.parametrize("born", [True, False], ids=["born", "nobody-knows-when"])
def test_a_file_that_was_found_empty_is_read_under_its_new_name(
    log: Log, monkeypatch: pytest.MonkeyPatch, *, born: bool
) -> None:
    """Nothing of it was committed when it was renamed; another file gets the inode of one that was deleted."""
    if not born:
        unknown_births(monkeypatch)
    source = files(log.path, Format.JSONL)
    source.restore({})
    for written in (3, 2):
        log.path.touch()
        assert take_on(source) == []
        log.write(written)
        rotate(log)
        log.path.touch()
        log.taken += take_on(source)
        log.path.unlink()
    assert log.taken == [f'{{"n":{number}}}' for number in range(5)]


def test_a_file_that_was_found_empty_and_deleted_is_not_mistaken_for_another(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Births are as coarse as the kernel's clock: here they are told apart by the name."""
    monkeypatch.setattr(watched, "born_ns", lambda path: 1 if path.name == log.path.name else 2)
    source = files(log.path, Format.JSONL)
    source.restore({})
    log.path.touch()
    assert take_on(source) == []
    beside = log.path.with_name("app.jsonl.beside")
    for _ in until_it_gets_the_inode_of(log.path, beside):
        beside.write_text('{"n":"beside"}\n')
    assert take_on(source) == []


def test_a_fifo_with_the_inode_of_a_file_that_was_found_empty_is_left_alone(log: Log) -> None:
    """To open it would wait for whoever writes to it."""
    fifo = log.path.with_name("app.jsonl.fifo")
    source = files(log.path, Format.JSONL)
    source.restore({})
    log.path.touch()
    assert take_on(source) == []
    for _ in until_it_gets_the_inode_of(log.path, fifo):
        os.mkfifo(fifo)
    assert take_on(source) == []


@pytest.mark.parametrize("kind", ["file", "fifo", "directory"])
def test_what_gets_the_inode_of_a_file_that_was_read_is_left_alone(log: Log, kind: str) -> None:
    """Another program's, in the same directory, under a name that no pattern matches."""
    foreign = log.path.with_name("foreign")
    log.write(3)
    source = files(log.path, Format.JSONL)
    source.restore({})
    assert len(take_on(source)) == 3
    for _ in until_it_gets_the_inode_of(log.path, foreign):
        if kind == "file":
            foreign.write_text('{"n":"foreign"}\n')
        elif kind == "fifo":
            os.mkfifo(foreign)
        else:
            foreign.mkdir()
    assert take_on(source) == []


def test_a_file_that_is_replaced_by_one_that_was_found_beside_it_is_refused(log: Log) -> None:
    """Written under another name, which the pattern finds too, and renamed over it: no rotation."""
    source = files(f"{log.path}*", Format.JSONL)
    source.restore({})
    log.write(3)
    assert len(take_on(source)) == 3
    fresh = Path(f"{log.path}.tmp")
    fresh.touch()
    assert take_on(source) == []
    fresh.write_text('{"n":"new"}\n')
    fresh.replace(log.path)
    with pytest.raises(SourceChanged):
        take_on(source)


def test_a_file_that_is_emptied_and_renamed_is_refused(log: Log) -> None:
    source = files(f"{log.path}*", Format.JSONL)
    source.restore({})
    log.write(3)
    assert len(take_on(source)) == 3
    log.path.write_text('{"n":"new"}\n')
    rotate(log)
    with pytest.raises(SourceChanged):
        take_on(source)


@pytest.mark.parametrize("spelling", ["up-and-down", "link"])
def test_a_file_that_was_found_empty_is_read_once_by_whatever_names_it_is_found(log: Log, spelling: str) -> None:
    directory = log.path.parent
    other = directory / "logs" / ".." if spelling == "up-and-down" else directory / "logs"
    if spelling == "link":
        other.symlink_to(directory)
    else:
        (directory / "logs").mkdir()
    source = FileSource(FileOptions([str(other / "app.jsonl"), f"{directory}/app.jsonl.[0-9]"], Format.JSONL))
    source.restore({})
    log.path.touch()
    assert take_on(source) == []
    log.write(1)
    rotate(log)
    assert take_on(source) == ['{"n":0}']
    assert take_on(source) == []


def test_days_without_a_row_do_not_end_a_rotation(log: Log) -> None:
    """The empty file gets the name that the one before it had, which is gone: it was there beside that one, and is another."""
    source = files(log.path, Format.JSONL)
    source.restore({})
    log.write(5)
    assert len(take_on(source)) == 5
    for _ in range(3):
        log.path.rename(f"{log.path}.1")
        log.path.touch()
        assert take_on(source) == []
    log.write(1)
    assert take_on(source) == ['{"n":5}']


@pytest.mark.parametrize("born", [True, False], ids=["born", "nobody-knows-when"])
def test_days_without_a_row_do_not_end_a_rotation_of_an_ingest_that_is_started_anew(
    log: Log, monkeypatch: pytest.MonkeyPatch, *, born: bool
) -> None:
    """As above, of starts that remember nothing. Where births are unknown, the file may have the inode of the one before."""
    if not born:
        unknown_births(monkeypatch)
    log.write(5)
    log.take()
    for _ in range(3):
        log.path.rename(f"{log.path}.1")
        log.path.touch()
        log.take()
    log.write(1)
    log.take()
    log.check()


def test_an_empty_file_under_the_name_itself_is_refused(log: Log) -> None:
    """Begun anew, its predecessor deleted: no rotation has put it there, and rows may be lost."""
    log.write(5)
    log.take("app.jsonl")
    log.path.rename(log.path.with_name("away"))
    log.path.with_name("away").unlink()
    log.path.touch()
    log.refused("app.jsonl")


def test_a_link_that_is_pointed_elsewhere_loses_no_file_that_was_found_empty(log: Log) -> None:
    """As loggers do that write to today's file, and have a link to it."""
    (log.path.parent / "days").mkdir()
    days = [log.path.parent / "days" / day for day in ("1.jsonl", "2.jsonl")]
    days[0].touch()
    log.path.symlink_to(days[0])
    source = files(log.path, Format.JSONL)
    source.restore({})
    assert take_on(source) == []
    log.write(2, days[0])
    log.write(3, days[1])
    log.path.unlink()
    log.path.symlink_to(days[1])
    log.taken += take_on(source)
    assert log.taken == [f'{{"n":{number}}}' for number in range(5)]


def test_a_file_that_is_missing_for_long_is_remembered_no_more(log: Log) -> None:
    """It may come back within some looks, from a rotation that goes on while the names are read; but not for ever."""
    source = files(log.path, Format.JSONL)
    source.restore({})
    away = log.path.parent / "elsewhere" / "app.jsonl.1"
    away.parent.mkdir()
    for looks, found in ((watched._MISSING_LOOKS, 1), (watched._MISSING_LOOKS + 1, 0)):
        log.path.touch()
        assert take_on(source) == []
        log.write(1)
        log.path.rename(away)
        assert [take_on(source) for _ in range(looks)] == [[]] * looks
        away.rename(f"{log.path}.1")
        assert len(take_on(source)) == found


def test_a_file_that_is_emptied_under_a_running_ingest_is_refused(log: Log) -> None:
    """Also right behind its first rows, when it was found a moment before as one that nobody had read."""
    source = files(log.path, Format.JSONL)
    source.restore({})
    log.write(3)
    assert len(take_on(source)) == 3
    log.path.write_text("")
    log.write(1)
    with pytest.raises(SourceChanged):
        take_on(source)


def renamed_before(log: Log, name: str, to: str, function: Any) -> Any:
    """The function, and before its first call the log is written and renamed."""
    calls: list[None] = []

    def after(*given: Any) -> Any:
        if not calls:
            calls.append(None)
            log.path.with_name(name).rename(log.path.with_name(to))
            log.path.touch()
        return function(*given)

    return after


def test_a_rotation_while_a_file_is_noted(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was found as app.jsonl, and that is another file when its birth is asked for."""
    source = files(log.path, Format.JSONL)
    source.restore({})
    log.path.touch()
    monkeypatch.setattr(watched, "_born_ns", renamed_before(log, "app.jsonl", "app.jsonl.1", watched._born_ns))
    assert take_on(source) == []
    log.write(2, Path(f"{log.path}.1"))
    assert take_on(source) == ['{"n":0}', '{"n":1}']


def test_a_rotation_while_a_renamed_file_is_looked_for(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was app.jsonl.1 when the directory was read, and is app.jsonl.2 when it is looked at."""
    source = files(log.path, Format.JSONL)
    source.restore({})
    log.path.touch()
    assert take_on(source) == []
    log.write(2)
    rotate(log)
    moved = renamed_before(log, "app.jsonl.1", "app.jsonl.2", watched._which)
    monkeypatch.setattr(watched, "_which", moved)
    assert take_on(source) == []
    assert take_on(source) == ['{"n":0}', '{"n":1}']


def test_rotation_in_a_running_ingest(log: Log) -> None:
    log.write(5)
    source = files(f"{log.path}*", Format.JSONL)
    source.restore({})
    for _ in range(3):
        log.taken += values(look(source, log.positions))
        log.write(2)
        rotate(log)
        log.write(2)
        log.taken += values(look(source, log.positions))
    log.identities = [("", text) for text in log.taken]
    log.check()


def test_a_file_is_moved_away_and_deleted_after_it_was_read(log: Log) -> None:
    """Its number may be given to the next file; that one is new, since it begins with other rows under another name."""
    log.write(5)
    rotate(log)
    log.write(5)
    log.take()
    Path(f"{log.path}.1").unlink()
    rotate(log)
    log.write(5)
    log.take()
    log.check()


def test_an_emptied_file_is_refused(log: Log) -> None:
    """copytruncate: rows between the last look and the truncation may be in the copy or nowhere."""
    log.write(5)
    log.take("app.jsonl")
    log.path.write_text("")
    log.write(1)
    assert "not the file that was read under this name" in log.refused("app.jsonl").message
    log.write(100)
    assert str(log.path) in log.refused("app.jsonl").fields["paths"]
    log.take("app.jsonl", accept_new=True)
    log.check()
    log.write(3)
    log.take("app.jsonl")
    log.check()


def test_a_file_begun_anew_with_the_same_rows_has_other_events(log: Log) -> None:
    """The same inode with the same beginning: its events may not share their names with those of the old content."""
    log.write(500)
    log.take("app.jsonl")
    beginning = log.path.read_text().splitlines(keepends=True)[:400]
    log.path.write_text("".join(beginning))
    log.refused("app.jsonl")
    log.take("app.jsonl", accept_new=True)
    assert len(log.taken) == 900
    assert len(set(log.identities)) == 900


def test_a_replaced_file_is_refused(log: Log) -> None:
    """An editor saves by writing a new file under the old name: the same rows, with a correction."""
    log.write(5)
    log.take()
    new = log.path.with_name("new")
    new.write_text(log.path.read_text().replace('"n":2', '"n":22'))
    new.rename(log.path)
    log.refused()


def test_a_copy_of_a_vanished_file_is_refused(log: Log) -> None:
    log.write(5)
    log.take()
    shutil.copy(log.path, log.path.with_name("app.jsonl.copy"))
    log.path.unlink()
    assert "has the content of" in log.refused().message


def test_a_packed_rotated_file_is_refused(log: Log) -> None:
    log.write(500)
    log.take()
    Path(f"{log.path}.1.gz").write_bytes(gzip.compress(log.path.read_bytes()))
    log.path.unlink()
    assert "has the content of" in log.refused().message


def test_equal_files_are_different_files(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"same":1}\n{"same":1}\n')
    rows = take(files(tmp_path / "*.jsonl", Format.JSONL), {})
    assert len({row.identity for row in rows}) == 4


def test_a_link_to_itself_is_nothing(log: Log) -> None:
    log.path.with_name("app.jsonl.7").symlink_to("app.jsonl.7")
    log.write(5)
    log.take()
    rotate(log)
    log.write(2)
    log.take("app.jsonl")
    log.check()


def test_a_file_under_two_names_is_one(log: Log) -> None:
    log.write(5)
    os.link(log.path, f"{log.path}.link")
    Path(f"{log.path}.symlink").symlink_to(log.path)
    log.take()
    log.take()
    log.check()


def test_older_files_come_first(tmp_path: Path) -> None:
    for age, name in enumerate(("app.jsonl", "app.jsonl.1", "app.jsonl.2")):
        path = tmp_path / name
        path.write_text(f'"{name}"\n')
        os.utime(path, (1000 - age, 1000 - age))
    rows = take(files(tmp_path / "app.jsonl*", Format.JSONL), {})
    assert values(rows) == ['"app.jsonl.2"', '"app.jsonl.1"', '"app.jsonl"']


def test_emptied_while_it_is_read(log: Log) -> None:
    """Between two blocks of the same look."""
    log.write(1000)
    source = files(log.path, Format.JSONL, block_bytes=1000)
    source.restore({})
    batches = source.batches()
    next(batches)
    log.path.write_text("")
    log.write(3000)
    with pytest.raises(SourceChanged, match="while it was read"):
        next(batches)


def test_ids_go_on_after_a_rename(log: Log) -> None:
    log.write(3)
    log.take()
    rotate(log)
    log.write(2, Path(f"{log.path}.1"))
    log.take()
    assert [number for _, number in log.identities] == ids_up_to(5)
    assert len({source for source, _ in log.identities}) == 1


def ids_up_to(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def test_a_report_that_is_made_anew_with_the_same_rows_is_refused(log: Log) -> None:
    """Deleted and written again the next day, it may get the very same inode, and it has the very same bytes."""
    log.write(5)
    log.take()
    same = log.path.read_text()
    for _ in range(3):  # one of them gets the number that became free
        log.path.unlink()
        log.path.write_text(same)
        log.refused()


@pytest.mark.parametrize("spelling", ["", "../{}/"])
def test_devices_that_are_numbered_otherwise_after_a_restart_change_nothing(log: Log, spelling: str) -> None:
    log.write(5)
    log.take()
    log.positions = {
        source: json.dumps({**json.loads(text), "device": 99999}) for source, text in log.positions.items()
    }
    log.write(2)
    log.take(spelling.format(log.path.parent.name) + "app.jsonl*")
    log.check()


def test_a_rotation_while_the_names_are_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """app.jsonl was found as the old file, and is the new one when it is opened; app.jsonl.1 was not found."""
    log.write(5)
    log.take("app.jsonl")
    log.write(2)
    found = discovery._renamed
    rotations = [1]

    def renamed_after_the_look(*known: Any) -> list[Path]:
        paths = list(found(*known))
        if rotations:
            rotations.pop()
            rotate(log)
            log.write(3)
        return paths

    monkeypatch.setattr(discovery, "_renamed", renamed_after_the_look)
    log.take("app.jsonl")
    log.check()


def test_a_rotation_between_the_finding_and_the_opening_in_a_run_of_one_look(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is read, and not only by the next run."""
    log.write(5)
    log.take("app.jsonl")
    log.write(2)
    found, calls = discovery.find, list[None]()

    def renamed_after_it(*given: Any, **options: Any) -> list[Any]:
        positions = found(*given, **options)
        calls.append(None)
        if len(calls) == 2:  # the first one is that of the start
            rotate(log)
            log.write(3)
        return positions

    monkeypatch.setattr(files_module, "find", renamed_after_it)
    log.take("app.jsonl")
    log.check()


def test_a_file_that_vanishes_between_the_look_and_the_opening(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(5)
    gone = log.path.with_name("app.jsonl.0")
    gone.write_text("1\n")
    distinct = discovery._distinct

    def deleted(paths: Iterable[Path]) -> list[discovery.Seen]:
        seen = list(distinct(paths))
        gone.unlink(missing_ok=True)
        return seen

    monkeypatch.setattr(discovery, "_distinct", deleted)
    log.take()
    log.check()


def test_emptied_between_the_reading_of_a_block_and_its_position(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered is taken before the check, so bytes of the new content are never taken for those that were read."""
    log.write(2000)
    source = files(log.path, Format.JSONL, block_bytes=1000)
    source.restore({})
    batches = source.batches()
    next(batches)
    taken = files_module._print

    def emptied(file: IO[bytes], size: int) -> Print:
        log.path.write_text("")
        log.write(3000)
        return taken(file, size)

    monkeypatch.setattr(files_module, "_print", emptied)
    with pytest.raises(SourceChanged, match="while it was read"):
        next(batches)
