"""``onceflow broker``: the embedded broker of a directory."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceflow.cli.errors import ERROR, out, shown_errors

if TYPE_CHECKING:
    from onceflow.broker import BrokerStatus, EmbeddedBroker
    from onceflow.kafka.settings import ClusterSettings

app = typer.Typer(
    help="The embedded broker: start, stop, status, create topics, and records in and out.", no_args_is_help=True
)
Directory = Annotated[Path, typer.Option("--directory", "-d", help="Where its data is.")]
DEFAULT = Path(".onceflow") / "broker"


@app.command()
def start(
    directory: Directory = DEFAULT,
    port: Annotated[int | None, typer.Option(help="A port of 127.0.0.1; a free one is chosen and kept.")] = None,
) -> None:
    """Start the broker; it runs until it is stopped. One that runs already is left alone, and must be on the same --port."""
    with shown_errors():
        from onceflow.broker import EmbeddedBroker

        broker = EmbeddedBroker(directory, port=port, detached=True)
        running = broker.is_running
        if running:
            _check_port(broker, port)
        else:
            broker.start()
        out(f"{broker.bootstrap_servers} {'runs already' if running else 'started'} (data in {broker.directory})")


def _check_port(broker: EmbeddedBroker, port: int | None) -> None:
    from onceflow.broker.settings import HOST
    from onceflow.errors import BrokerStartError

    if port is not None and broker.bootstrap_servers != f"{HOST}:{port}":
        raise BrokerStartError(
            f"the broker in {broker.directory} runs already, at {broker.bootstrap_servers} and not on port {port}",
            action=f"use it where it is, or stop it first: onceflow broker stop -d {broker.directory}",
            port=port,
        )


@app.command()
def stop(directory: Directory = DEFAULT) -> None:
    """Stop the broker, if it runs."""
    with shown_errors():
        from onceflow.broker import EmbeddedBroker

        broker = EmbeddedBroker(directory)
        running = broker.is_running
        broker.stop()
        out("stopped" if running else f"no broker runs in {broker.directory}")


@app.command()
def status(
    directory: Directory = DEFAULT, *, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False
) -> None:
    """Show whether the broker runs and where it listens. Exit code 1 if it does not run."""
    with shown_errors(as_json=as_json):
        from onceflow.broker import EmbeddedBroker

        found = EmbeddedBroker(directory).status()
        out(json.dumps(asdict(found), default=str) if as_json else _words(found))
        if not found.running:
            raise typer.Exit(ERROR)


def _words(found: BrokerStatus) -> str:
    if not found.running:
        return f"no broker runs in {found.directory}"
    since = datetime.fromtimestamp(found.started_at or 0, UTC).astimezone().isoformat(" ", "seconds")
    return f"{found.bootstrap_servers} runs since {since} (pid {found.pid}, data in {found.directory})"


@app.command()
def create(
    topics: Annotated[list[str], typer.Argument(help="The names; a topic that exists is left as it is.")],
    directory: Directory = DEFAULT,
    partitions: Annotated[int, typer.Option(help="Of each topic.", min=1)] = 4,
) -> None:
    """Create topics."""
    with shown_errors():
        from onceflow.kafka.admin import ClusterAdmin

        admin = ClusterAdmin(_settings(directory))
        before = admin.partitions()
        admin.create_topics(topics, partitions=partitions)
        for topic in dict.fromkeys(topics):
            if topic in before:
                out(f"{topic}: is there already, with {_counted(len(before[topic]))}")
            else:
                out(f"{topic}: created with {_counted(partitions)}")


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


@app.command()
def send(
    topic: Annotated[str, typer.Argument(help="An existing topic.")],
    directory: Directory = DEFAULT,
    key: Annotated[str | None, typer.Option(help="The key of all records.")] = None,
) -> None:
    """Send each line of the standard input as a record."""
    with shown_errors():
        from onceflow.cli.records import send_lines

        # Bytes, as they come: text would have to be UTF-8, here and in the key.
        lines = (_without_end(line) for line in sys.stdin.buffer)
        count = send_lines(_settings(directory), topic, lines, None if key is None else os.fsencode(key))
        out(f"{count} record{'' if count == 1 else 's'} sent to {topic}")


def _without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line


@app.command()
def read(
    topic: Annotated[str, typer.Argument(help="An existing topic.")],
    directory: Directory = DEFAULT,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per record.")] = False,
) -> None:
    """Print the records of a topic that are committed now, partition by partition: key and value, as `onceflow read` does."""
    with shown_errors(as_json=as_json, apart=True):
        from onceflow.cli.read import shown
        from onceflow.cli.records import read_committed

        for record in read_committed(_settings(directory), topic):
            out(json.dumps(asdict(record)) if as_json else f"{shown(record.key)}\t{shown(record.value)}")


def _settings(directory: Path) -> ClusterSettings:
    from onceflow.broker import EmbeddedBroker
    from onceflow.kafka.settings import ClusterSettings

    return ClusterSettings.of(EmbeddedBroker.attach(directory).bootstrap_servers)
