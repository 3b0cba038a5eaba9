"""What every source gives: rows, and the position behind them, to be committed together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from onceflow.ingest.events import RowsToCome
from onceflow.ingest.terms import Terms


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Rows in the source's order (None: only the position moves) and what is known of the source once they are written (None
    forgets a position).

    ``size_bytes``: how much of the source they took, for the display.
    """

    rows: pa.RecordBatch | None
    positions: Mapping[str, str | None]
    size_bytes: int = 0


class Source(Protocol):
    """Where rows come from. ``restore``, then ``batches`` for each look: what is new since the last one."""

    @property
    def terms(self) -> Terms:
        """In what its positions count, and which options its rows depend on."""

    def restore(self, positions: Mapping[str, str]) -> None:
        """Goes on from the committed positions; refuses what is no longer the source that they belong to.

        May be called again: the last call counts.
        """

    def batches(self) -> Iterator[SourceBatch]:
        """All that is there now. Each batch counts as delivered when the next one is asked for."""

    def size_bytes(self) -> int | None:
        """How much there is to read now, if that is known."""

    def rows_to_come(self) -> RowsToCome | None:
        """The same in rows, where it is not known in bytes; for the display, so it neither fails nor takes long."""

    def check_end(self) -> None:
        """After the last look: raises SourceUnfinished where something had to be left."""

    def stop(self) -> None:
        """A look that waits waits no more, and ends. From any thread or a signal handler."""

    def close(self) -> None:
        """Closes files and connections."""
