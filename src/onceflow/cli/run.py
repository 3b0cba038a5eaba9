"""``onceflow run``: a plan, until its data or the user ends it."""

from __future__ import annotations

import logging
import math
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceflow.cli.errors import out, shown_errors
from onceflow.cli.progress import told
from onceflow.cli.signals import end_in_order
from onceflow.errors import ConfigurationError

if TYPE_CHECKING:
    from onceflow.config import PlanFile
    from onceflow.pipeline import Event
    from onceflow.pipeline.events import BrokerReady, Finished, Note

# A query without data tells so every 10 s.
LEAST_STALL_TIMEOUT_S = 20.0
MOST_STANDBYS = 16


def run(
    plan: Annotated[Path, typer.Argument(help="The plan to run.")] = Path("pipeline.toml"),
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Begin a new checkpoint at the committed offsets, if the old one is lost.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin all over again, and write again what was written before.")
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Keep a second driver warm, which takes over when the first is lost.")
    ] = False,
    standbys: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_STANDBYS,
            help="Keep so many warm (each a JVM), for as many losses in a row. --standby is --standbys 1.",
        ),
    ] = None,
    stall_timeout: Annotated[
        str | None,
        typer.Option(help="With --standby: replace a driver that ends no trigger for so long, as in '10 minutes'."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event, for machines.")] = False,
    spark_log: Annotated[str, typer.Option(help="Level of Spark's own log: off, error, warn, info.")] = "off",
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Show every setting with its origin, and exit.")
    ] = False,
) -> None:
    """Run a pipeline. Ctrl-C or SIGTERM ends it after the running batch; a second one ends it at once."""
    with shown_errors(as_json=as_json):
        if resume and restart:
            raise ConfigurationError("--resume goes on from what is committed, --restart does not: choose one")
        standbys = standbys or int(standby)
        if stall_timeout is not None and not standbys:
            raise ConfigurationError("--stall-timeout needs a standby that takes over: add --standby")
        from onceflow.config import load

        file = load(plan, os.environ)
        if show_config:
            _show(file)
        else:
            from onceflow.pipeline import Mode

            mode = Mode.RESUME if resume else Mode.RESTART if restart else Mode.REFUSE
            run_plan = _with_standbys(file, standbys, stall_timeout) if standbys else _alone()
            _run(partial(run_plan, file, mode=mode, spark_log=spark_log), as_json=as_json)


def _show(file: PlanFile) -> None:
    from onceflow.config import show

    rows = show(file)
    width = min(max(len(f"{name} = {value}") for name, value, _ in rows), 90)
    for name, value, origin in rows:
        out(f"{f'{name} = {value}':<{width}}  # {origin}")


def _alone() -> Callable[..., Finished]:
    # PySpark warns of the pandas that it finds installed, which is not used here.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    # PySpark logs every analysis error with its stack; ours name the plan's line instead.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    from onceflow.pipeline import run as run_alone

    return run_alone


def _with_standbys(file: PlanFile, standbys: int, stall_timeout: str | None) -> Callable[..., Finished]:
    from onceflow.pipeline.supervisor import Limits, run_with_standby

    limits = Limits(stall_s=_stall_timeout_s(file, stall_timeout))
    return partial(run_with_standby, limits=limits, standbys=standbys)


def _stall_timeout_s(file: PlanFile, text: str | None) -> float:
    from onceflow.config import Duration

    if text is None:
        return math.inf
    try:
        chosen = Duration.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"--stall-timeout {error}") from None
    interval = file.plan.trigger.processing_time
    least_s = LEAST_STALL_TIMEOUT_S + (interval.ms / 1000 if interval else 0)
    if chosen.ms / 1000 < least_s:
        raise ConfigurationError(
            f"--stall-timeout: {chosen} is less than {least_s:.0f} seconds, after which a driver without data gives its sign",
            action="make it longer than that, and than the longest batch",
        )
    return chosen.ms / 1000


def _run(run_plan: Callable[..., Finished], *, as_json: bool) -> None:
    from onceflow.pipeline import Control

    control = Control()
    with told(as_json=as_json, terminal=sys.stdout.isatty()) as tell:
        seen = _Seen(tell)
        try:
            with end_in_order(control.stop, may_stop=lambda: seen.started):
                run_plan(tell=seen.tell, control=control)
        finally:
            if seen.broker is not None:
                tell(_goes_on(seen.broker))


def _goes_on(broker: BrokerReady) -> Note:
    from onceflow.pipeline.events import Note

    command = f"onceflow broker stop --directory {shlex.quote(broker.directory)}"
    return Note(f"the embedded broker goes on running at {broker.bootstrap_servers}; to stop it: {command}")


class _Seen:
    """Passes events on, and sees the broker and the query start."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self.started = False
        self.broker: BrokerReady | None = None  # the embedded broker, once it is ready

    def tell(self, event: Event) -> None:
        from onceflow.pipeline import Started
        from onceflow.pipeline.events import BrokerReady

        if isinstance(event, BrokerReady):
            self.broker = event
        self.started = self.started or isinstance(event, Started)
        self._tell(event)
