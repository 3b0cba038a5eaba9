"""A proxy before PostgreSQL that cuts the connection between a COMMIT and its answer."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

_PORT = 5432


class CuttingProxy:
    """Listens on a Unix socket. ``cut_at``: the how-manieth COMMIT, over all connections, is executed and not answered."""

    def __init__(self, url: str, *, cut_at: int) -> None:
        host = parse_qs(urlsplit(url).query)["host"][0]
        self._target = str(Path(host) / f".s.PGSQL.{_PORT}")
        self._directory = tempfile.mkdtemp(prefix="cut-")  # short: the path of a socket has 107 bytes at most
        self.url = f"postgresql://postgres@/postgres?host={self._directory}"
        self._commits_left = cut_at
        self.cut = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self._directory) / f".s.PGSQL.{_PORT}"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)
        shutil.rmtree(self._directory)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self._target)
        except OSError:  # PostgreSQL is away
            server.close()
            client.close()
            return
        muted = threading.Event()
        back = threading.Thread(target=self._answers, args=(server, client, muted))
        back.start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if b"COMMIT" in data:
                    self._commits_left -= 1
                    if self._commits_left == 0:
                        muted.set()
                server.sendall(data)
        _shut(server)
        back.join(60)
        client.close()
        server.close()

    def _answers(self, server: socket.socket, client: socket.socket, muted: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if muted.is_set():  # this is the answer: the transaction is committed
                    self.cut.set()
                    break
                client.sendall(data)
        _shut(client)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
