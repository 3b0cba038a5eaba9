"""Whether a new checkpoint begins where the committed one ended. Pure."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.transaction.progress import Progress, SourceOffsets


def starts_elsewhere(
    progress: Progress | None, query_id: str, initial: Callable[[], SourceOffsets], committed: SourceOffsets
) -> list[str]:
    """Where a query's first offsets differ from those that another query committed; ``initial`` is asked only then."""
    if progress is None or progress.query_id in ("", query_id):
        return []
    first = initial()
    return [
        f"{topic}-{partition} starts at {first.get((topic, partition))}, committed is {offset}"
        for (topic, partition), offset in sorted(committed.items())
        if first.get((topic, partition)) != offset
    ]
