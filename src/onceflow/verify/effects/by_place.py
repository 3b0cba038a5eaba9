"""The SQLite store, with an event's place for its identity.

A plan may pass the headers of its input on, and with them an id that several records of the output share::

    input     one payment, id 7
    output    a copy and an entry of a journal, both with the headers of the payment: id 7
    reader    takes the second one for a repetition of the first, as it should; and its effect would be called missing

What is judged is one effect for each record that stands in the output. All else is the store's: the transaction, the positions,
and the fence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from onceflow.reader.event import entry_at, position_source
from onceflow.reader.stores.interface import EventKey, Ownership, Standing, Unit
from onceflow.reader.stores.sqlite import SqliteStore


class ByPlace(SqliteStore):
    """Whatever id a record carries, what identifies it is topic, partition and offset."""

    @contextmanager
    def unit(self) -> Iterator[Any]:
        with super().unit() as unit:
            yield _Unit(unit)


class _Unit:
    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    @property
    def handle(self) -> Any:
        return self._unit.handle

    def admit(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
        source = position_source(ownership.topic, ownership.partition)
        return self._unit.admit(ownership, [entry_at(key.offset, source) for key in keys])

    def savepoint(self) -> AbstractContextManager[None]:
        return self._unit.savepoint()
