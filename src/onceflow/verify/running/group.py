"""A process that leads a group of its own, its JVM in it: what is said to it and heard of it, and that it is paused and woken."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod

from onceflow.errors import VerificationError
from onceflow.verify.cluster import processes
from onceflow.verify.engines.lines import Order
from onceflow.verify.running.hearing import Hearing

END_TIMEOUT_S = 120

# Stops a process, or a group by its number with a minus, and lets it go on as soon as its own input ends: also when we die
# meanwhile. Nobody else would ever wake it again, and it ends by itself once it is awake.
_STOPPER = 'kill -STOP "$1" && echo stopped && read -r _; kill -CONT "$1"'


class ProcessGroup(ABC):
    """Whoever started it, ``hearing`` has what it says."""

    def __init__(self, pid: int, hearing: Hearing) -> None:
        self.pid = pid
        self._hearing = hearing
        self._stopper: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def is_running(self) -> bool: ...

    @abstractmethod
    def order(self, order: Order) -> bool:
        """Tells it something; False if it is gone."""

    @property
    @abstractmethod
    def is_left(self) -> bool:
        """Whether somebody of the group may be there; else its number may be another's by now."""

    def kill(self) -> None:
        """SIGKILL to the whole group, and waits until all of it is gone. Once is enough, twice is no mistake."""
        if self.is_left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.reap()

    @abstractmethod
    def kill_alone(self) -> None:
        """SIGKILL to the process, and to nothing else of its group; when it returns, all that it had told has been heard."""

    @abstractmethod
    def reap(self) -> None:
        """Waits for the end of one that ends by itself, and cleans up after it. Raises VerificationError if some of it stays."""

    @abstractmethod
    def said(self) -> str:
        """The end of its log, to be shown."""

    @property
    def jvm(self) -> int | None:
        """The pid of its JVM; None if it has none, or none yet."""
        return next(iter(processes.jvms(self.pid)), None)

    @property
    def is_paused(self) -> bool:
        return self._stopper is not None

    def pause(self, *, alone: bool = False) -> bool:
        """SIGSTOP to the whole group, or to the process ``alone``; when it returns, all that was told before has been heard.

        False: it is gone.
        """
        stopper = subprocess.Popen(
            ["/bin/sh", "-c", _STOPPER, "sh", str(self.pid if alone else -self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert stopper.stdout is not None
        stopped = stopper.stdout.readline()
        stopper.stdout.close()
        self._stopper = stopper
        if not stopped:
            self.resume()
            return False
        # The signal is sent; a process that waits for a processor stops when it gets one, and until then it may tell more.
        self._await_stop()
        self.hear()
        return True

    @abstractmethod
    def _await_stop(self) -> None:
        """Until it stands still, or has ended."""

    def _still_there(self) -> VerificationError:
        return VerificationError(f"processes of the group {self.pid} are still there {END_TIMEOUT_S} s after its end")

    def hear(self) -> None:
        """All that it has said already is heard when this returns."""
        self._hearing.up_to_now()

    def resume(self) -> None:
        """SIGCONT, if it is paused."""
        stopper, self._stopper = self._stopper, None
        if stopper is not None:
            assert stopper.stdin is not None
            stopper.stdin.close()
            stopper.wait(END_TIMEOUT_S)
