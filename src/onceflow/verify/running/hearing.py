"""What an engine says, heard by a thread that waits for it, or by whoever needs to know it now."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from onceflow.verify.engines.lines import Message

_PIECE_BYTES = 1 << 16


class Hearing:
    """Reads a pipe or socket and calls ``heard`` with each message, one at a time, in order; does not close it."""

    def __init__(self, descriptor: int, heard: Callable[[Message], None]) -> None:
        self._descriptor = descriptor
        self._heard = heard
        self._turn = threading.Lock()
        self._rest = b""
        self._ended = False

    def until_the_end(self) -> None:
        """Waits for what is said, until nobody is left who could say anything."""
        while not self._ended:
            self._is_readable(None)
            self.up_to_now()

    def up_to_now(self) -> None:
        """All that is said already has been heard when this returns, by whichever thread.

        A process that was stopped has said its last, but it may be on its way still, or in the hands of the thread that reads::

            driver   tells COMMIT, commits, and is stopped
            reader   has not had the processor since: it holds the line before that
            we       look at what was told last, and take the driver for one between two batches
        """
        with self._turn:
            while not self._ended and self._is_readable(0):
                self._take(self._read())

    def _is_readable(self, wait_ms: float | None) -> bool:
        """Also at the end. ``wait_ms`` None: waits until it is."""
        look = select.poll()  # one that is used by two threads at once raises
        look.register(self._descriptor, select.POLLIN)
        return bool(look.poll(wait_ms))

    def _read(self) -> bytes:
        """Of a socket whose other end was killed before it had read all that it was told, the end is an error."""
        try:
            return os.read(self._descriptor, _PIECE_BYTES)
        except ConnectionResetError:
            return b""

    def _take(self, piece: bytes) -> None:
        self._ended = not piece
        *lines, self._rest = (self._rest + (piece or b"\n")).split(b"\n")
        for line in lines:
            message = Message.of_line(line.decode(errors="replace"))
            if message is not None:
                self._heard(message)
