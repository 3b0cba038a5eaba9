"""When something that failed is tried again."""

from __future__ import annotations

from dataclasses import dataclass

_DOUBLINGS = 30  # beyond, the longest pause is reached whatever the first was


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from the first to the longest."""

    first_s: float = 0.1
    longest_s: float = 30.0

    def pause_s(self, attempts: int) -> float:
        """How long to wait after so many failed attempts (1 and up)."""
        return min(self.first_s * 2.0 ** min(attempts - 1, _DOUBLINGS), self.longest_s)
