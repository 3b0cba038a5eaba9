"""What a name stands for: in what its positions count, and where its rows go. Committed with the positions.

::

    a.csv is read with commas up to byte 5000; the next start says ``--delimiter ;``, ``--quoting none`` or ``--format jsonl``
    from 5000 on records would end at other places and be numbered otherwise: refused

    rows went to the topic sales; the next start says ``--topic sale``, or forgets ``--key``
    a part of them would lie somewhere else, or without a key: refused, unless the user says ``from_now_on``

    a start names a topic that does not exist, or is killed before its first rows are committed
    nothing was sent, so nothing is noted: the note is part of the transaction of the first rows

    a start finds blank lines alone, and notes nothing, as it has sent nothing; but it commits that it has read them
    the next start reads them as CSV, in which a line of spaces is a row, and begins behind them: so positions before the first
    row wait for it as well, and until then nothing stands under the name

    two start at the same time with different topics
    the note is read after the other one was fenced: it is there together with the other's rows, or neither ever will be

    an ingest runs; a start under its name, by mistake, says ``--topic sale``
    refused, it must not have stopped the one that runs: the note is read before the fence as well, which may only refuse. So are
    the positions, for a start that names another table

    a later version notes ``--escape``, in which its positions count; the version before it is started again
    it would count otherwise, and cannot know: refused. Where the option was not given (null), it is kept in the note

    positions of a version that noted nothing
    taken over; only what they tell by themselves, files or a table, is compared
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from onceflow.errors import ConfigurationError

NOTE = "terms"
"""The note's key among the positions; those of files begin with ``file:``, those of tables with ``table:``."""

FOUND = "found:"
"""Begins the keys of what was found, and has no row that is committed (``watched.py``). It counts nothing, and binds nobody."""

_MOVABLE = {"topic", "key", "columns"}
"""What no position counts in: it may be another one from a row on."""

Terms = Mapping[str, str | None]
"""By the name of the option."""


def without_note(positions: Mapping[str, str]) -> dict[str, str]:
    """The positions of the source alone."""
    return {key: text for key, text in positions.items() if key != NOTE}


def is_begun(positions: Iterable[str]) -> bool:
    """Whether a position is among them that rows are behind."""
    return any(not key.startswith(FOUND) for key in positions)


def to_note(name: str, terms: Terms, positions: Mapping[str, str], *, from_now_on: bool = False) -> dict[str, str]:
    """What is to be committed with the next rows: nothing if it stands there. Raises ConfigurationError for other terms.

    Terms that the note does not know are not compared: a later version notes more than the one that wrote it.
    """
    noted = _noted(positions)
    changed = [term for term in terms if term in noted and noted[term] != terms[term]]
    movable = _MOVABLE.issuperset(changed)
    if changed and not (movable and from_now_on):
        raise _other(name, [_line(term, noted[term], terms[term]) for term in changed], movable=movable)
    unknown = {term: value for term, value in noted.items() if term not in terms}
    if any(value is not None for value in unknown.values()):
        raise _unknown(name, unknown)
    text = json.dumps({**unknown, **terms}, sort_keys=True, separators=(",", ":"))
    return {} if positions.get(NOTE) == text else {NOTE: text}


def _noted(positions: Mapping[str, str]) -> Terms:
    if NOTE in positions:
        found: Terms = json.loads(positions[NOTE])
        return found
    if not is_begun(positions):
        return {}
    return {"source": "table" if any(key.startswith("table:") for key in positions) else "files"}


def _unknown(name: str, terms: Terms) -> ConfigurationError:
    lines = [f"{term}: {_shown(value)}" for term, value in terms.items() if value is not None]
    return ConfigurationError(
        f"ingest {name!r} was begun by a later version, with options that this one does not know:"
        + "".join(f"\n  - {line}" for line in lines),
        action="start it with that version or a later one, or choose another name, under which everything is sent again",
        name=name,
        mistakes=tuple(lines),
    )


def _line(term: str, before: str | None, now: str | None) -> str:
    return f"{term}: {_shown(before)} until now, {_shown(now)} is given"


def _shown(value: str | None) -> str:
    return "none" if value is None else repr(value)


def _other(name: str, lines: list[str], *, movable: bool) -> ConfigurationError:
    flag = "; if all rows from here on are meant to be so, add --from-now-on" if movable else ""
    return ConfigurationError(
        f"ingest {name!r} was begun with other options, and goes on behind the rows that it has sent with them:"
        + "".join(f"\n  - {line}" for line in lines),
        action=f"give the same options as before, or choose another name, under which everything is sent again{flag}",
        name=name,
        mistakes=tuple(lines),
    )
