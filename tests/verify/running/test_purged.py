"""Spark purges its logs while a run lasts: the replay finds them whole all the same, and as they were last."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.pipeline.local_checkpoint import numbers
from onceflow.verify.oracle.offsets import read_offset_log
from onceflow.verify.running import outcome
from onceflow.verify.running.place import Place
from onceflow.verify.running.purged import RETAINED_BATCHES, PurgedEntries, put_back

RAW: Any = SimpleNamespace(
    world=SimpleNamespace(kafka=SimpleNamespace(direct_servers="")),
    observed=SimpleNamespace(committed=SimpleNamespace(offsets={})),
)
"""All of a run that the replay is told."""


class Checkpoint:
    """A query's logs on disk, written and purged as Spark does it."""

    def __init__(self, directory: Path, query: str = "query") -> None:
        self.directory = directory
        for log in ("offsets", "commits", "sources/0"):
            (directory / log).mkdir(parents=True)
        (directory / "metadata").write_text(json.dumps({"id": query}))
        (directory / "sources" / "0" / "0").write_text('\0v1\n{"in":{"0":0}}')

    def plan(self, batch: int, until: int) -> None:
        self.write("offsets", batch, f'v1\n{{}}\n{{"in":{{"0":{until}}}}}')

    def run(self, batches: range, records: int = 10) -> None:
        """All of these batches, with so many records each."""
        for batch in batches:
            self.plan(batch, records * (batch + 1))
            self.write("commits", batch, "v1\n{}")

    def write(self, log: str, number: int, text: str) -> None:
        """A new file takes the place of the old one, as in Spark's own way of writing."""
        written = self.directory / log / f".{number}.tmp"
        written.write_text(text)
        written.replace(self.directory / log / str(number))

    def purge(self, newest: int) -> None:
        for log in ("offsets", "commits"):
            for entry in (self.directory / log).iterdir():
                if entry.name.isdecimal() and int(entry.name) < newest - RETAINED_BATCHES:
                    entry.unlink()

    def lose(self, log: str, number: int) -> None:
        (self.directory / log / str(number)).unlink()


def look_and_purge(checkpoint: Checkpoint, entries: PurgedEntries, newest: int) -> None:
    entries.look()
    checkpoint.purge(newest)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def entries(checkpoint: Checkpoint, tmp_path: Path) -> PurgedEntries:
    return PurgedEntries(checkpoint.directory, tmp_path / "purged")


def ends_after(checkpoint: Checkpoint, tmp_path: Path) -> tuple[list[int], tuple[int, ...], str]:
    """Where each batch ends, which are finished, and what breaks the log, when the run is over."""
    put_back(checkpoint.directory, tmp_path / "purged")
    log = read_offset_log(checkpoint.directory)
    ends = [end["in"]["0"] for batch in log.batches for end in batch.ends if end is not None]
    return ends, log.finished, log.broken


def test_what_was_purged_is_there_again(checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path) -> None:
    checkpoint.run(range(150))
    look_and_purge(checkpoint, entries, 149)
    checkpoint.run(range(150, 230))
    look_and_purge(checkpoint, entries, 229)
    assert not (checkpoint.directory / "offsets" / "128").exists()
    assert ends_after(checkpoint, tmp_path) == ([10 * (n + 1) for n in range(230)], tuple(range(230)), "")


def test_a_batch_planned_anew_is_put_back_as_it_was_last(
    checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path
) -> None:
    """Seen up to 40, then lost by a fault and planned up to 45."""
    checkpoint.run(range(4))
    entries.look()
    checkpoint.plan(3, until=45)
    checkpoint.run(range(4, 150))
    look_and_purge(checkpoint, entries, 149)
    ends, _, broken = ends_after(checkpoint, tmp_path)
    assert (ends[3], len(ends), broken) == (45, 150, "")


def test_what_a_fault_took_stays_away(checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path) -> None:
    """Else the replay would see batches that the pipeline no longer knew of."""
    checkpoint.run(range(150))
    look_and_purge(checkpoint, entries, 149)
    checkpoint.lose("offsets", 149)
    checkpoint.lose("commits", 149)
    ends, finished, broken = ends_after(checkpoint, tmp_path)
    assert (len(ends), finished[-1], broken) == (149, 148, "")


def test_a_gap_that_a_fault_made_is_no_purge(checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path) -> None:
    checkpoint.run(range(150))
    look_and_purge(checkpoint, entries, 149)
    checkpoint.lose("offsets", 140)
    assert ends_after(checkpoint, tmp_path)[2] == "the offset log goes from batch 139 to 141"


def test_an_entry_that_nobody_saw_in_time_breaks_the_log(
    checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path
) -> None:
    checkpoint.run(range(20))
    entries.look()
    checkpoint.run(range(20, 150))
    checkpoint.purge(149)
    assert ends_after(checkpoint, tmp_path)[2] == "the offset log goes from batch 19 to 49"


def test_a_checkpoint_that_was_set_aside_is_completed_by_its_own(
    checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path
) -> None:
    """A resume begins another query in the same place."""
    checkpoint.run(range(150))
    look_and_purge(checkpoint, entries, 149)
    aside = checkpoint.directory.rename(tmp_path / "checkpoint.before-resume-1")
    second = Checkpoint(tmp_path / "checkpoint", "second query")
    second.run(range(120), records=3)
    look_and_purge(second, entries, 119)
    ends, _, broken = ends_after(second, tmp_path)
    assert (ends, broken) == ([3 * (n + 1) for n in range(120)], "")
    assert [batch.ends for batch in read_offset_log(aside).batches] == [
        ({"in": {"0": 10 * (n + 1)}},) for n in range(150)
    ]


def test_the_replay_begins_when_they_are_put_back(
    checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.run(range(150))
    look_and_purge(checkpoint, entries, 149)
    found: list[int] = []

    def replayed(plan: Path, checkpoint: Path, *_: object, **__: object) -> None:
        found.extend(numbers(checkpoint / "offsets"))

    monkeypatch.setattr(outcome, "expected_output", replayed)
    outcome._expected(Place(tmp_path, tmp_path / "logs"), RAW, [], lambda done, total: None)
    assert found == list(range(150))


@pytest.mark.parametrize("written", [b'{"ID": "query"}', b"[]", b"7", b'{"id": 7}', b'{"id": ""}', b'{"id', b"\xff"])
def test_metadata_of_another_form_ends_no_watch_and_the_oracle_tells_what_should_stand_there(
    written: bytes, checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path
) -> None:
    """Of an engine of one's own, perhaps, whose author is to hear what is wrong with it."""
    checkpoint.run(range(3))
    (checkpoint.directory / "metadata").write_bytes(written)
    entries.look()
    put_back(checkpoint.directory, tmp_path / "purged")
    with pytest.raises(ValueError, match=r"file metadata holds .*: what should stand there is") as told:
        read_offset_log(checkpoint.directory)
    assert repr(written.decode(errors="backslashreplace")) in str(told.value)


def test_what_cannot_be_put_back_costs_the_replay_and_not_the_judgement(
    checkpoint: Checkpoint, entries: PurgedEntries, tmp_path: Path
) -> None:
    checkpoint.run(range(150))
    look_and_purge(checkpoint, entries, 149)
    (tmp_path / "purged" / "query" / "offsets" / "3").unlink()
    (tmp_path / "purged" / "query" / "offsets" / "3").mkdir()
    failures: list[str] = []
    assert outcome._expected(Place(tmp_path, tmp_path / "logs"), RAW, failures, lambda done, total: None) is None
    assert len(failures) == 1
    assert "Is a directory" in failures[0]


def test_before_the_first_start_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    PurgedEntries(tmp_path / "checkpoint", tmp_path / "purged").look()
    put_back(tmp_path / "checkpoint", tmp_path / "purged")
    assert list(tmp_path.iterdir()) == []
