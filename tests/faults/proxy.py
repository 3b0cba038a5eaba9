"""A TCP proxy that understands Kafka's frames: it can lose the answer to a chosen request, as a network does.

Clients reach it by HTTP CONNECT (kafka-python's ``proxy_url``), so that the broker may advertise its own address.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

PRODUCE, METADATA, OFFSET_FETCH, FIND_COORDINATOR, INIT_PRODUCER_ID = 0, 3, 9, 10, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS = 61, 65

_HEAD = struct.Struct(">ihhi")  # size, api key, api version, correlation id
_ANSWER_HEAD = struct.Struct(">ii")  # size, correlation id


@dataclass(slots=True)
class Loss:
    """Loses the answers to ``api`` from ``first`` to ``first + count - 1``; ``then`` is called before the connection breaks."""

    api: int
    first: int = 0
    count: int = 1
    then: Callable[[], object] = field(default=lambda: None)


class Proxy:
    """Listens on a port of its own until closed; ``seen`` counts the requests per api key."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._answers = 0
        self.seen: dict[int, int] = {}
        self.lost = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for each in [self._listener, *self._sockets]:
            _close(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._tunnel, args=(client,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        self._sockets.append(client)
        try:
            broker = socket.create_connection(_target(client))
        except OSError:
            _close(client)
            return
        self._sockets.append(broker)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        asked: dict[int, int] = {}
        threading.Thread(target=self._forward_requests, args=(client, broker, asked), daemon=True).start()
        self._forward_answers(client, broker, asked)

    def _forward_requests(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(client):
                _, api, _, correlation = _HEAD.unpack_from(frame)
                with self._lock:
                    asked[correlation] = api
                    self.seen[api] = self.seen.get(api, 0) + 1
                broker.sendall(frame)
        _close(client, broker)

    def _forward_answers(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(broker):
                _, correlation = _ANSWER_HEAD.unpack_from(frame)
                if self._loses(asked.pop(correlation)):
                    self._loss.then()
                    break
                client.sendall(frame)
        _close(client, broker)

    def _loses(self, api: int) -> bool:
        with self._lock:
            if api != self._loss.api:
                return False
            number, self._answers = self._answers, self._answers + 1
            is_lost = self._loss.first <= number < self._loss.first + self._loss.count
            self.lost += is_lost
            return is_lost


def _target(client: socket.socket) -> tuple[str, int]:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = client.recv(1)
        if not byte:
            raise OSError("closed before CONNECT")
        head += byte
    host, _, port = head.split()[1].decode().rpartition(":")
    return host, int(port)


def _frame(source: socket.socket) -> bytes:
    """One whole frame with its size; empty at the end."""
    size = _exactly(source, 4)
    if not size:
        return b""
    rest = _exactly(source, struct.unpack(">i", size)[0])
    return size + rest if rest else b""


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            return b""
        data += part
    return bytes(data)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
