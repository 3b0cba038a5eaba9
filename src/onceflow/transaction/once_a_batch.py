"""A name takes one frame of each micro-batch: what comes behind it in the same batch would be taken for a repetition.

What it survives::

    def both(frame, batch_id):
        sink(frame.where("paid"), batch_id)      is committed: the progress says so
        sink(frame.where("not paid"), batch_id)  the progress says that this batch is committed: skipped, its rows are lost

    the same with two sinks of one name; or in the next run, after a crash between the two

A legitimate repetition comes in another run of the query: Spark starts it anew, with another run id.
"""

from __future__ import annotations

from onceflow.errors import UnsafeSession

_done: dict[tuple[str, str], tuple[str, int]] = {}
"""Of each (cluster, name), for all sinks of this process: the run and the batch that it has committed, or found so, last."""


def check_first(cluster: str, name: str, run_id: str, batch_id: int) -> None:
    """Raises UnsafeSession for a batch that was done in this run."""
    if _done.get((cluster, name)) == (run_id, batch_id):
        raise UnsafeSession(
            f"pipeline {name!r}: batch {batch_id} was committed a moment ago, in this run of the query, under this very name; "
            "a second frame of it is not written",
            action="write one frame a batch: unite the frames (unionByName; the column topic says where each row goes), or give "
            "the second sink a name of its own. What was to be written here is missing from every batch that is committed",
            name=name,
            batch_id=batch_id,
        )


def note_done(cluster: str, name: str, run_id: str, batch_id: int) -> None:
    """The batch is committed, or was before."""
    _done[cluster, name] = (run_id, batch_id)
