"""What a run must have written, batch by batch, as tables and as files."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather

from onceflow.verify.recording.tables import NAME

RECORDS = pa.schema(
    [
        pa.field("batch", pa.int64()),
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),  # -1: the sink is free to choose, for the record has no key
        pa.field("ordinal", pa.int64()),  # counts in batch, topic and partition
        pa.field("key", pa.int64()),  # digest.key_digest; null: no key
        pa.field("content", pa.int64()),  # digest.content_digest
        pa.field(
            "origin", pa.int64()
        ),  # a number of the task that made it; null: it may not be the only one of its partition
    ]
)
"""The records expected."""

RANGES = pa.schema(
    [
        pa.field("batch", pa.int64()),
        pa.field("reading", pa.int32()),  # 0, and others where a topic is read twice from different places
        pa.field("topic", NAME),
        pa.field("partition", pa.int32()),
        pa.field("start", pa.int64()),
        pa.field("until", pa.int64()),
    ]
)
"""What each batch read."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The output that the committed input must lead to.

    ``query_id`` is that of the checkpoint. ``finished`` are the batches that Spark's commit log has; ``digests``, by batch, tell
    which one each is: of its source end offsets, as the progress keeps them (empty: not known). Inside of a batch
    records of one key and one origin keep their order, but those of the topics ``unordered``: a shuffle may have mixed them, or
    several tasks have read one partition.
    ``whole``: batch ends are not known, so everything is one batch 0. ``refused`` says why the output cannot be foretold;
    then ``records`` is empty.
    """

    records: pa.Table
    ranges: pa.Table
    query_id: str = ""
    finished: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    stateful: bool = False
    whole: bool = False
    refused: str = ""
    notes: tuple[str, ...] = ()

    def save(self, directory: Path) -> None:
        """Writes ``records.arrow``, ``ranges.arrow`` and ``about.json``."""
        directory.mkdir(parents=True, exist_ok=True)
        feather.write_feather(self.records.unify_dictionaries(), str(directory / "records.arrow"))
        feather.write_feather(self.ranges.unify_dictionaries(), str(directory / "ranges.arrow"))
        tables = ("records", "ranges")
        about = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in tables}
        (directory / "about.json").write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Expected:
        """Reads what ``save`` wrote."""
        about = json.loads((directory / "about.json").read_text(encoding="utf-8"))
        tables = [feather.read_table(directory / f"{name}.arrow") for name in ("records", "ranges")]
        lists = {name: tuple(about[name]) for name in ("finished", "digests", "unordered", "notes")}
        return cls(*tables, **{**about, **lists})
