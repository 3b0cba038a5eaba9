"""An ingest needs no Spark."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Reader, TopicFactory
from tests.without_spark import run_command_without_spark

from onceflow.broker import EmbeddedBroker


def test_the_command_needs_no_spark(broker: EmbeddedBroker, topic: TopicFactory, read: Reader, tmp_path: Path) -> None:
    target, file = topic(), tmp_path / "rows.jsonl"
    file.write_text('{"n":1}\n{"n":2}\n')
    servers = ("--bootstrap-servers", broker.bootstrap_servers)
    run_command_without_spark("ingest", target, "--topic", target, "--file", str(file), *servers, "--json")
    assert [message.value() for message in read(target)] == [b'{"n":1}', b'{"n":2}']
