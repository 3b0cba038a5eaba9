"""Rows that are equal in every column are different events: from the file to the effects of a reader."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import TopicFactory, until_stable
from tests.ingest.support import files

import onceflow
from onceflow.broker import EmbeddedBroker
from onceflow.ingest import files as files_module
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.event_rows import event_rows
from onceflow.ingest.files import Format
from onceflow.ingest.runner import Ingest
from onceflow.kafka.settings import ClusterSettings
from onceflow.reader.event import Event

ROWS = ['{"sku":"a","count":1}', '{"sku":"b","count":2}', '{"sku":"a","count":1}', '{"sku":"a","count":1}']
_numbers = itertools.count()


def effects(broker: EmbeddedBroker, topic: str, file: Path) -> list[str]:
    """What a reader handles of a file that was ingested."""
    name = f"equal-{next(_numbers)}"
    file.write_text("".join(f"{row}\n" for row in ROWS))
    with SourceCommitter(name, ClusterSettings.of(broker.bootstrap_servers)) as committer:
        assert Ingest(name, topic, files(file, Format.JSONL)).run(committer) == len(ROWS)
    until_stable(broker, topic)
    handled: list[str] = []
    reader = onceflow.Reader(topic, group=name, store="memory:", bootstrap_servers=broker.bootstrap_servers)

    @reader.handler
    def note(event: Event) -> None:
        handled.append((event.value or b"").decode())

    reader.run(until_end=True)
    return handled


def test_each_of_them_has_its_effect(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> None:
    assert effects(broker, topic(), tmp_path / "rows.jsonl") == ROWS


def test_control_named_by_what_is_in_them_they_would_be_one(
    broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a row without an id of its own is given the digest of it."""

    def by_content(
        values: pa.Array, keys: pa.Array | None, source: str, ids: pa.Array, *, rising: bool
    ) -> pa.RecordBatch:
        digests = pa.array([hashlib.sha256(str(value).encode()).hexdigest() for value in values.to_pylist()])
        return event_rows(values, keys, source, digests, rising=False)

    monkeypatch.setattr(files_module, "event_rows", by_content)
    assert effects(broker, topic(), tmp_path / "rows.jsonl") == ROWS[:2]
