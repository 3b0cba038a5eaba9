"""Exactly-once event processing: Kafka → Spark → Kafka, in Python.

The public names; everything else may change without notice, except ``onceflow.errors``, and what a store of one's own needs:
``onceflow.reader.stores.interface`` and ``onceflow.testing``. They load what they need when they are first used: ``import
onceflow`` alone loads neither Spark nor a Kafka client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceflow.broker import EmbeddedBroker
    from onceflow.errors import OnceflowError
    from onceflow.reader.reader import Reader
    from onceflow.session import spark_session
    from onceflow.transaction.committed import committed_offsets
    from onceflow.transaction.sink import KafkaSink
    from onceflow.writer.asynchronous import AsyncWriter
    from onceflow.writer.writer import Writer

__all__ = [
    "AsyncWriter",
    "EmbeddedBroker",
    "KafkaSink",
    "OnceflowError",
    "Reader",
    "Writer",
    "committed_offsets",
    "spark_session",
]
__version__ = "0.1.0"

_HOMES = {
    "AsyncWriter": "onceflow.writer.asynchronous",
    "EmbeddedBroker": "onceflow.broker",
    "KafkaSink": "onceflow.transaction.sink",
    "OnceflowError": "onceflow.errors",
    "Reader": "onceflow.reader.reader",
    "Writer": "onceflow.writer.writer",
    "committed_offsets": "onceflow.transaction.committed",
    "spark_session": "onceflow.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'onceflow' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
