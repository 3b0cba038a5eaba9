"""A source read by hand: what a committer would write, and the positions that it would commit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from onceflow.events import EventIdentity, identity_of
from onceflow.ingest.files import FileOptions, FileSource, Format
from onceflow.ingest.source import Source, SourceBatch

DAY = Path(__file__).parents[2] / "src/onceflow/demo/data/online-retail-2010-12-01.csv"


@dataclass(frozen=True)
class Row:
    """A row as it would be written."""

    identity: EventIdentity
    key: str | None
    value: str

    @property
    def id(self) -> str:
        return self.identity.id


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    found = []
    for row in batch.to_pylist():
        identity = identity_of([(header["key"], header["value"]) for header in row["headers"]])
        assert identity is not None
        value = row["value"] if isinstance(row["value"], str) else row["value"].decode()
        found.append(Row(identity, row.get("key"), value))
    return found


def files(pattern: Path | str, form: Format = Format.CSV, **options: object) -> FileSource:
    return FileSource(FileOptions([str(pattern)], form, **options))  # type: ignore[arg-type]


def take(source: Source, positions: dict[str, str], batches: int | None = None) -> list[Row]:
    """One start and one look, of which the first ``batches`` are committed before the crash: the rows of these."""
    source.restore(dict(positions))
    return look(source, positions, batches)


def commit(positions: dict[str, str], batch: SourceBatch) -> None:
    for key, text in batch.positions.items():
        if text is None:
            positions.pop(key, None)
        else:
            positions[key] = text


def look(
    source: Source, positions: dict[str, str], batches: int | None = None, rows: list[Row] | None = None
) -> list[Row]:
    """One look of a source that is started; ``rows`` get what was committed before it fails."""
    rows = [] if rows is None else rows
    for number, batch in enumerate(source.batches()):
        if number == batches:
            break
        commit(positions, batch)
        rows += [] if batch.rows is None else rows_of(batch.rows)
    return rows


def values(rows: list[Row]) -> list[str]:
    return [row.value for row in rows]


def ids(rows: list[Row]) -> list[str]:
    return [row.id for row in rows]
