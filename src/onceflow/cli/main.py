"""``onceflow``: the commands and what they have in common. One file a command; slow imports wait for their use.

Exit codes: 0 done, or ended in order by Ctrl-C or SIGTERM; 1 an error; 2 a mistake in the plan or in the arguments; 130
and 143 (128 and the signal's number) interrupted before the start, or by force.
"""

from __future__ import annotations

from typing import Annotated

import typer

from onceflow import __version__
from onceflow.cli import broker, demo, ingest, init, outbox, read, run, status, verify

app = typer.Typer(
    name="onceflow",
    help="Exactly-once event processing: Kafka to Spark to Kafka.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables would show secrets.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("demo")(demo.demo)
app.command("ingest")(ingest.ingest)
app.command("init")(init.init)
app.command("status")(status.status)
app.command("read")(read.read)
app.command("verify")(verify.verify)
app.add_typer(broker.app, name="broker")
app.add_typer(outbox.app, name="outbox")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onceflow {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Exactly-once event processing: Kafka to Spark to Kafka."""
