"""Positions as they are committed: those of another version are told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ingest.support import files, take

from onceflow.errors import ConfigurationError
from onceflow.ingest.file_position import FilePosition, Print
from onceflow.ingest.files import Format
from onceflow.ingest.positions import read_positions
from onceflow.ingest.tables import TablePosition
from onceflow.kafka.settings import ClusterSettings
from onceflow.outbox.position import Sent

FILE = FilePosition("file:///a.jsonl#1-2-ab", "/a.jsonl", 1, 2, Print(3, "ab", "cd"), 3, 1)
TABLE = TablePosition("sqlite:///shop.db/orders#1-orders", "1-orders", 7, ("id",))
OUTBOX = Sent("6ac9", 3, 7, ((1, 7),), "ab", (2,))


@pytest.mark.parametrize(
    ("position", "text", "read"),
    [
        (FILE, FILE.text(), FilePosition.of),
        (TABLE, TABLE.text(), TablePosition.of),
        (OUTBOX, OUTBOX.to_json(), Sent.from_json),
    ],
)
def test_what_a_later_version_wrote_is_refused_by_name(
    position: object, text: str, read: Callable[[str], object]
) -> None:
    assert read(text) == position
    later = json.dumps({**json.loads(text), "escape": "\\"})
    with pytest.raises(ConfigurationError, match=r"by a later version, .* does not know: escape\n") as caught:
        read(later)
    assert str(caught.value.fields["where"]) in caught.value.message
    assert "that version or a later one" in caught.value.action


def test_a_print_of_a_later_version_too_and_nothing_is_read(tmp_path: Path) -> None:
    path, positions = tmp_path / "a.jsonl", dict[str, str]()
    path.write_text("1\n2\n")
    take(files(path, Format.JSONL), positions)
    [(source, text)] = positions.items()
    found = json.loads(text)
    positions[source] = json.dumps({**found, "seen": {**found["seen"], "middle": "ef"}})
    with pytest.raises(ConfigurationError, match=r"a\.jsonl#.* does not know: middle\n"):
        take(files(path, Format.JSONL), positions)


def test_a_certificate_file_that_cannot_be_read_is_a_mistake_of_the_settings() -> None:
    settings = {"security.protocol": "SSL", "ssl.truststore.location": "/nowhere/ca.pem"}
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location failed"):
        read_positions(ClusterSettings.of("127.0.0.1:1", settings), "t", 1)
