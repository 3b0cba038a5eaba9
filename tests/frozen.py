"""A broker that stands still for a moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from onceflow.broker import EmbeddedBroker
from onceflow.verify.cluster.processes import freeze


@contextmanager
def frozen(broker: EmbeddedBroker) -> Iterator[None]:
    """It may be silent for seconds before its cluster goes on without it."""
    assert broker.pid is not None
    assert freeze(broker.pid)  # until all its threads stand still it may answer
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)
