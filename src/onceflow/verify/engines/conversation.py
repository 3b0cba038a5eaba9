"""The engine's side of the conversation with its supervisor."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable

from onceflow.verify.engines.lines import Do, Message, Order, Told

_STANDARD_INPUT, _STANDARD_OUTPUT = 0, 1


class Conversation:
    """Tells messages, takes orders on a thread of its own. ``step`` is a sink's ``on_step``; called from any thread."""

    def __init__(self, orders: int = _STANDARD_INPUT, messages: int = _STANDARD_OUTPUT) -> None:
        self._orders, self._messages = orders, messages
        self.is_asked = threading.Event()  # to run
        self._runs: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._early: Callable[[], None] | None = None
        self._stopped = threading.Event()
        self._stop: Callable[[], None] | None = None
        self._go = threading.Event()
        self._hold = ""
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="onceflow-orders", daemon=True).start()

    def tell(self, message: Message) -> None:
        """One write a line, so that lines of other threads and of Java cannot come between."""
        os.write(self._messages, f"{message.as_line()}\n".encode())

    def on_early_run(self, early: Callable[[], None] | None) -> None:
        """What to call when the order to begin comes, or has come, while the engine only warms up; None: it is warm."""
        with self._lock:
            self._early = early
            if early is not None and self.is_asked.is_set():
                early()

    def wait_for_run(self) -> Order:
        """The order to begin."""
        return self._runs.get()

    def begin(self) -> None:
        """Says that this process was set to work, and waits until it is told to begin: what it was told before that counts.

        ::

            fault    has the next driver held before FENCE, and kills this one
            leader   tells a driver to run that it has just started
            driver   takes FENCE before it has read what its socket holds: the fault waits for a step that has passed
        """
        self.tell(Message(Told.STARTED))
        self.wait_for_run()

    def on_stop(self, stop: Callable[[], None]) -> None:
        """What to call when the engine shall end in order; at once, if that was said before."""
        with self._lock:
            self._stop = stop
        if self._stopped.is_set():
            _aside(stop)

    def step(self, step: str, batch: int) -> None:
        """Tells the step that comes next; where a hold is ordered, comes back when the supervisor says go."""
        with self._lock:
            held = self._hold == step
            if held:
                self._hold = ""
                self._go.clear()
        self.tell(Message(Told.HELD if held else Told.STEP, step=step, batch=batch))
        if held:
            self._go.wait()

    def _listen(self) -> None:
        # Of a socket whose other end was killed before it had read all that it was told, the end is an error.
        with contextlib.suppress(ConnectionResetError):
            self._obey_orders()
        os.killpg(0, signal.SIGKILL)

    def _obey_orders(self) -> None:
        """Until there are no more."""
        # Not through sys.stdin: the interpreter cannot end while a thread holds its buffer.
        with os.fdopen(os.dup(self._orders), encoding="utf-8") as lines:
            for line in lines:
                self._obey(Order.of_line(line))

    def _obey(self, order: Order) -> None:
        match order.do:
            case Do.RUN:
                with self._lock:
                    self.is_asked.set()
                    if self._early is not None:
                        self._early()
                self._runs.put(order)
            case Do.HOLD:
                with self._lock:
                    self._hold = order.step
            case Do.GO:
                with self._lock:
                    self._hold = ""
                self._go.set()
            case Do.STOP:
                self._stopped.set()
                with self._lock:
                    stop = self._stop
                if stop is not None:
                    _aside(stop)


def _aside(stop: Callable[[], None]) -> None:
    """On a thread of its own: it may wait for a batch that itself waits for the next order."""
    threading.Thread(target=stop, name="onceflow-stop", daemon=True).start()
