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

    Offsets without progress (it is gone, or the name was used under at least once) bind as well, as far as they are read; also
    where not even the claim is there, which may be on its way (``Questions.committed``)::

        at least once has committed offsets; a query begins anew to resume exactly once, and its user forgets startingOffsets
        its claim is committed, the marker is not written yet: the broker gives the offsets, and says nothing of the record
        taken for a name under which nothing was committed, all would be written a second time

    So does progress without offsets, for ``initial`` refuses a query whose beginning cannot be compared::

        a query of files is committed, which has no offsets that could be; its checkpoint is lost
        resumed it begins at its first file: all would be written a second time

    It need not read what left the plan before, which the ``newest`` batch did not commit::

        a plan reads a, then (restarted) b; its group keeps the offsets of a
        resumed, b alone begins where it ended; a, should it be read again, begins where its output ended
    """
    last = progress.query_id if progress else ""
    if last == query_id or not (last or committed):
        return []
    first = initial()
    read = {at for at in committed if at in newest or at in first}
    tells_which = bool(newest) or not last  # else an older onceflow has committed it
    bound: Collection[tuple[str, int]] = read if tells_which and read else committed
    return [
        f"{topic}-{partition} starts at {first.get((topic, partition))}, committed is {committed[topic, partition]}"
        for topic, partition in sorted(bound)
        if first.get((topic, partition)) != committed[topic, partition]
    ]
