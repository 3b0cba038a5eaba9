"""Where in a TOML text each setting stands: ``tomllib`` gives no positions, and an error should name the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field

Path = tuple[str | int, ...]

_PIECE = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[\]{}=\n]"
    r"|[^\[\]{}=\n\"'#]+",
    re.DOTALL,
)


def text_of(path: Path) -> str:
    """The path as people write it: ``sink[0].headers.trace``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


@dataclass(slots=True)
class Lines:
    """Line numbers (from 1) of the settings of one TOML text."""

    known: dict[str, int] = field(default_factory=dict)

    def of(self, path: Path) -> int | None:
        """The line of a setting, else of the nearest table around it."""
        for length in range(len(path), 0, -1):
            line = self.known.get(text_of(path[:length]))
            if line is not None:
                return line
        return None


def find_lines(text: str) -> Lines:
    """The lines of all settings of a TOML text that ``tomllib`` accepts."""
    lines = Lines()
    counts: dict[str, int] = {}
    table: Path = ()
    for number, statement in _statements(text):
        if statement.startswith("["):
            table = _header(statement, counts)
            lines.known.setdefault(text_of(table), number)
        else:
            path = (*table, *_names(statement))
            for length in range(len(table) + 1, len(path) + 1):
                lines.known.setdefault(text_of(path[:length]), number)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each table header as it stands, and the key of each assignment; with the line where it begins."""
    line, start, depth, head, in_value = 1, 1, 0, "", False
    for match in _PIECE.finditer(text.replace("\r\n", "\n") + "\n"):
        piece = match[0]
        if piece == "\n" and depth == 0:
            if head.startswith("["):
                yield start, head
            head, in_value = "", False
        elif in_value:
            depth += (piece in "[{") - (piece in "]}")
        elif piece == "=":
            yield start, head
            head, in_value = "", True
        elif not piece.startswith("#"):
            start = start if head else line
            head = (head + piece).lstrip()
        line += piece.count("\n")


def _header(statement: str, counts: dict[str, int]) -> Path:
    """The path that a table header opens; counts the elements of arrays of tables."""
    is_array = statement.startswith("[[")
    names = _names(statement.strip().strip("[]"))
    path: Path = ()
    for name in names[:-1]:
        path = _into(path, name, counts)
    last = text_of((*path, names[-1]))
    if is_array:
        counts[last] = counts.get(last, -1) + 1
    return _into(path, names[-1], counts)


def _into(path: Path, name: str, counts: dict[str, int]) -> Path:
    inner = (*path, name)
    index = counts.get(text_of(inner))
    return inner if index is None else (*inner, index)


def _names(key: str) -> tuple[str, ...]:
    """The parts of a dotted, perhaps quoted key."""
    found: list[str] = []
    level: object = tomllib.loads(f"{key} = 0")
    while isinstance(level, dict):
        ((name, level),) = level.items()
        found.append(name)
    return tuple(found)
