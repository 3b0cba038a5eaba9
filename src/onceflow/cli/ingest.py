"""``onceflow ingest``: files or a table into a topic, each row exactly once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from onceflow.cli.errors import out, shown_errors
from onceflow.errors import ConfigurationError

if TYPE_CHECKING:
    from onceflow.ingest.events import BrokerReady, Listener
    from onceflow.ingest.runner import Ingest
    from onceflow.ingest.source import Source
    from onceflow.kafka.settings import ClusterSettings

_SUFFIXES = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_FORMATS = ("csv", "jsonl", "parquet")


@dataclass(frozen=True, slots=True)
class _Arguments:
    """What was asked for, as it was typed."""

    files: list[str]
    format: str | None
    delimiter: str | None
    quoting: str
    finished: bool
    follow: bool
    changed: str
    key: str | None
    table: str | None
    rising: str | None
    database: str | None
    trust_order: bool
    tiebreak: str | None
    delay: float | None
    columns: str | None


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
    quoting: Annotated[str, typer.Option(help="Of CSV: csv (double quotes), or none (quotes are text).")] = "csv",
    columns: Annotated[
        str | None, typer.Option(help="Of CSV without a header: the names of the columns, a,b,c.")
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="A last row without a line end is complete.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C.")] = False,
    changed: Annotated[
        str, typer.Option(help="What no longer fits its position: refuse, or new (read it from the beginning).")
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
    bootstrap_servers: Annotated[str | None, typer.Option(help="Else the embedded broker in .onceflow/broker.")] = None,
    kafka: Annotated[list[str] | None, typer.Option(help="A client option, as Java names it: key=value.")] = None,
    partitions: Annotated[int, typer.Option(help="Of a topic that is made.", min=1)] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event, for machines.")] = False,
) -> None:
    """Bring files or a table into a topic, each row exactly once. Ctrl-C or SIGTERM ends it after the running transaction."""
    with shown_errors(as_json=as_json):
        from onceflow.cli.ingest_display import goes_on, told

        arguments = _Arguments(
            list(file or ()), file_format, delimiter, quoting, finished, follow, changed, key, table, rising, database,
            trust_order, tiebreak, delay, columns,
        )  # fmt: skip
        _check(name, arguments, kafka or [])
        source = _source(arguments)
        options = dict(_option(text) for text in kafka or ())
        with told(as_json=as_json) as tell:
            settings, broker = _cluster(bootstrap_servers, options, topic, partitions)
            if broker is not None:
                tell(broker)
            _run(name, topic, source, settings, tell, follow=follow, trust_positions=trust_positions)
        if broker is not None and not as_json:
            out(goes_on(broker))


def _check(name: str, given: _Arguments, kafka: list[str]) -> None:
    from onceflow.ingest.positions import check_name

    mistakes = [f"--kafka {text} is not key=value" for text in kafka if "=" not in text]
    try:
        check_name("ingest", name)
    except ConfigurationError as error:
        mistakes.append(f"{error.message}: {error.action}")
    if bool(given.files) == bool(given.table):
        mistakes.append("give either --file or --table")
    if given.changed not in ("refuse", "new"):
        mistakes.append(f"--changed {given.changed} is neither refuse nor new")
    mistakes += _table_mistakes(given) if given.table else _file_mistakes(given)
    if mistakes:
        raise ConfigurationError.of("the arguments", mistakes)


def _table_mistakes(given: _Arguments) -> list[str]:
    wanted = {"--from": given.database, "--rising": given.rising}
    mistakes = [f"--table needs {option}" for option, value in wanted.items() if not value]
    if given.tiebreak and given.tiebreak == given.rising:
        mistakes.append("--tiebreak is the column of --rising; a unique column needs none")
    if given.delay is not None and not given.tiebreak:
        mistakes.append("--delay is for --tiebreak only")
    if given.columns:
        mistakes.append("--columns is for CSV files")
    if given.database and not given.database.startswith(("postgresql://", "sqlite:///")):
        mistakes.append("--from is neither postgresql://… nor sqlite:///path (four slashes for an absolute path)")
    return mistakes


def _file_mistakes(given: _Arguments) -> list[str]:
    from onceflow.ingest.csv_rows import name_mistakes

    mistakes = []
    if given.format is not None and given.format not in _FORMATS:
        mistakes.append(f"--format {given.format} is none of {', '.join(_FORMATS)}")
    elif given.format is None and given.files and len(_formats(given.files)) != 1:
        mistakes.append("--format is needed: the file names do not tell one")
    if given.delimiter is not None and (
        len(given.delimiter) != 1 or given.delimiter in '"\r\n' or ord(given.delimiter) > 127
    ):
        mistakes.append(f"--delimiter {given.delimiter!r} is not a single ASCII character")
    if given.quoting not in ("csv", "none"):
        mistakes.append(f"--quoting {given.quoting} is neither csv nor none")
    if given.columns is not None:
        mistakes += [f"--columns: {mistake}" for mistake in name_mistakes(given.columns.split(","))]
        if (given.format or next(iter(_formats(given.files)), "csv")) != "csv":
            mistakes.append("--columns is for CSV files")
    if given.tiebreak or given.delay is not None or given.rising:
        mistakes.append("--rising, --tiebreak and --delay are for tables")
    if given.files and given.database:
        mistakes.append("--from is for tables, --file reads files: choose one")
    if given.finished and given.follow:
        mistakes.append("--finished says that nothing is added, --follow waits for more: choose one")
    return mistakes


def _formats(files: list[str]) -> set[str]:
    """The formats that the names tell, wherever the suffix stands: ``a.csv.gz``, ``app.jsonl.1``."""
    return {found for name in files for suffix, found in _SUFFIXES.items() if suffix in Path(name).suffixes}


def _option(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


def _source(given: _Arguments) -> Source:
    if given.table:
        return _table(given, given.table)
    from onceflow.ingest.files import FileOptions, FileSource, Format

    chosen = Format(given.format or _formats(given.files).pop())
    tabs = all(".tsv" in Path(name).suffixes for name in given.files)
    delimiter = given.delimiter or ("\t" if tabs else ",")
    quoted, accept_new = given.quoting == "csv", given.changed == "new"
    columns = given.columns.split(",") if given.columns else ()
    return FileSource(
        FileOptions(given.files, chosen, given.key, delimiter, quoted, given.finished, accept_new, columns)
    )


def _table(given: _Arguments, table: str) -> Source:
    from onceflow.ingest.tables import TableOptions, TableSource
    from onceflow.ingest.tables import connect as connect_database

    options = TableOptions(
        table, given.rising or "", given.key, given.trust_order, given.changed == "new", given.tiebreak
    )
    if given.delay is not None:
        options = replace(options, delay_s=given.delay)
    return TableSource(connect_database(given.database or "", options), options)


def _cluster(
    servers: str | None, options: dict[str, str], topic: str, partitions: int
) -> tuple[ClusterSettings, BrokerReady | None]:
    """The named cluster, or the embedded broker with the topic on it."""
    from onceflow.kafka.settings import ClusterSettings

    if servers is not None:
        return ClusterSettings.of(servers, options, where="the arguments"), None
    from onceflow.ingest.events import BrokerReady
    from onceflow.kafka.admin import ClusterAdmin
    from onceflow.pipeline.cluster import BROKER_DIRECTORY, embedded_broker

    broker, started = embedded_broker(Path.cwd() / BROKER_DIRECTORY)
    settings = ClusterSettings.of(broker.bootstrap_servers, options, where="the arguments")
    admin = ClusterAdmin(settings)
    if topic not in admin.partitions():
        admin.create_topics([topic], partitions=partitions)
    return settings, BrokerReady(broker.bootstrap_servers, str(broker.directory), started)


def _run(
    name: str,
    topic: str,
    source: Source,
    settings: ClusterSettings,
    tell: Listener,
    *,
    follow: bool,
    trust_positions: bool,
) -> None:
    from contextlib import closing

    from onceflow.ingest.committer import SourceCommitter
    from onceflow.ingest.runner import Ingest

    with closing(source), SourceCommitter(name, settings, trust_positions=trust_positions) as committer:
        ingest = Ingest(name, topic, source, tell)
        _take_signals(ingest)
        ingest.run(committer, follow=follow)


def _take_signals(ingest: Ingest) -> None:
    """The first signal ends it in order, the second one at once: as in a crash, the next start finishes what was open."""
    asked = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os.write(2, b"\ninterrupted\n")
            os._exit(128 + number)
        asked = True
        ingest.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
