"""``onceflow ingest``: files or a table into a topic, each row exactly once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceflow.cli.errors import out, shown_errors
from onceflow.cli.signals import end_in_order

if TYPE_CHECKING:
    from onceflow.cli.ingest_arguments import Arguments
    from onceflow.ingest.events import BrokerReady
    from onceflow.ingest.runner import Ingest
    from onceflow.ingest.source import Source
    from onceflow.kafka.settings import ClusterSettings

PARTITIONS = 4


def ingest(
    name: Annotated[str, typer.Argument(help="The ingest's name, for ever: positions are kept under it.")],
    topic: Annotated[str, typer.Option(help="Where the rows go. On the embedded broker it is made if it is missing.")],
    *,
    file: Annotated[
        list[str] | None,
        typer.Option(help="Files to read: a path or a pattern (quote it). Also gzip and zstd. Repeatable."),
    ] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help="csv, jsonl or parquet; else by the name.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Of CSV; a comma, or a tab for .tsv.")] = None,
    quoting: Annotated[
        str | None, typer.Option(help="Of CSV: csv (double quotes, the default), or none (quotes are text).")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Of CSV without a header: the names of the columns, a,b,c.")
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="A last row without a line end is complete.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C.")] = False,
    changed: Annotated[
        str,
        typer.Option(
            help="What no longer fits its position: refuse, new (read it from the beginning), or, of a table, same (it was "
            "moved: restored, copied, upgraded)."
        ),
    ] = "refuse",
    key: Annotated[str | None, typer.Option(help="The column (or JSON member) that becomes the record's key.")] = None,
    table: Annotated[str | None, typer.Option(help="A table to read, with --from and --rising.")] = None,
    database: Annotated[
        str | None, typer.Option("--from", help="postgresql://…, sqlite:///relative.db or sqlite:////absolute.db")
    ] = None,
    rising: Annotated[str | None, typer.Option(help="The table's column whose values only rise.")] = None,
    tiebreak: Annotated[
        str | None, typer.Option(help="A unique column, where values of --rising may be equal (a time of change).")
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(min=0, help="With --tiebreak: after so many seconds a new value is surely larger (5)."),
    ] = None,
    trust_order: Annotated[
        bool,
        typer.Option("--trust-order", help="No row ever appears behind a larger one, although that cannot be checked."),
    ] = False,
    trust_positions: Annotated[
        bool,
        typer.Option(
            "--trust-positions", help="Go on although the cluster has forgotten the progress (after days of rest)."
        ),
    ] = False,
    from_now_on: Annotated[
        bool,
        typer.Option(
            "--from-now-on", help="Another --topic, --key or --columns than before is meant, from the position on."
        ),
    ] = False,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", "-b", help="Else the embedded broker in .onceflow/broker.")
    ] = None,
    kafka: Annotated[list[str] | None, typer.Option(help="A client option, as Java names it: key=value.")] = None,
    partitions: Annotated[
        int | None, typer.Option(help=f"Of a topic that is made on the embedded broker ({PARTITIONS}).", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event, for machines.")] = False,
) -> None:
    """Bring files or a table into a topic, each row exactly once. Ctrl-C or SIGTERM ends it after the running transaction."""
    with shown_errors(as_json=as_json):
        from onceflow.cli.ingest_arguments import Arguments, check
        from onceflow.cli.ingest_display import goes_on, told
        from onceflow.ingest.runner import Ingest

        arguments = Arguments(
            list(file or ()), file_format, delimiter, quoting, finished, follow, changed, key, table, rising, database,
            trust_order, tiebreak, delay, columns, bootstrap_servers, kafka or [], partitions,
        )  # fmt: skip
        check(name, arguments)
        source = _source(arguments)
        with told(as_json=as_json) as tell:
            settings, broker = _cluster(arguments)
            if broker is not None:
                tell(broker)

            def make_topic() -> None:
                if broker is not None:
                    _make_topic(settings, topic, partitions or PARTITIONS)

            running = Ingest(name, topic, source, tell, from_now_on=from_now_on, make_topic=make_topic)
            _run(running, name, source, settings, follow=follow, trust_positions=trust_positions)
        if broker is not None and not as_json:
            out(goes_on(broker))


def _option(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


def _source(given: Arguments) -> Source:
    if given.table:
        return _table(given, given.table)
    from onceflow.ingest.files import FileOptions, FileSource, Format

    [form], delimiter = given.formats, min(given.delimiters)
    quoted, accept_new = given.quoting != "none", given.changed == "new"
    columns = given.columns.split(",") if given.columns else ()
    source = FileSource(
        FileOptions(given.files, Format(form), given.key, delimiter, quoted, given.finished, accept_new, columns)
    )
    if not given.follow:
        source.check_any()
    return source


def _table(given: Arguments, table: str) -> Source:
    from onceflow.ingest.tables import TableOptions, TableSource
    from onceflow.ingest.tables import connect as connect_database

    options = TableOptions(
        table,
        given.rising or "",
        given.key,
        given.trust_order,
        accept_new=given.changed == "new",
        accept_same=given.changed == "same",
        tiebreak=given.tiebreak,
    )
    if given.delay is not None:
        options = replace(options, delay_s=given.delay)
    return TableSource(connect_database(given.database or "", options), options)


def _cluster(given: Arguments) -> tuple[ClusterSettings, BrokerReady | None]:
    """The named cluster, or the embedded broker."""
    from onceflow.kafka.settings import ClusterSettings

    options = dict(_option(text) for text in given.kafka)
    if given.bootstrap_servers is not None:
        return ClusterSettings.of(given.bootstrap_servers, options, where="the arguments"), None
    from onceflow.ingest.events import BrokerReady
    from onceflow.pipeline.cluster import BROKER_DIRECTORY, embedded_broker

    broker, started = embedded_broker(Path.cwd() / BROKER_DIRECTORY)
    settings = ClusterSettings.of(broker.bootstrap_servers, options, where="the arguments")
    return settings, BrokerReady(broker.bootstrap_servers, str(broker.directory), started)


def _make_topic(settings: ClusterSettings, topic: str, partitions: int) -> None:
    """Where it is missing."""
    from onceflow.kafka.admin import ClusterAdmin

    ClusterAdmin(settings).create_topics([topic], partitions=partitions, needed="WRITE")


def _run(
    ingest: Ingest, name: str, source: Source, settings: ClusterSettings, *, follow: bool, trust_positions: bool
) -> None:
    from contextlib import closing

    from onceflow.ingest.committer import SourceCommitter

    with (
        closing(source),
        SourceCommitter(name, settings, trust_positions=trust_positions) as committer,
        end_in_order(lambda _: ingest.stop()),
    ):
        ingest.run(committer, follow=follow)
