"""Records in and out of the embedded broker by hand, and where it says that it listens."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message

from onceflow.broker import EmbeddedBroker
from onceflow.cli.records import committed_messages, send_lines
from onceflow.errors import KafkaError
from onceflow.kafka.settings import ClusterSettings

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

TIMEOUT_S = 300


def onceflow(*arguments: str | bytes, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "onceflow.cli", *arguments]
    return subprocess.run(command, input=given, capture_output=True, timeout=TIMEOUT_S, check=False)


def messages(broker: EmbeddedBroker, topic: str) -> list[Message]:
    return list(committed_messages(ClusterSettings.of(broker.bootstrap_servers), topic))


def test_lines_are_sent_as_the_bytes_that_they_are(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    """Text or not; a line of Windows ends with two bytes."""
    target = topic()
    given = b"\xff\xfe\nplain\r\n\n\xc3\xbc\rlast"
    sent = onceflow("broker", "send", "-d", str(broker.directory), target, "--key", b"k\xff", given=given)
    assert (sent.returncode, sent.stderr) == (0, b"")
    assert sent.stdout == f"4 records sent to {target}\n".encode()
    found = messages(broker, target)
    assert [message.value() for message in found] == [b"\xff\xfe", b"plain", b"", b"\xc3\xbc\rlast"]
    assert {message.key() for message in found} == {b"k\xff"}


def test_more_lines_are_sent_than_fit_the_clients_queue(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    target, count = topic(), 300_000
    settings = ClusterSettings.of(broker.bootstrap_servers)
    assert send_lines(settings, target, (b"%d" % number for number in range(count)), None) == count
    assert [message.value() for message in messages(broker, target)] == [b"%d" % number for number in range(count)]


def test_a_line_that_is_longer_than_kafka_takes_is_named(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    target = topic()
    given = b"first\n" + b"x" * 2_000_000 + b"\nlast\n"
    sent = onceflow("broker", "send", "-d", str(broker.directory), target, given=given)
    assert sent.returncode == 1
    said = " ".join(sent.stderr.decode().split())
    assert said.startswith(f"error RECORD_TOO_LARGE line 2 for {target} (2,000,000 bytes) is longer than")
    assert "of the lines before it 1 are in the topic, of those behind it none" in said
    assert [message.value() for message in messages(broker, target)] == [b"first"]


def test_a_line_that_the_broker_refuses_ends_the_sending(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    """However many more there are."""
    target = topic(config={"max.message.bytes": "1000"})
    settings = ClusterSettings.of(broker.bootstrap_servers)
    with pytest.raises(KafkaError, match=r"were not acknowledged: .*large"):
        send_lines(settings, target, itertools.repeat(b"x" * 5000), None)


def test_a_partition_that_a_topic_does_not_have_is_a_mistake(broker: EmbeddedBroker, topic: TopicFactory) -> None:
    target = topic(4)
    place = ("-b", broker.bootstrap_servers, "--json")
    read = onceflow("read", target, *place, "--partition", "3", "--partition", "9")
    assert read.returncode == 2
    said = json.loads(read.stderr)["message"]
    assert f"--partition 9: topic {target} has no such partition; its partitions are 0 to 3" in said
    assert "--partition 3" not in said
    assert onceflow("read", target, *place, "--partition", "3").returncode == 0


def test_a_broker_that_runs_on_another_port_is_not_the_one_asked_for(broker: EmbeddedBroker) -> None:
    start = ("broker", "start", "-d", str(broker.directory))
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    refused = onceflow(*start, "--port", str(port + 1))
    assert refused.returncode == 1
    said = " ".join(refused.stderr.decode().split())
    assert f"runs already, at {broker.bootstrap_servers} and not on port {port + 1}" in said
    for same in (onceflow(*start), onceflow(*start, "--port", str(port))):
        assert (same.returncode, b"runs already" in same.stdout) == (0, True)


def test_what_is_no_port_is_a_mistake_before_anything_starts(tmp_path: Path) -> None:
    refused = onceflow("broker", "start", "-d", str(tmp_path), "--port", "99999")
    assert refused.returncode == 2
    assert "99999 is no port: give one from 1 to 65535" in refused.stderr.decode()
    assert not EmbeddedBroker(tmp_path).is_running
