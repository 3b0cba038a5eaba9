"""What stands for a ``DriverProcess`` that is never started again."""

from __future__ import annotations

from typing import Self


class LivesOnce:
    """What it counts of its only life is its course."""

    @property
    def course(self) -> Self:
        return self
