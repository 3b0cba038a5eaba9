"""``onceflow init``: a plan to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from onceflow.cli.errors import out, shown_errors
from onceflow.errors import ConfigurationError


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("pipeline.toml"),
) -> None:
    """Write a commented example plan that runs as it is."""
    with shown_errors():
        text = resources.files("onceflow.cli").joinpath("pipeline.example.toml").read_text(encoding="utf-8")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ConfigurationError(
                f"{path} is there already and is left as it is", action="name another file, or move this one away"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    out(f"{path} written. Next: onceflow run {path}")
