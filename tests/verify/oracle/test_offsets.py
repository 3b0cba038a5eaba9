"""The offset log of a checkpoint: what is read of it, and the first batch that cannot be the run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from onceflow.verify.oracle.expected import RANGES, RECORDS, Expected
from onceflow.verify.oracle.offsets import OffsetLog, read_offset_log
from onceflow.verify.oracle.ranges import ranges_of
from onceflow.verify.oracle.whole import whole_replay

if TYPE_CHECKING:
    from onceflow.verify.oracle.replay import Replay

Ends = dict[str, dict[str, int]]


def log_of(directory: Path, *batches: str | Ends, begins: Ends | None = None) -> OffsetLog:
    """A checkpoint with one source whose batches end here; a text is the line of a batch as it is."""
    for name in ("offsets", "commits"):
        (directory / name).mkdir()
    (directory / "metadata").write_text('{"id": "query"}')
    if begins is not None:
        (directory / "sources" / "0").mkdir(parents=True)
        (directory / "sources" / "0" / "0").write_text(f"\0v1\n{json.dumps(begins)}")
    for number, ends in enumerate(batches):
        line = ends if isinstance(ends, str) else json.dumps(ends)
        (directory / "offsets" / str(number)).write_text(f"v1\n{{}}\n{line}")
    return read_offset_log(directory)


def test_a_log_that_goes_on_is_read_whole(tmp_path: Path) -> None:
    """A batch may read nothing of a partition, or of all, and partitions come later."""
    ends: list[str | Ends] = [{"o": {"0": 5, "1": 7}}, {"o": {"0": 5, "1": 9}}, "-", {"o": {"0": 6, "1": 9, "2": 1}}]
    log = log_of(tmp_path, *ends, begins={"o": {"0": 5, "1": 0}})
    assert log.broken == ""
    assert [batch.ends for batch in log.batches] == [(None if each == "-" else each,) for each in ends]


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        (
            [{"o": {"0": 5, "1": 7}}, {"o": {"0": 9, "1": 7}}, {"o": {"0": 9, "1": 6}}],
            "the offset log goes back in batch 2: o-1 from 7 to 6",
        ),
        ([{"o": {"0": 5}}, "-", {"o": {"0": 4}}], "the offset log goes back in batch 2: o-0 from 5 to 4"),
        ([{"o": {"0": 5, "1": 3}}, {"o": {"1": 3}}, {"o": {"0": 4}}], "in batch 2: o-0 from 5 to 4"),
        ([{"o": {"0": 1}}], "the offset log goes back in batch 0: o-0 from 2 to 1"),
        ([{"o": {"0": 5}}, '{"o": {"0": "6"}}'], "batch 1 cannot be read"),
        ([{"o": {"0": 5}}, "[7]"], "batch 1 cannot be read"),
    ],
    ids=["a step back", "across a batch of nothing", "across a gap", "behind the beginning", "a text", "a list"],
)
def test_what_cannot_be_the_run_breaks_the_log(batches: list[str | Ends], why: str, tmp_path: Path) -> None:
    """What stands before it is kept."""
    log = log_of(tmp_path, *batches, begins={"o": {"0": 2}})
    assert why in log.broken
    assert len(log.batches) == len(batches) - 1


TWO_SOURCES = ['{"o": {"0": 3}}\n{"o": {"0": 7}, "p": {"0": 2}}', '{"o": {"0": 8}}\n{"o": {"0": 9}, "p": {"0": 2}}']


def second_begins(directory: Path) -> OffsetLog:
    """The log of an engine that says only of the second of its two sources where it began."""
    for source in ("0", "1"):  # Spark makes the directory of each before the file in it
        (directory / "sources" / source).mkdir(parents=True)
    (directory / "sources" / "1" / "0").write_text('\0v1\n{"o": {"0": 5}}')
    return log_of(directory, *TWO_SOURCES)


def test_where_a_source_began_is_of_that_source_alone(tmp_path: Path) -> None:
    """The first begins at 0: it does not go back to 3 from where the second began."""
    log = second_begins(tmp_path)
    assert (log.broken, len(log.batches), log.initial) == ("", 2, {1: {"o": {"0": 5}}})
    ranges = ranges_of(log).to_pylist()
    began = {(row["topic"], row["reading"]): row["start"] for row in ranges if row["batch"] == 0}
    assert began == {("o", 0): 0, ("o", 1): 5, ("p", 0): 0}


class Asked:
    """In the place of a replay: remembers what it was to run."""

    def __init__(self) -> None:
        self.logs: list[OffsetLog] = []

    def expected(self, log: OffsetLog, **_: object) -> Expected:
        self.logs.append(log)
        return Expected(RECORDS.empty_table(), RANGES.empty_table(), log.query_id)


def test_what_is_run_as_one_batch_has_a_line_for_each_source(tmp_path: Path) -> None:
    """Of the topics that it began with, or else of those of the first batch."""
    replay = Asked()
    whole_replay(cast("Replay", replay), [second_begins(tmp_path)], {("o", 0): 9, ("p", 0): 2})
    ((only,),) = (log.batches for log in replay.logs)
    assert only.ends == ({"o": {"0": 9}}, {"o": {"0": 9}})
