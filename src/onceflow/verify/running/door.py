"""Where drivers report that a supervised engine has started."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable

from onceflow.verify.engines.reporting import abstract

_CREDENTIALS = struct.Struct("3i")  # pid, user, group


class Door:
    """Calls ``enter`` with each connection and the process at its other end, on a thread of its own, until it is closed."""

    def __init__(self, enter: Callable[[socket.socket, int], None]) -> None:
        self.address = f"onceflow-verify-{secrets.token_hex(8)}"
        self._enter = enter
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(abstract(self.address))
        self._socket.listen()
        self._thread = threading.Thread(target=self._listen, name="onceflow-door", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, user, _ = _CREDENTIALS.unpack(peer)
            if user == os.getuid():  # an abstract address has no permissions
                self._enter(connection, pid)
            else:
                connection.close()

    def close(self) -> None:
        """Nobody comes in any more when this returns. Once is enough, twice is no mistake."""
        if self._thread.is_alive():
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept, as close does not
            self._thread.join()
        self._socket.close()
