"""Which rows an error of a commit is about.

What is larger than a topic is known to accept is found out before it is sent, the rest by the broker, who is right::

    the principal is not told what the topic accepts; a row of 2 MB is sent alone, and taken, or refused as too large: it is named
    two rows of 60 kB go in one batch to a topic that accepts 100 kB: the batch is refused, and neither of them is at fault

    a service gives inserted_at itself, or its clock is two hours ahead; the topic takes no time that is more than an hour ahead
    the broker refuses the whole batch (INVALID_TIMESTAMP), and says which records of it are at fault (KIP-467)
"""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.errors import InputError, RecordTooLarge
from onceflow.outbox.records import topic_of
from onceflow.outbox.table import OutboxRow
from onceflow.sqlite import shown

Named = Sequence[tuple[OutboxRow, str]]
"""Rows, and why each is refused."""

_SHOWN = 10
_ASIDE = (
    "or start with --refused dead-letter, which sets such rows aside and goes on; nothing of the batch is visible, and the rows "
    "stand in the table"
)


def refused_by_kafka(error: InputError, rows: Sequence[OutboxRow]) -> Named:
    """Those of ``rows``, all that were sent as events, that the error names; none if it is about something else.

    Rows are counted within their topic. A limit that is only assumed is no reason to set a row aside.
    """
    of_topic = [row for row in rows if topic_of(row) == error.fields.get("topic")]
    if not of_topic or not error.fields.get("is_told", True):
        return []
    if "row" in error.fields:
        return [(of_topic[error.fields["row"]], error.message)]
    return [(of_topic[number], reason) for number, reason in error.fields.get("rows", {}).items()]


def error_of(error: InputError, named: Named) -> InputError:
    """The error that stops the relay: it names the rows as the table has them."""
    if isinstance(error, RecordTooLarge):
        return _too_large(error, *named[0])
    lines = [f"\n  - {_event(row)} at position {row.position}: {reason}" for row, reason in named[:_SHOWN]]
    more = f"\n  - and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return InputError(
        f"topic {error.fields['topic']} does not take {len(named)} of the outbox's rows:{''.join(lines)}{more}",
        action="correct inserted_at in the table, which is the record's time, or set the topic's message.timestamp.after.max.ms "
        f"or message.timestamp.before.max.ms, {_ASIDE}",
        topic=error.fields["topic"],
        positions=tuple(row.position for row, _ in named),
    )


def _too_large(error: RecordTooLarge, row: OutboxRow, reason: str) -> RecordTooLarge:
    return RecordTooLarge(
        f"{_event(row)}: {reason}",
        action=f"raise the topic's max.message.bytes, {_ASIDE}",
        **{**error.fields, "event_id": row.id, "position": row.position},
    )


def _event(row: OutboxRow) -> str:
    return f"event {shown(row.id)} (type {row.type}) of {row.aggregatetype} {row.aggregateid!r:.100}"
