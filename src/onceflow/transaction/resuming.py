"""Whether a new checkpoint begins where the committed one ended. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from onceflow.transaction.progress import Progress, SourceOffsets


def starts_elsewhere(
    progress: Progress | None,
    query_id: str,
    initial: Callable[[], SourceOffsets],
    committed: SourceOffsets,
    newest: Collection[tuple[str, int]] = (),
) -> list[str]:
    """Where a query's first offsets differ from those that another query committed; ``initial`` is asked only then.

    It need not read what left the plan before, which the ``newest`` batch did not commit::

        a plan reads a, then (restarted) b; its group keeps the offsets of a
        resumed, b alone begins where it ended; a, should it be read again, begins where its output ended
    """
    if progress is None or progress.query_id in ("", query_id):
        return []
    first = initial()
    bound = {at for at in committed if not newest or at in newest or at in first}
    return [
        f"{topic}-{partition} starts at {first.get((topic, partition))}, committed is {committed[topic, partition]}"
        for topic, partition in sorted(bound)
        if first.get((topic, partition)) != committed[topic, partition]
    ]
