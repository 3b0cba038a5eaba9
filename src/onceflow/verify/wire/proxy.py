"""The wire before one broker: it listens, connects through, and forwards frame by frame under the rules."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from typing import BinaryIO, Self

from onceflow.broker.settings import HOST
from onceflow.verify.wire.link import Link
from onceflow.verify.wire.rules import Head, Rules

_MOST_LINKS = 512
_JOIN_S = 10.0


class Wire:
    """Listens on ``port`` (0: any) until closed; a context manager.

    ``target`` is the broker's (host, port), which may be set later; None: each client names it by HTTP CONNECT
    (kafka-python's ``proxy_url`` is ``url``), so that a broker that knows nothing of the wire can be used. ``rules`` may
    be shared by several wires, ``node`` says which one this is. ``seen`` counts the requests per API key. Two threads for
    each connection, and more than 512 connections at a time are refused.
    """

    def __init__(
        self, target: tuple[str, int] | None = None, rules: Rules | None = None, *, node: int = 0, port: int = 0
    ) -> None:
        self.target = target
        self.rules = rules or Rules()
        self.node = node
        self.seen: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._links: dict[Link, threading.Thread] = {}
        self._listener = socket.create_server((HOST, port), backlog=_MOST_LINKS)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="wire-accept", daemon=True)
        self._acceptor.start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """For clients that can CONNECT."""
        return f"http://{self.address}"

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._links)

    def cut(self, *, reset: bool = False) -> int:
        """End all connections that there are now, and give their number."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close(reset=reset)
        return len(links)

    def close(self) -> None:
        """Listen no more and end all connections; what rules hold is let go."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(_JOIN_S)
        with self._lock:
            threads = list(self._links.values())
        self.cut()
        for thread in threads:
            thread.join(_JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if len(self._links) >= _MOST_LINKS:
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client,), name="wire-requests", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        stream = client.makefile("rb")
        try:
            broker = self._connected(client, stream)
        except (OSError, ValueError, IndexError):  # the broker is down: so the client sees it, too
            stream.close()
            client.close()
            return
        for each in (client, broker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, stream, broker, self.rules, self.node)
        with self._lock:
            self._links[link] = threading.current_thread()
        try:
            link.run(self._count)
        finally:
            with self._lock:
                del self._links[link]

    def _connected(self, client: socket.socket, stream: BinaryIO) -> socket.socket:
        if self.target is not None:
            return socket.create_connection(self.target)
        broker = socket.create_connection(_asked_for(stream))
        try:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        except OSError:  # it has gone meanwhile
            broker.close()
            raise
        return broker

    def _count(self, head: Head) -> None:
        with self._lock:
            self.seen[head.api] += 1


def _asked_for(stream: BinaryIO) -> tuple[str, int]:
    """The host and port of ``CONNECT host:port HTTP/1.1``, its headers read."""
    host, _, port = stream.readline().split()[1].decode().rpartition(":")
    while stream.readline().strip():
        pass
    return host, int(port)
