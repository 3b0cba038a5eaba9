"""A driver that another process has started reports where a verification waits for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from onceflow.verify.engines.conversation import Conversation


def abstract(name: str) -> str:
    """The address of a socket that has no file: no path that is too long, and nothing that is left behind. Linux."""
    return f"\0{name}"


@contextmanager
def reporting_at(name: str) -> Iterator[Conversation]:
    """The conversation of this process. When its other end is gone it ends its process group, as every engine does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(abstract(name))
        yield Conversation(connection.fileno(), connection.fileno())
