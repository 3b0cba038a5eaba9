"""What ``onceflow ingest`` was asked for, and every mistake in it: also options that would have no effect."""

from __future__ import annotations

import glob
import math
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onceflow.errors import ConfigurationError

_SUFFIXES = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_FORMATS = {"csv": "CSV", "jsonl": "JSON Lines", "parquet": "Parquet"}
_TABLE = {"table": "a table"}
_DATABASES = ("postgresql://", "sqlite:///")


@dataclass(frozen=True, slots=True)
class Arguments:
    """As it was typed; None or False is what was not given."""

    files: list[str]
    format: str | None
    delimiter: str | None
    quoting: str | None
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
    bootstrap_servers: str | None
    kafka: list[str]
    partitions: int | None

    @property
    def formats(self) -> set[str]:
        """The one that was given, or those that the names tell."""
        if self.format is not None:
            return {self.format}
        return {_SUFFIXES[suffix] for name in self.files if (suffix := _suffix(name))}

    @property
    def directories(self) -> list[str]:
        """What was given as a file and is none. A pattern may well find directories too: they are passed over."""
        return [name for name in self.files if not glob.has_magic(name) and os.path.isdir(name)]  # noqa: PTH112  raises nothing

    @property
    def delimiters(self) -> set[str]:
        """The one that was given, or those that the names tell."""
        if self.delimiter is not None:
            return {self.delimiter}
        return {"\t" if _suffix(name) == ".tsv" else "," for name in self.files}


def _suffix_of(form: str | None) -> str:
    """An example of one, of files of a format."""
    return next((suffix for suffix, of in _SUFFIXES.items() if of == form), ".csv")


def _suffix(name: str) -> str:
    """The last that tells a format, in a name or a pattern: ``a.csv.gz``, ``app.jsonl.1``, ``app.jsonl-2026*``."""
    plain = (re.sub(r"(-[0-9-]*)?([*?[].*)?$", "", suffix) for suffix in reversed(Path(name).suffixes))
    return next((suffix for suffix in plain if suffix in _SUFFIXES), "")


def check(name: str, given: Arguments) -> None:
    """Raises ConfigurationError with every mistake."""
    mistakes = [*_name_mistakes(name), *_cluster_mistakes(given), *_source_mistakes(given), *_unused(given)]
    if mistakes:
        raise ConfigurationError.of("the arguments", mistakes)


def _name_mistakes(name: str) -> Iterator[str]:
    from onceflow.ingest.positions import check_name

    try:
        check_name("ingest", name)
    except ConfigurationError as error:
        yield f"{error.message}: {error.action}"


def _cluster_mistakes(given: Arguments) -> Iterator[str]:
    for text in given.kafka:
        if "=" not in text:
            yield f"--kafka {text} is not key=value"
    if given.bootstrap_servers is not None and given.partitions is not None:
        yield "--partitions has no effect with --bootstrap-servers: a topic is made on the embedded broker only"


def _source_mistakes(given: Arguments) -> Iterator[str]:
    if bool(given.files) == bool(given.table):
        yield "give either --file or --table"
    if given.changed not in ("refuse", "new", "same"):
        yield f"--changed {given.changed} is neither refuse nor new, nor same"
    if given.changed == "same" and not given.table:
        yield "--changed same is for tables: a file is known by its content"
    if given.table:
        yield from _table_mistakes(given)
    else:
        yield from _file_mistakes(given)


def _table_mistakes(given: Arguments) -> Iterator[str]:
    wanted = {"--from": given.database, "--rising": given.rising}
    for option, value in wanted.items():
        if not value:
            yield f"--table needs {option}"
    if given.tiebreak and given.tiebreak == given.rising:
        yield "--tiebreak is the column of --rising; a unique column needs none"
    if given.delay is not None and not given.tiebreak:
        yield "--delay is for --tiebreak only"
    if given.delay is not None and not math.isfinite(given.delay):
        yield f"--delay {given.delay} is no number of seconds"
    if given.database and not given.database.startswith(_DATABASES):
        yield "--from is neither postgresql://… nor sqlite:///path (four slashes for an absolute path)"
    if given.trust_order and given.tiebreak and (given.database or "").startswith("sqlite"):
        yield "--trust-order has no effect with --tiebreak on SQLite: --delay says what is trusted"


def _file_mistakes(given: Arguments) -> Iterator[str]:
    from onceflow.ingest.csv_rows import name_mistakes

    if given.format is not None and given.format not in _FORMATS:
        yield f"--format {given.format} is none of {', '.join(_FORMATS)}"
    elif given.files and len(given.formats) != 1 and not given.directories:
        yield "--format is needed: the file names do not tell one"
    if given.delimiter is not None and not _is_delimiter(given.delimiter):
        yield f"--delimiter {given.delimiter!r} is not a single ASCII character"
    if len(given.delimiters) > 1 and given.formats == {"csv"}:
        yield "--delimiter is needed: .tsv means tabs, and not all of the file names end so; or give them names of their own"
    if given.quoting not in (None, "csv", "none"):
        yield f"--quoting {given.quoting} is neither csv nor none"
    for name in given.directories:
        pattern = shlex.quote(str(Path(name, f"*{_suffix_of(given.format)}")))
        yield f"--file {name} is a directory: give a pattern for the files in it, in quotes, as --file {pattern}"
    for mistake in name_mistakes(given.columns.split(",")) if given.columns is not None else ():
        yield f"--columns: {mistake}"
    if given.finished and given.follow:
        yield "--finished says that nothing is added, --follow waits for more: choose one"


def _is_delimiter(text: str) -> bool:
    return len(text) == 1 and text not in '"\r\n' and ord(text) < 128


# ----------------------------------------------------------------------------------------------- options without an effect


def _unused(given: Arguments) -> Iterator[str]:
    """Who gives an option expects something of it; none is passed over in silence."""
    read = _read(given)
    for option, value in _given(given).items():
        users = _USERS[option]
        if value and read and not read.keys() & users.keys():
            yield f"{option} is for {_listed(users)}, and has no effect on {_listed(read)}"


_TEXT = {kind: _FORMATS[kind] for kind in ("csv", "jsonl")}
_CSV = {"csv": _FORMATS["csv"]}
_USERS = {
    **dict.fromkeys(("--delimiter", "--quoting", "--columns"), _CSV),
    **dict.fromkeys(("--finished",), _TEXT),
    **dict.fromkeys(("--format",), _FORMATS),
    **dict.fromkeys(("--from", "--rising", "--tiebreak", "--delay", "--trust-order"), _TABLE),
}
"""By option: what it means something for."""


def _given(given: Arguments) -> dict[str, bool]:
    return {
        "--delimiter": given.delimiter is not None,
        "--quoting": given.quoting is not None,
        "--columns": given.columns is not None,
        "--finished": given.finished,
        "--format": given.format is not None,
        "--from": given.database is not None,
        "--rising": given.rising is not None,
        "--tiebreak": given.tiebreak is not None,
        "--delay": given.delay is not None,
        "--trust-order": given.trust_order,
    }


def _read(given: Arguments) -> dict[str, str]:
    """What is to be read, as far as it is known: several kinds where the format is not."""
    formats = {kind: _FORMATS[kind] for kind in sorted(given.formats & _FORMATS.keys())} or _FORMATS
    return {**(formats if given.files else {}), **(_TABLE if given.table else {})}


def _listed(kinds: dict[str, str]) -> str:
    return " or ".join(kinds.values())
