"""What a name stands for: in what its positions count, and where its rows go. Committed with the positions.

::

    a.csv is read with commas up to byte 5000; the next start says ``--delimiter ;``, ``--quoting none`` or ``--format jsonl``
    from 5000 on records would end at other places and be numbered otherwise: refused

    rows went to the topic sales; the next start says ``--topic sale``, or forgets ``--key``
    a part of them would lie somewhere else, or without a key: refused, unless the user says ``from_now_on``

    a start names a topic that does not exist, or is killed before its first rows are committed
    nothing was sent, so nothing is noted: the note is part of the transaction of the first rows

    two start at the same time with different topics
    the note is read after the other one was fenced: it is there together with the other's rows, or neither ever will be

    positions of a version that noted nothing
    taken over; only what they tell by themselves, files or a table, is compared
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from onceflow.errors import ConfigurationError

NOTE = "terms"
"""The note's key among the positions; those of files begin with ``file:``, those of tables with ``table:``."""

_MOVABLE = {"topic", "key", "columns"}
"""What no position counts in: it may be another one from a row on."""

Terms = Mapping[str, str | None]
"""By the name of the option."""


def without_note(positions: Mapping[str, str]) -> dict[str, str]:
    """The positions of the source alone."""
    return {key: text for key, text in positions.items() if key != NOTE}


def to_note(name: str, terms: Terms, positions: Mapping[str, str], *, from_now_on: bool = False) -> dict[str, str]:
    """What is to be committed with the next rows: nothing if it stands there. Raises ConfigurationError for other terms.

    Terms that one of the two does not know are not compared, so that a later version may note more.
    """
    noted = _noted(positions)
    changed = [term for term in terms if term in noted and noted[term] != terms[term]]
    movable = _MOVABLE.issuperset(changed)
    if changed and not (movable and from_now_on):
        raise _other(name, [_line(term, noted[term], terms[term]) for term in changed], movable=movable)
    text = json.dumps(dict(terms), sort_keys=True, separators=(",", ":"))
    return {} if positions.get(NOTE) == text else {NOTE: text}


def _noted(positions: Mapping[str, str]) -> Terms:
    if NOTE in positions:
        found: Terms = json.loads(positions[NOTE])
        return found
    if not positions:
        return {}
    return {"source": "table" if any(key.startswith("table:") for key in positions) else "files"}


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
