"""Spark's offset log: where each batch of a run ended, as the checkpoint says.

``offsets/N`` is a version line, a line of metadata (watermark, time of the batch, settings) and a line for each source;
``commits/N`` is there when the batch has ended; ``sources/K/0`` says where source K began.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onceflow.pipeline.local_checkpoint import numbers

Offsets = dict[str, dict[str, int]]
"""Topic to partition to the offset after the last record."""

Ends = dict[tuple[int, str, str], int]
"""The same in one: source, topic and partition to the offset after the last record."""

VERSION = "v1"
_METADATA = '{"id": "a UUID"}, written once, before the first batch'
_SHOWN_BYTES = 80


@dataclass(frozen=True, slots=True)
class Planned:
    """One batch of the offset log: the file as it is, and for each source its end (None: nothing read yet)."""

    number: int
    text: str
    ends: tuple[Offsets | None, ...]

    def at(self, time_ms: int) -> Planned:
        """The same batch, as if it had been planned at another time."""
        version, metadata, *sources = self.text.splitlines()
        moved = json.dumps({**json.loads(metadata), "batchTimestampMs": time_ms})
        return replace(self, text="\n".join([version, moved, *sources]))


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """A checkpoint. ``broken`` says why its batches are not the run's; empty where they are.

    ``initial`` is where each source began, by its number; an engine of one's own need not say so of each.
    """

    query_id: str
    initial: Mapping[int, Offsets]
    batches: tuple[Planned, ...]
    finished: tuple[int, ...]
    broken: str = ""


def read_offset_log(checkpoint: Path) -> OffsetLog:
    """Reads a local checkpoint as it is after a run. Raises OSError, ValueError where it is none."""
    query_id = query_of((checkpoint / "metadata").read_bytes())
    initial = _initial(checkpoint / "sources")
    reached = _ends(initial.items())
    batches: list[Planned] = []
    broken = ""
    for expected, number in enumerate(numbers(checkpoint / "offsets")):
        if number != expected:
            broken = f"the offset log goes from batch {expected - 1} to {number}"
            break
        try:
            batch = _planned(checkpoint / "offsets" / str(number), number)
        except ValueError as error:
            broken = f"the offset log's batch {number} cannot be read: {error}"
            break
        if broken := _goes_back(reached, batch):
            break
        reached |= _ends(enumerate(batch.ends))
        batches.append(batch)
    return OffsetLog(query_id, initial, tuple(batches), tuple(numbers(checkpoint / "commits")), broken)


def query_of(metadata: bytes) -> str:
    """Whose checkpoint it is, by its ``metadata`` file. Raises ValueError, which tells the author of an engine what to write."""
    try:
        found: object = json.loads(metadata)
    except ValueError:
        found = None
    query = found.get("id") if isinstance(found, dict) else None
    if not isinstance(query, str) or not query:
        there = metadata[:_SHOWN_BYTES].decode(errors="backslashreplace")
        raise ValueError(f"the checkpoint's file metadata holds {there!r}: what should stand there is {_METADATA}")
    return query


def resumed_from(checkpoint: Path) -> list[Path]:
    """The checkpoints that were set aside before this one was begun, the oldest first."""
    pattern = re.compile(re.escape(checkpoint.name) + r"\.before-(?:resume|restart)-(\d+)")
    found = [(int(match[1]), each) for each in checkpoint.parent.iterdir() if (match := pattern.fullmatch(each.name))]
    return [each for _, each in sorted(found)]


def _planned(path: Path, number: int) -> Planned:
    text = path.read_text(encoding="utf-8")
    version, *lines = text.splitlines()
    if version != VERSION or len(lines) < 2:
        raise ValueError(f"it begins with {version!r} and has {len(lines)} more lines")
    json.loads(lines[0])
    return Planned(number, text, tuple(None if line == "-" else _offsets(line) for line in lines[1:]))


def _initial(sources: Path) -> dict[int, Offsets]:
    """By the number of the source. In a file are a zero byte for the readers of Spark 2.1, the version, the offsets."""
    files = {number: sources / str(number) / "0" for number in numbers(sources)}
    return {
        number: _offsets(path.read_text(encoding="utf-8").split("\n", 1)[1])
        for number, path in files.items()
        if path.exists()
    }


def _offsets(line: str) -> Offsets:
    found: object = json.loads(line)
    if not isinstance(found, dict) or not all(map(_are_offsets, found.values())):
        raise ValueError(f"{line[:80]!r} are not Kafka's offsets")
    return found


def _are_offsets(parts: object) -> bool:
    return isinstance(parts, dict) and all(type(offset) is int for offset in parts.values())


def _ends(of_sources: Iterable[tuple[int, Offsets | None]]) -> Ends:
    """Of each partition of each source that is named by its number."""
    return {
        (source, topic, partition): offset
        for source, offsets in of_sources
        for topic, parts in (offsets or {}).items()
        for partition, offset in parts.items()
    }


def _goes_back(reached: Ends, batch: Planned) -> str:
    """Says where a batch ends before the place that the ones before it, or the beginning, had reached; empty: nowhere.

    Spark plans a batch once. An engine that plans it again, after another one has gone on, leaves a log of no run::

        the first driver plans batch 3 up to 120, and batch 4 from there
        the second one replaces offsets/3, up to 150            batch 4, as it stands, would go back from 150
    """
    for (source, topic, partition), until in _ends(enumerate(batch.ends)).items():
        before = reached.get((source, topic, partition), until)
        if until < before:
            return f"the offset log goes back in batch {batch.number}: {topic}-{partition} from {before} to {until}"
    return ""
