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
    SEQUENCES_END,
    SOURCE_HEADER,
    SPECVERSION,
    SPECVERSION_HEADER,
    TYPE_HEADER,
    EventIdentity,
)
from onceflow.kafka.names import NUL
from onceflow.writer.misuse import NOT_PAIRS, kind, not_utf8

Position = Sequence[str | int]
"""Where an event comes from: ``(topic, partition, offset)``, ``(file, line)``; one more part where one input makes many."""

Headers = Iterable[tuple[str, str | bytes | None]]
WireHeaders = list[tuple[str, str | bytes | None]]

OWN_HEADERS = frozenset({ID_HEADER, SOURCE_HEADER, SPECVERSION_HEADER, TYPE_HEADER, SEQUENCE_HEADER})
_PARTS = frozenset({str, int})
_VERSION = (SPECVERSION_HEADER, SPECVERSION.encode())


def id_of(position: Position) -> str:
    """The id of the event at ``position``: its parts joined with colons, so ``orders:3:1042``. Other texts, another id."""
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
    if _is_suspect(id, position, sequence):
        check_kinds(
            source, id, position, type, sequence
        )  # what would make a name all the same, and not the one that is meant
    mistakes = []
    if id is None and position is None:
        mistakes.append("give either id or position: what names the event, the same whenever it is sent again")
    elif id is not None and position is not None:
        mistakes.append("id and position are both given: keep one of them, the other would be a second name")
    elif not (id if position is None else id_of(position)):
        mistakes.append("the id or position is empty")
    if not source:
        mistakes.append("the source is empty: give it to the writer or to send")
    if sequence is not None and not 0 <= sequence < SEQUENCES_END:
        mistakes.append(f"the sequence is {sequence}, and must be from 0 to 2^63 - 1: readers take no other for one")
    if sequence is not None and not is_placed:
        # Without one, an event that is sent again may come to a partition where a higher number stands already, and be
        # taken for one that was handled.
        mistakes.append("a sequence needs a key or a partition: it must rise in each partition")
    if mistakes:
        raise _refusal(mistakes)
    return EventIdentity(source, id_of(position) if position is not None else str(id), type, sequence)


def _is_suspect(id: object, position: object, sequence: object) -> bool:  # noqa: A002
    return not (
        (position is None or (type(position) is tuple and _PARTS.issuperset(map(type, position))))
        and (type(id) is str or id is None)
        and (sequence is None or type(sequence) is int)  # True is an int as well
    )


def check_kinds(source: object, id: object, position: object, type: object, sequence: object) -> None:  # noqa: A002
    """Raises EventRefused for every argument that is of the wrong kind; for a call that is suspect, or has failed."""
    texts = [(name, text) for name, text in (("id", id), ("source", source), ("type", type)) if text is not None]
    mistakes = [f"{name} must be a text, not {kind(text)}" for name, text in texts if not isinstance(text, str)]
    mistakes += [problem for name, text in texts if isinstance(text, str) and (problem := not_utf8(name, text))]
    if isinstance(position, str | bytes | bytearray):
        # A text is a sequence as well, of its letters: "orders:3" would become o:r:d:e:r:s:%3A:3.
        mistakes.append(f"a position is a sequence of parts, as ('orders', 3, 1042), not {position!r}; a text is an id")
    elif position is not None and not isinstance(position, Sequence):
        # The parts of a set come in another order in the next process, and the event would have another id.
        mistakes.append(f"a position is a sequence of parts, as ('orders', 3, 1042), not {kind(position)}")
    elif position is not None and (odd := [part for part in position if not _is_part(part)]):
        # None would give every event without a number the same id, and an address in memory another one at each start.
        mistakes.append(
            f"a position's parts are texts and whole numbers, not {', '.join(sorted({kind(part) for part in odd}))}"
        )
    if sequence is not None and not _is_whole(sequence):
        mistakes.append(f"sequence must be a whole number, not {kind(sequence)}")
    if mistakes:
        raise _refusal(mistakes, f"{source} {id if position is None else position}")


def _is_part(part: object) -> bool:
    return isinstance(part, str) or _is_whole(part)


def _is_whole(number: object) -> bool:
    return hasattr(number, "__index__") and not isinstance(number, bool)


def _refusal(mistakes: Sequence[str], event: str = "") -> EventRefused:
    said = f"event {event!r}: " if event else ""
    return EventRefused(said + "; ".join(mistakes), action="correct the call of send", mistakes=tuple(mistakes))


def is_placed(key: object, partition: object) -> bool:
    """Whether an event's partition is decided by more than chance."""
    return key is not None or (isinstance(partition, int) and partition >= 0)


def plain(source: str, id: str) -> WireHeaders:  # noqa: A002
    """The headers of an event with nothing but source and id; what ``EventIdentity.headers`` gives, without its cost."""
    return [_VERSION, (ID_HEADER, id), (SOURCE_HEADER, source)]


def checked(headers: Headers, event: EventIdentity | None = None) -> WireHeaders:
    """The caller's own headers of ``event``. Raises EventRefused if they would name the event a second time."""
    try:
        given = list(headers)
        names = {name for name, _ in given}
        taken, cut = sorted(names & OWN_HEADERS), sorted(name for name in names if NUL in name)
    except (TypeError, ValueError) as error:
        raise _refusal([NOT_PAIRS], f"{event.source} {event.id}" if event else "") from error
    if cut:  # ``ce_id\0x`` would be a second ``ce_id``, and readers would take its value for the event's id
        raise _refusal(
            [f"headers: a name must have no NUL, where librdkafka cuts it off: {', '.join(map(repr, cut))}"],
            f"{event.source} {event.id}" if event else "",
        )
    if taken:
        raise EventRefused(
            f"the writer sets {', '.join(taken)} itself",
            action="give id, source, type and sequence to send instead",
            headers=tuple(taken),
        )
    return given
