"""A pooler in front of PostgreSQL in transaction mode, as pgbouncer's: each transaction of a client gets another session."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from pathlib import Path
from typing import Self

_SSL, _GSS = 80877103, 80877104
_SESSIONS = 3


class Pooler:
    """Sessions are given out in turn, so that no transaction gets the one of the client's transaction before."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._free: queue.Queue[socket.socket] = queue.Queue()
        self._welcome = b""
        self._turn = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            startup = _startup(client)
            with self._turn:
                if not self._welcome:
                    self._connect(startup)
            client.sendall(self._welcome)
            while True:
                self._transaction(client)

    def _connect(self, startup: bytes) -> None:
        """The sessions of the pool: all clients are of one user and one database."""
        for _ in range(_SESSIONS):
            server = socket.socket(socket.AF_UNIX)
            self._sockets.append(server)
            server.connect(str(self._target))
            server.sendall(startup)
            self._welcome = b"".join(_until_ready(server))
            self._free.put(server)

    def _transaction(self, client: socket.socket) -> None:
        request = _message(client)
        server = self._free.get(timeout=60)
        try:
            status = b""
            while status != b"I":
                server.sendall(request)
                if request[:1] in b"QS":  # a query, or the end of what belongs together
                    answers = _until_ready(server)
                    client.sendall(b"".join(answers))
                    status = answers[-1][-1:]
                if status != b"I":
                    request = _message(client)
        finally:
            self._free.put(server)


def _startup(client: socket.socket) -> bytes:
    while True:
        length = _exactly(client, 4)
        packet = _exactly(client, struct.unpack(">I", length)[0] - 4)
        if struct.unpack(">I", packet[:4])[0] not in (_SSL, _GSS):
            return length + packet
        client.sendall(b"N")


def _until_ready(server: socket.socket) -> list[bytes]:
    answers = [_message(server)]
    while answers[-1][:1] != b"Z":
        answers.append(_message(server))
    return answers


def _message(peer: socket.socket) -> bytes:
    head = _exactly(peer, 5)
    return head + _exactly(peer, struct.unpack(">I", head[1:])[0] - 4)


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := peer.recv(count - len(data))):
            raise EOFError
        data += more
    return data
