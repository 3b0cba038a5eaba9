"""A driver that does what a script says, for tests of the supervisor: real processes, real signals, no Spark.

``script`` beside the plan has a line for each driver in the order in which they are told to run; a word is one thing to do.
Each driver notes in ``told`` that it was, and how. The first standby that finds ``never-ready`` there does what that says.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from onceflow.errors import BrokerUnreachable, Displaced, Fenced
from onceflow.pipeline.control import StopAsked
from onceflow.pipeline.events import BatchCommitted, Finished, Started
from onceflow.pipeline.standby import Failed, Go, Prepare, Pulse, Ready, Triggered


class Driver:
    """One process; the connection's end is its end."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        prepare: Prepare = connection.recv()
        self._directory = prepare.file.directory
        (prepare.scratch / "left").touch()
        self._beats = True
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            if self._beats:
                self._connection.send(Pulse())
            time.sleep(0.1)

    def run(self) -> None:
        never_ready = self._directory / "never-ready"
        if never_ready.exists() and (self._directory / "told").exists():
            word = never_ready.read_text()
            never_ready.unlink()
            getattr(self, word)()
        go: Go = self._say_and_hear(Ready())
        number = self._note(go)
        script = (self._directory / "script").read_text().splitlines()
        for word in script[min(number, len(script) - 1)].split():
            getattr(self, word)()

    def _note(self, go: Go) -> int:
        told = self._directory / "told"
        before = told.read_text().splitlines() if told.exists() else []
        told.write_text("".join(f"{line}\n" for line in [*before, f"{os.getpid()} {go.mode.value} {go.begun}".strip()]))
        return len(before)

    def _say_and_hear(self, message: object) -> Any:
        self._connection.send(message)
        return self._connection.recv()

    def start(self) -> None:
        self._connection.send(Started("p", "exactly_once", "query", "checkpoint", "servers"))

    def commit(self) -> None:
        self._connection.send(BatchCommitted(0, True, 1, 1, 0, 1, 1))

    def wait(self) -> None:
        """Until a test writes ``go-on``; asked to stop before that, it just ends."""
        while not (self._directory / "go-on").exists():
            if self._connection.poll(0.1):
                self._connection.recv()
                self.exit()

    def run_on(self) -> None:
        while not self._connection.poll(0.1):
            self._connection.send(Triggered())
        stop: StopAsked = self._connection.recv()
        self._connection.send(Finished("p", 0, 0, stop.reason))

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def outlive(self) -> None:
        """As a process does that waits for a disk that does not answer: SIGKILL ends it later, and till then it says nothing.

        The connection stays open in a process that is not in the group; a test has it end by writing ``answered``.
        """
        if os.fork() == 0:
            os.setsid()
            while not (self._directory / "answered").exists():
                time.sleep(0.1)
            os._exit(0)
        self.pause()

    def babble(self) -> None:
        """Something that nobody can read."""
        self._connection.send_bytes(b"not a pickle")
        self.stall()

    def exit(self) -> None:
        sys.exit(7)

    def fenced(self) -> None:
        self._connection.send(Failed(Fenced("another one took over")))

    def displaced(self) -> None:
        self._connection.send(Failed(Displaced("nobody took over")))

    def unreachable(self) -> None:
        self._connection.send(Failed(BrokerUnreachable("no broker")))

    def pause(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def stall(self) -> None:
        while not self._connection.poll(0.1):
            pass


if __name__ == "__main__":
    try:
        Driver(Connection(int(sys.argv[1]))).run()
    except (EOFError, BrokenPipeError):
        os.killpg(0, signal.SIGKILL)
