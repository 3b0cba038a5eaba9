"""``onceflow outbox``: events that services insert into a table go to Kafka, each exactly once."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from onceflow.cli.errors import out, shown_errors
from onceflow.cli.signals import end_in_order
from onceflow.errors import ConfigurationError

if TYPE_CHECKING:
    from onceflow.errors import OnceflowError
    from onceflow.kafka.settings import ClusterSettings

app = typer.Typer(help="Relay an outbox table to Kafka, each event exactly once.", no_args_is_help=True)
Table = Annotated[str, typer.Option(help="The outbox, as table or schema.table.")]


class Refused(StrEnum):
    """What becomes of a row that Kafka can never take."""

    stop = "stop"
    dead_letter = "dead-letter"


class Database(StrEnum):
    """Where an outbox can be."""

    postgresql = "postgresql"
    sqlite = "sqlite"


@app.command()
def init(
    database: Annotated[Database, typer.Argument(help="The database that gets the outbox.")],
    extra: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    *,
    table: Table = "outbox",
    notify: Annotated[bool, typer.Option(help="With LISTEN/NOTIFY, for low latency (PostgreSQL).")] = True,
) -> None:
    """Print the SQL that makes the outbox. It can run again: onceflow outbox init postgresql | psql mydatabase"""
    with shown_errors():
        from onceflow.outbox import sql

        if extra:
            raise ConfigurationError(
                f"init connects to nothing and takes the kind of database alone, so {' '.join(extra)!r} has no meaning",
                action=f"pipe what it prints: onceflow outbox init {database} | "
                f"{'psql' if database is Database.postgresql else 'sqlite3'} {extra[0]}; for a table of another name: --table",
            )
        name = sql.TableName.parse(table)
        if database is Database.postgresql:
            out(sql.postgresql(name, notify=notify))
        else:
            out(sql.sqlite(name))


@app.command()
def relay(
    name: Annotated[str, typer.Argument(help="The relay's name for ever: its place in Kafka is kept under it.")],
    *,
    source: Annotated[
        str, typer.Option("--from", envvar="ONCEFLOW_OUTBOX", help="postgresql://user@host/database or sqlite:///file.")
    ],
    table: Table = "outbox",
    once: Annotated[bool, typer.Option("--once", help="Send what is there, and end.")] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, max=10_000, help="The most events in one Kafka transaction.")
    ] = 2000,
    refused: Annotated[
        Refused,
        typer.Option(help="A row that Kafka can never take: stop, or set it aside with a dead letter and go on."),
    ] = Refused.stop,
    create_topics: Annotated[
        int | None, typer.Option(min=1, metavar="PARTITIONS", help="Make missing topics, of so many partitions.")
    ] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers", "-b", help="host:port,... ; without it the embedded broker of this directory."
        ),
    ] = None,
    kafka: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Kafka client option.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event, for machines.")] = False,
) -> None:
    """Send the events of an outbox to the topics outbox.event.<aggregatetype>.

    Ctrl-C or SIGTERM ends it after the running batch, a second one at once.

    A password belongs into PGPASSWORD, ~/.pgpass or the variable ONCEFLOW_OUTBOX; arguments are seen by everybody on the machine.
    """
    with shown_errors(as_json=as_json):
        from onceflow.outbox.service import OutboxService, outbox_at
        from onceflow.outbox.table import Limits
        from onceflow.outbox.waker import Waker

        _check(name, source, table, kafka or [])
        outbox = outbox_at(source, table)
        settings = _cluster(bootstrap_servers, kafka or [])
        tell = _Tell(as_json=as_json)
        tell.starts(f"relay {name} starts: {outbox.address} to {settings.bootstrap_servers}")
        with Waker() as waker, end_in_order(lambda _: waker.wake()):
            service = OutboxService(
                name,
                outbox,
                settings,
                waker,
                limits=Limits(batch_size),
                create_partitions=create_topics,
                dead_letters=refused is Refused.dead_letter,
            )
            service.on_start = lambda: tell("started", f"relay {name} sends {outbox.address}", address=outbox.address)
            service.on_trouble = tell.trouble
            try:
                service.once() if once else service.run()
            finally:
                tell(
                    "ended",
                    f"{service.sent} event{'' if service.sent == 1 else 's'} sent by this run",
                    sent=service.sent,
                )


class _Tell:
    """Lines for people, or objects for machines."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def __call__(self, event: str, text: str, **fields: object) -> None:
        out(json.dumps({"event": event, **fields}) if self._as_json else text)

    def starts(self, text: str) -> None:
        """It connects and loads its libraries, which takes seconds on a busy machine."""
        if not self._as_json:
            out(text)

    def trouble(self, error: OnceflowError) -> None:
        """An error that the relay gets over by itself."""
        if self._as_json:
            self("retry", "", code=error.code, message=error.message)
        else:
            print(f"{error.message}; trying again", file=sys.stderr, flush=True)


def _check(name: str, source: str, table: str, options: list[str]) -> None:
    """Raises ConfigurationError with every mistake in the arguments."""
    from onceflow.ingest.positions import check_name
    from onceflow.outbox.service import outbox_at
    from onceflow.outbox.sql import TableName

    mistakes = [f"--kafka {text!r} has no value: write key=value" for text in options if "=" not in text]
    for check in (
        lambda: check_name("outbox relay", name),
        lambda: TableName.parse(table),
        lambda: outbox_at(source, "outbox"),
    ):
        try:
            check()
        except ConfigurationError as error:
            mistakes.append(f"{error.message}: {error.action}")
    if mistakes:
        raise ConfigurationError.of("the arguments", mistakes)


def _cluster(servers: str | None, options: list[str]) -> ClusterSettings:
    from onceflow.kafka.settings import ClusterSettings

    if servers is None:
        from onceflow.broker import EmbeddedBroker
        from onceflow.cli.broker import DEFAULT

        servers = EmbeddedBroker.attach(DEFAULT).bootstrap_servers
    return ClusterSettings.of(servers, dict(text.split("=", 1) for text in options), where="the Kafka options")
