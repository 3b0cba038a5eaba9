"""``onceflow read``: the committed events of a topic, with what identifies them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceflow.cli.broker import DEFAULT
from onceflow.cli.errors import out, shown_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from confluent_kafka import Message

    from onceflow.kafka.settings import ClusterSettings


_REASON = "onceflow_reason"  # of a dead letter
_NULL = r"\N"  # as in PostgreSQL's COPY: no text is shown so, because its backslashes are doubled
_CONTROL = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]  # and what else ends a line
_ESCAPES = {
    **{number: f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" for number in _CONTROL},
    **str.maketrans({"\t": r"\t", "\n": r"\n", "\r": r"\r", "\\": r"\\"}),
}


def read(
    topic: Annotated[str, typer.Argument(help="An existing topic.")],
    bootstrap_servers: Annotated[
        str | None,
        typer.Option("--bootstrap-servers", "-b", help="host:port,… of a cluster, instead of the embedded one."),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--directory", "-d", help="Where the embedded broker's data is.")
    ] = DEFAULT,
    kafka: Annotated[
        list[str] | None, typer.Option("--kafka", metavar="NAME=VALUE", help="A Java client option; may be repeated.")
    ] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition; may be repeated.")] = None,
    event_id: Annotated[str | None, typer.Option("--id", help="Only events with this id (ce_id).")] = None,
    source: Annotated[str | None, typer.Option(help="Only events of this source (ce_source).")] = None,
    key: Annotated[str | None, typer.Option(help="Only events with this key.")] = None,
    contains: Annotated[str | None, typer.Option(help="Only events whose value contains this text.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after so many events.")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more; Ctrl-C ends it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event.")] = False,
) -> None:
    """Print the committed events of a topic: position, source and id, key, value; partition by partition, or as they come."""
    with shown_errors(as_json=as_json, apart=True):
        from onceflow.cli.records import committed_messages

        settings = _settings(bootstrap_servers, directory, kafka or [])
        wanted = {"id": event_id, "source": source, "key": key}
        messages = committed_messages(settings, topic, partition, follow=follow)
        selected = _selected(messages, {name: value for name, value in wanted.items() if value is not None}, contains)
        for number, event in enumerate(selected, start=1):
            out(json.dumps(event, ensure_ascii=False) if as_json else _line(event))
            if number == limit:
                break


def _selected(
    messages: Iterable[Message], wanted: Mapping[str, str], contains: str | None
) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        event = _event(message)
        fits = all(event[name] == value for name, value in wanted.items())
        if fits and (contains is None or contains in (event["value"] or "")):
            yield event


def _event(message: Message) -> Mapping[str, Any]:
    """An event as people read it; bytes that are no UTF-8 are replaced, and of key and value given as base64 too.

    ``headers`` is None where the name of one is no UTF-8: then none of them can be read.
    """
    from onceflow.cli.records import base64_of, text_of
    from onceflow.events import identity_of
    from onceflow.kafka.headers import HeadersUnreadable
    from onceflow.reader.event import headers_of

    try:
        headers = headers_of(message)
    except HeadersUnreadable:
        headers = None
    identity = identity_of(headers or ())
    raw = {"key_base64": base64_of(message.key()), "value_base64": base64_of(message.value())}
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "source": identity.source if identity else None,
        "id": identity.id if identity else None,
        "sequence": identity.sequence if identity else None,
        "key": text_of(message.key()),
        "value": text_of(message.value()),
        **{name: encoded for name, encoded in raw.items() if encoded is not None},
        "headers": None if headers is None else [[name, text_of(value)] for name, value in headers],
    }


def _line(event: Mapping[str, Any]) -> str:
    name = f"{event['source']} {event['id']}" if event["id"] is not None else ""
    reasons = [value for header, value in reversed(event["headers"] or ()) if header == _REASON]
    columns = [name, event["key"], event["value"], *reasons[:1]]
    return "\t".join([f"{event['partition']}@{event['offset']}", *map(shown, columns)])


def shown(text: str | None) -> str:
    """One column of one line, whatever is in it."""
    return _NULL if text is None else text.translate(_ESCAPES)


def _settings(bootstrap_servers: str | None, directory: Path, kafka: list[str]) -> ClusterSettings:
    from onceflow.broker import EmbeddedBroker
    from onceflow.errors import ConfigurationError
    from onceflow.kafka.settings import ClusterSettings

    wrong = [f"--kafka {each}: write name=value" for each in kafka if "=" not in each]
    if wrong:
        raise ConfigurationError.of("the command line", wrong)
    servers = bootstrap_servers or EmbeddedBroker.attach(directory).bootstrap_servers
    return ClusterSettings.of(servers, dict(each.split("=", 1) for each in kafka))
