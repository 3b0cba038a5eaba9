"""kafka-python's event loop, which closes the sockets that it is left with.

What it survives::

    a request waits to be written: the broker reads no more, or the loop has not come to it yet
    the client is closed; kafka-python's transport waits for the write before it closes its socket
    the loop ends, and cancels the write: nobody closes the socket (3.0.12: ``KafkaTCPTransport.close``)
    the broker sees an open connection until a collection of the garbage, and whoever makes an error of a ResourceWarning has one
    in the middle of something else
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from onceflow.kafka_python import NetworkSelector


class Loop(NetworkSelector):  # type: ignore[misc]
    """An event loop, and the sockets of the connections that run on it."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self._sockets: list[socket.socket] = []
        self._pid = os.getpid()
        self._closing = threading.Lock()

    def call_soon_threadsafe(self, callback: Any) -> Any:
        """As kafka-python's; a RuntimeError in a process that was forked since: its I/O thread is the other one's."""
        if os.getpid() != self._pid:
            raise RuntimeError("a client of Kafka does not work in a process that was forked from the one that made it")
        return super().call_soon_threadsafe(callback)

    def owns(self, connection: socket.socket) -> None:
        """It is closed with the loop, if nobody has closed it before. Runs on the loop."""
        self._sockets = [each for each in self._sockets if each.fileno() >= 0]
        self._sockets.append(connection)

    def close(self) -> None:
        """End the I/O thread and what still runs on it. In a forked process nothing: all of it is the other one's."""
        if os.getpid() != self._pid:
            return
        with self._closing:  # who comes second waits until the I/O thread has ended
            try:
                super().close()
            finally:
                for each in self._sockets:
                    each.close()
