"""A broker whose clients talk to it through a proxy, which can lose the answer to a chosen request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.faults.proxy import Loss, Proxy, _close

from onceflow.broker import EmbeddedBroker
from onceflow.broker.home import BrokerState
from onceflow.broker.settings import HOST, as_properties, free_ports

NOTHING = Loss(api=-1)


class WireProxy(Proxy):
    """The proxy for clients that know no HTTP CONNECT: they take it for the broker."""

    def __init__(self) -> None:
        super().__init__(NOTHING)
        self.target = 0
        self.port = int(self._listener.getsockname()[1])

    def lose(self, loss: Loss) -> None:
        """From now on."""
        with self._lock:
            self._loss, self._answers, self.lost = loss, 0, 0

    def _tunnel(self, client: socket.socket) -> None:
        self._sockets.append(client)
        try:
            broker = socket.create_connection((HOST, self.target))
        except OSError:
            _close(client)
            return
        self._sockets.append(broker)
        asked: dict[int, int] = {}
        threading.Thread(target=self._forward_requests, args=(client, broker, asked), daemon=True).start()
        self._forward_answers(client, broker, asked)


class ProxiedBroker(EmbeddedBroker):
    """Advertises the proxy on a listener of its own; ``servers`` are its clients' bootstrap servers."""

    def __init__(self, directory: Path, proxy: WireProxy) -> None:
        super().__init__(directory, heap_mb=256)
        self.proxy = proxy
        proxy.target = free_ports(1)[0]
        self.servers = f"{HOST}:{proxy.port}"

    def _write_settings(self, state: BrokerState) -> Mapping[str, str]:
        found = dict(super()._write_settings(state))
        found["listeners"] += f",WIRE://{HOST}:{self.proxy.target}"
        found["advertised.listeners"] += f",WIRE://{HOST}:{self.proxy.port}"
        found["listener.security.protocol.map"] += ",WIRE:PLAINTEXT"
        self._home.properties.write_text(as_properties(found))
        return found
