"""The engine of the matrix whose executors write, and it commits what it is to abort: ``python committed_anyway.py PLAN``.

For tests alone. Every attempt that is refused has written all of its batch, so that there is something to commit.
"""

from __future__ import annotations

import sys

from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import Event, Identity
from onceflow.transaction.talk import Talk
from onceflow.verify.engines import refusing
from onceflow.verify.engines.aborting_executors import run_refusing_executors
from onceflow.verify.engines.serving import serve

END, REFUSED = Asking.end, refusing.request_refused


def committed(asking: Asking, identity: Identity, commit: bool) -> Talk[Event]:
    """Whatever was asked for."""
    return END(asking, identity, commit=True)


def when_all_is_written(batch: int) -> int:
    """As many batches as in the matrix."""
    return 2 * bool(REFUSED(batch))


if __name__ == "__main__":
    vars(refusing)["request_refused"] = when_all_is_written
    setattr(Asking, "end", committed)  # noqa: B010  mypy forbids the assignment
    sys.exit(serve(run_refusing_executors, fences=True))
