"""A TCP proxy in front of a server that breaks a connection once the server's answer to a chosen request has arrived at it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Self


class CuttingProxy:
    """Forwards to a unix socket. After ``arm(word)`` the answer to the next request with it is lost, with the connection.

    With ``tls`` clients must speak TLS, those of PostgreSQL (``asks_first``) after they asked whether they may.
    """

    def __init__(self, target: Path, tls: ssl.SSLContext | None = None, *, asks_first: bool = False) -> None:
        self._target = target
        self._tls = tls
        self._asks_first = asks_first
        self._word = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def arm(self, word: bytes) -> None:
        self._word = word

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        _close(*self._sockets)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                self._sockets.append(plain)
                if (client := self._secured(plain)) is None:
                    continue
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                server.connect(str(self._target))
                losing = threading.Event()
                threading.Thread(target=self._requests, args=(client, server, losing), daemon=True).start()
                threading.Thread(target=self._answers, args=(client, server, losing), daemon=True).start()

    def _secured(self, client: socket.socket) -> socket.socket | None:
        if self._tls is None:
            return client
        try:
            if self._asks_first:
                client.recv(8)  # PostgreSQL's SSLRequest
                client.sendall(b"S")
            return self._tls.wrap_socket(client, server_side=True)
        except OSError:  # the client does not like the certificate
            _close(client)
            return None

    def _requests(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                if self._word and self._word in data:
                    losing.set()  # before it is sent, so that the answer cannot be faster
                server.sendall(data)
        _close(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if losing.is_set():
                    self._word = b""
                    self.cut.set()
                    break
                client.sendall(data)
        _close(client, server)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
