"""``onceflow status``: progress, lag and last batches of a pipeline. Reads only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from onceflow.cli.errors import out, shown_errors
from onceflow.errors import ConfigurationError

if TYPE_CHECKING:
    from onceflow.kafka.settings import ClusterSettings
    from onceflow.pipeline.batch_states import BatchState
    from onceflow.pipeline.status import PipelineStatus

PLAN = Path("pipeline.toml")


def status(
    name: Annotated[str | None, typer.Argument(help="The pipeline's name; that of the plan if left out.")] = None,
    *,
    plan: Annotated[
        Path | None, typer.Option(help="The plan that names the cluster and the checkpoint.  [default: pipeline.toml]")
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", "-b", help="A cluster to ask without a plan.")
    ] = None,
    last: Annotated[int, typer.Option(help="How many batches to show, of each query.", min=0)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show a pipeline's progress record, its lag and its last batches.

    A batch is its source offsets, not its number: two rows of one number are two batches. "-" stands where Kafka does not
    tell (of another query than the newest that committed, or of batches long ago), or where there is no checkpoint to look at.
    """
    with shown_errors(as_json=as_json):
        from onceflow.pipeline.status import read_status

        settings, chosen, checkpoint = _place(name, plan, bootstrap_servers)
        found = read_status(chosen, settings, checkpoint, last)
        if as_json:
            out(json.dumps(_document(found)))
        else:
            _print(found)


def _place(
    name: str | None, plan: Path | None, bootstrap_servers: str | None
) -> tuple[ClusterSettings, str, Path | None]:
    """The cluster to ask, the pipeline's name, and the checkpoint if it is a local one that the plan names."""
    from onceflow.broker import EmbeddedBroker
    from onceflow.config import load
    from onceflow.kafka.settings import ClusterSettings
    from onceflow.pipeline.cluster import BROKER_DIRECTORY, find_settings
    from onceflow.pipeline.local_checkpoint import local_path

    if plan is not None and bootstrap_servers is not None:
        raise ConfigurationError("--plan names a cluster: leave out --bootstrap-servers, or --plan and give NAME")
    if bootstrap_servers is None and (plan is not None or PLAN.exists()):
        file = load(plan or PLAN, os.environ)
        is_own = name in (None, file.plan.name)
        return find_settings(file), name or file.plan.name, local_path(file.checkpoint) if is_own else None
    if name is None:
        raise ConfigurationError("there is no pipeline.toml here: give the pipeline's NAME, or a plan with --plan")
    return (
        ClusterSettings.of(bootstrap_servers or EmbeddedBroker.attach(BROKER_DIRECTORY).bootstrap_servers),
        name,
        None,
    )


def _document(found: PipelineStatus) -> dict[str, Any]:
    progress = asdict(found.progress) if found.progress else None
    partitions = [{**asdict(p), "lag": p.lag} for p in found.partitions]
    batches = [asdict(b) for b in found.batches]
    head = {"name": found.name, "group": found.group, "bootstrap_servers": found.bootstrap_servers}
    checkpoint = {"checkpoint_query": found.checkpoint_query, "warning": found.warning}
    return {**head, "progress": progress, **checkpoint, "partitions": partitions, "batches": batches}


def _print(found: PipelineStatus) -> None:
    out(f"pipeline {found.name} on {found.bootstrap_servers}, group {found.group}")
    if found.progress is None:
        out("nothing is committed exactly once under this name")
    else:
        claim = f"claimed by driver {found.progress.instance}"
        query = f"query {found.progress.query_id}, " if found.progress.query_id else ""
        out(f"next batch {found.progress.next_batch}, {query}{claim}")
    if found.warning:
        out(f"warning: {found.warning}")
    if found.partitions:
        rows: list[tuple[object, ...]] = [(p.topic, p.partition, p.committed, p.end, p.lag) for p in found.partitions]
        rows.append(("all", "", "", "", sum(p.lag for p in found.partitions)))
        _table(("source", "partition", "committed", "end", "lag"), rows)
    if found.batches:
        _table(*_batch_rows(found.batches))


def _batch_rows(batches: Sequence[BatchState]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The header and the rows; whose a batch is stands there where there are two queries."""
    header: tuple[str, ...] = ("batch", "in Kafka", "in checkpoint", "planned")
    rows: list[tuple[object, ...]] = [
        (b.batch_id, _yes(b.committed), _yes(b.in_checkpoint), _time(b.planned_at)) for b in batches
    ]
    if len({b.query_id for b in batches}) == 1:
        return header, rows
    return ("query", *header), [(b.query_id[:8], *row) for b, row in zip(batches, rows, strict=True)]


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in header:
        table.add_column(column, justify="left" if column in ("source", "query", "planned") else "right")
    for row in rows:
        table.add_row(*map(str, row))
    Console(highlight=False).print("", table, sep="\n")


def _yes(value: bool | None) -> str:
    return "-" if value is None else "committed" if value else "no"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(" ", "seconds")
