"""``--keep``: what a visitor finds afterwards, and how to look at it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from onceflow.broker import EmbeddedBroker
from onceflow.broker.java_tool import java_command
from onceflow.demo.place import Place

_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@dataclass(frozen=True, slots=True)
class Kept:
    """A broker that outlives the demo, and the commands for it."""

    directory: str
    bootstrap_servers: str
    read: str
    stop: str


def leave_running(place: Place) -> Kept:
    """Start the demo's broker again so that it belongs to nobody, and give the ways to use and to end it."""
    broker = EmbeddedBroker(place.broker, detached=True).start()
    servers = broker.bootstrap_servers
    reader = _write_reader(place.directory / "read-topic", servers)
    stop = f"onceflow broker stop --directory {shlex.quote(str(place.broker))}"
    return Kept(str(place.directory), servers, f"{shlex.quote(str(reader))} sales", stop)


def _write_reader(path: Path, servers: str) -> Path:
    """Kafka's own console consumer with its class path, as a command: ``read-topic <topic> [options]``."""
    options = ["--bootstrap-server", servers, "--isolation-level", "read_committed", "--from-beginning"]
    command = shlex.join(java_command(_CONSUMER, [*options, "--formatter-property", "print.key=true"]))
    path.write_text(f'#!/bin/sh\nexec {command} --topic "$@"\n')
    path.chmod(0o755)
    return path
