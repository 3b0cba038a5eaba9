"""A driver process that somebody else has started, and that reports here; he alone starts it, and ends it in order."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from onceflow.verify.cluster import processes
from onceflow.verify.engines.lines import Do, Message, Order
from onceflow.verify.running.group import END_TIMEOUT_S, ProcessGroup
from onceflow.verify.running.hearing import Hearing

_LOOK_AGAIN_S = 0.02


class ReportedProcess(ProcessGroup):
    """The driver ``pid``, which leads a process group with its JVM in it, and is at the other end of ``connection``.

    ``stop`` asks who has started it to end it in order. ``heard`` is called with each of its messages, on a thread of this
    process's own, and with None when all of the group is gone. ``tail`` gives the end of its log.
    """

    def __init__(
        self,
        connection: socket.socket,
        pid: int,
        heard: Callable[[Message | None], None],
        stop: Callable[[Order], bool],
        tail: Callable[[], str],
    ) -> None:
        super().__init__(pid, Hearing(connection.fileno(), heard))
        self._connection = connection
        self._heard = heard
        self._stop = stop
        self._tail = tail
        self._saying = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=f"onceflow-driver-{pid}", daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._reader.is_alive()

    def order(self, order: Order) -> bool:
        if order.do is Do.STOP:
            return self._stop(order)
        try:
            with self._saying:
                self._connection.sendall(f"{order.as_line()}\n".encode())
        except OSError:
            return False
        return True

    def _await_stop(self) -> None:
        processes.await_stop(self.pid)

    @property
    def is_left(self) -> bool:
        return self.is_running

    def kill_alone(self) -> None:
        processes.kill(self.pid)
        self.hear()

    def reap(self) -> None:
        self._reader.join(END_TIMEOUT_S)
        self.resume()
        if self.is_running:
            raise self._still_there()

    def said(self) -> str:
        return self._tail()

    def _read(self) -> None:
        with self._connection:
            self._hearing.until_the_end()
        # Its JVM does not hold the connection. Who has started it may wait for it later, or stand still himself.
        while processes.members(self.pid):
            time.sleep(_LOOK_AGAIN_S)
        self._heard(None)
