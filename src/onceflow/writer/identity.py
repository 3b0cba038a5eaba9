"""What names an event that is written: given by the caller or made of its position in the source, never of chance.

A process that dies and starts again sends its last events again. They must carry the ids that they had, or no reader could
tell the repetition from a new event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onceflow.errors import EventRefused
from onceflow.events import (
    ID_HEADER,
    SEQUENCE_HEADER,
    SOURCE_HEADER,
    SPECVERSION,
    SPECVERSION_HEADER,
    TYPE_HEADER,
    EventIdentity,
)

Position = Sequence[str | int]
"""Where an event comes from: ``(topic, partition, offset)``, ``(file, line)``; one more part where one input makes many."""

Headers = Iterable[tuple[str, str | bytes | None]]
WireHeaders = list[tuple[str, str | bytes | None]]

OWN_HEADERS = frozenset({ID_HEADER, SOURCE_HEADER, SPECVERSION_HEADER, TYPE_HEADER, SEQUENCE_HEADER})
_VERSION = (SPECVERSION_HEADER, SPECVERSION.encode())


def id_of(position: Position) -> str:
    """The id of the event at ``position``: its parts joined with colons, so ``orders:3:1042``. Different parts, different id."""
    return ":".join(str(part).replace("%", "%25").replace(":", "%3A") for part in position)


def identify(
    source: str,
    id: str | None,  # noqa: A002  CloudEvents' name
    position: Position | None,
    type: str,  # noqa: A002  CloudEvents' name
    sequence: int | None,
    *,
    is_placed: bool,
) -> EventIdentity:
    """The identity of one event; ``is_placed`` by a key or a partition. Raises EventRefused with every mistake."""
    mistakes = []
    if (id is None) == (position is None):
        mistakes.append("give either id or position: what names the event, the same whenever it is sent again")
    elif not (id if position is None else position):
        mistakes.append("the id or position is empty")
    if not source:
        mistakes.append("the source is empty: give it to the writer or to send")
    if sequence is not None and sequence < 0:
        mistakes.append(f"the sequence is {sequence}, and must be 0 or more")
    if sequence is not None and not is_placed:
        # Without one, an event that is sent again may come to a partition where a higher number stands already, and be
        # taken for one that was handled.
        mistakes.append("a sequence needs a key or a partition: it must rise in each partition")
    if mistakes:
        raise EventRefused("; ".join(mistakes), action="correct the call of send", mistakes=tuple(mistakes))
    return EventIdentity(source, id_of(position) if position is not None else str(id), type, sequence)


def plain(source: str, id: str) -> WireHeaders:  # noqa: A002
    """The headers of an event with nothing but source and id; what ``EventIdentity.headers`` gives, without its cost."""
    return [_VERSION, (ID_HEADER, id), (SOURCE_HEADER, source)]


def checked(headers: Headers) -> WireHeaders:
    """The caller's own headers. Raises EventRefused if they would name the event a second time."""
    given = list(headers)
    taken = sorted({name for name, _ in given} & OWN_HEADERS)
    if taken:
        raise EventRefused(
            f"the writer sets {', '.join(taken)} itself",
            action="give id, source, type and sequence to send instead",
            headers=tuple(taken),
        )
    return given
