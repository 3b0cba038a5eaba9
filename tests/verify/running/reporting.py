"""The scripted engine as a driver of the production supervisor: ``python reporting.py ADDRESS DESCRIPTOR``.

It works as ``scripted.py`` does, without any defence, on the ``checkpoint`` beside the plan. With a file ``fails`` there it ends
with what that says: an error's class, where it was not told to resume. With a file ``breaks``, which it removes, it fails behind
a batch, and a second process of it, called ``java``, lives on until it is killed; so does the first one where ``spares`` says
``all``. It tells why, unless ``breaks`` says ``without a word``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.verify.running.scripted import run

from onceflow import errors
from onceflow.pipeline.control import StopAsked
from onceflow.pipeline.events import BatchCommitted, Finished, Started
from onceflow.pipeline.standby import Failed, Go, Prepare, Pulse, Ready, Triggered
from onceflow.transaction.progress import OnMismatch
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.failing import failure
from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.engines.reporting import reporting_at

BEAT_S = 0.1


class Telling:
    """Tells a batch that is committed to both: who judges, and who supervises."""

    def __init__(self, conversation: Conversation, supervisor: Connection[Any, Any], breaks: Path) -> None:
        self._breaks = breaks
        self._conversation = conversation
        self._supervisor = supervisor
        self.step = conversation.step

    def tell(self, message: Message) -> None:
        self._conversation.tell(message)
        if message.told is Told.COMMITTED:
            self._supervisor.send(Triggered())
            self._supervisor.send(BatchCommitted(message.batch, True, 1, 1, 0, 1, 1))
            if self._breaks.exists():
                how = self._breaks.read_text()
                self._breaks.unlink()
                raise errors.QueryFailed(how)


def main(conversation: Conversation, supervisor: Connection[Any, Any]) -> int:
    prepare: Prepare = supervisor.recv()
    threading.Thread(target=beat, args=(supervisor,), daemon=True).start()
    supervisor.send(Ready())
    go: Go = supervisor.recv()
    stopped = threading.Event()
    threading.Thread(target=hear, args=(supervisor, stopped), daemon=True).start()
    conversation.begin()
    directory = prepare.file.directory
    fails = directory / "fails"
    if fails.exists() and go.mode is not OnMismatch.RESUME:
        error = getattr(errors, fails.read_text())(f"as the script says, with {prepare.file.path}")
        conversation.tell(failure(error))
        supervisor.send(Failed(error))
        return 1
    supervisor.send(Started("p", "exactly_once", "query", "checkpoint", "servers"))
    telling: Any = Telling(conversation, supervisor, directory / "breaks")
    try:
        run(directory / "checkpoint", telling, stopped, empty=False)
    except errors.QueryFailed as error:
        leave_java_behind()
        if error.message == "without a word":
            os.kill(os.getpid(), signal.SIGKILL)
        conversation.tell(failure(error))
        supervisor.send(Failed(error))
        spares = directory / "spares"
        if spares.exists() and spares.read_text() == "all":
            threading.Event().wait()
        return 1
    conversation.tell(Message(Told.FINISHED))
    supervisor.send(Finished("p", 0, 0, "asked to stop"))
    return 0


def leave_java_behind() -> None:
    java = Path(tempfile.gettempdir()) / "java"
    java.symlink_to(sys.executable)
    subprocess.Popen([str(java), "-c", "import threading; threading.Event().wait()"], stdin=subprocess.DEVNULL)


def beat(supervisor: Connection[Any, Any]) -> None:
    while True:
        supervisor.send(Pulse())
        time.sleep(BEAT_S)


def hear(supervisor: Connection[Any, Any], stopped: threading.Event) -> None:
    try:
        while isinstance(supervisor.recv(), StopAsked):
            stopped.set()
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    with reporting_at(sys.argv[1]) as conversation:
        sys.exit(main(conversation, Connection(int(sys.argv[2]))))
