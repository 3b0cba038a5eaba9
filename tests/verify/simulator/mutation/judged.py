"""What the last judgement of each mutated file has shown, and of which source: ``judged.toml``, written by ``--record``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

JUDGED = Path(__file__).with_name("judged.toml")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one file: its ``source`` as a digest, how many mutants it has, and how many are ``equivalent`` and ``killed``."""

    source: str
    mutants: int
    equivalent: int
    killed: int


def recorded() -> dict[str, Figures]:
    """By the name of the file."""
    if not JUDGED.exists():
        return {}
    return {file: Figures(**entry) for file, entry in tomllib.loads(JUDGED.read_text()).items()}


def write(figures: Mapping[str, Figures]) -> None:
    """Replaces what is recorded."""
    tables = [f'["{file}"]\n' + "".join(map(_line, asdict(each).items())) for file, each in sorted(figures.items())]
    JUDGED.write_text("\n".join(tables))


def _line(item: tuple[str, str | int]) -> str:
    name, value = item
    return f'{name} = "{value}"\n' if isinstance(value, str) else f"{name} = {value}\n"
