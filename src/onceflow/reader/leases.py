"""Keeps the claims of events alive while their handler runs, from a thread of its own.

The reader's thread is inside the handler, and an event loop may be held up by one, so neither can do it. The thread claims the
events in hand once more, which is free to whoever holds them and gives them a fresh lease, each time a third of it is over.

What it survives::

    a handler takes longer than the lease, and the source has sent its event to another partition as well, whose reader gets it
    that reader goes on waiting: the lease is renewed as long as the handler runs

    the store is away while the handler works
    it is asked again after another third. If the lease ran out meanwhile, and the other reader was quicker, the event is that
    one's too: the confirmation decides what is booked, as if this process had died

    the process is stopped inside the handler (SIGSTOP), its lease runs out; or its partition moves
    no thread of it runs either; awake again it is told that the claim is another reader's, or refused by the fence. The handler
    goes on, nobody can take it back, and its confirmation decides

    the handler returns while a claim is on its way to the store
    it is waited for: a store is used from one thread at a time, and what is confirmed is never claimed behind that

A handler that keeps Python's global lock for longer than the lease (a long call into C that does not give it up) is as stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import NamedTuple, Self

from onceflow.errors import StoreFenced
from onceflow.reader.stores.interface import EventKey, Ownership, Standing, Store

log = logging.getLogger("onceflow.reader")
THREAD_NAME = "onceflow-leases"
_SHORTEST_PAUSE_S = 0.01
_NOBODY_WAITS = nullcontext()


class _InHand(NamedTuple):
    ownership: Ownership
    keys: Sequence[EventKey]


class Leases:
    """Claims events, and keeps the claims of those in hand. A context: its end is the end of the thread.

    Where nobody else can use the store there is no thread.
    """

    def __init__(self, store: Store, lease_s: float) -> None:
        self.lease_s = lease_s
        self._store = store
        self._in_hand: _InHand | None = None
        self._claimed_at = 0.0  # the newest claim, or the newest attempt to renew it
        self._turn = threading.Lock()  # to use the store from the thread, or to change what is in hand
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()

    def claim(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
        """As the store does, for ``lease_s``."""
        self._claimed_at = time.monotonic()
        return self._store.claim(ownership, keys, self.lease_s)

    def kept(self, ownership: Ownership, keys: Sequence[EventKey]) -> AbstractContextManager[None]:
        """Inside of it the claims of these events do not run out; behind it nobody else uses the store."""
        if not keys or not self._store.capabilities.shared:
            return _NOBODY_WAITS
        self._start()
        return self._keeping(ownership, keys)

    @contextmanager
    def _keeping(self, ownership: Ownership, keys: Sequence[EventKey]) -> Iterator[None]:
        with self._turn:
            self._in_hand = _InHand(ownership, keys)
        try:
            yield
        finally:
            with self._turn:
                self._in_hand = None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """What is claimed while this waits is due a third of a lease later: so it never wakes too late for it."""
        third_s = self.lease_s / 3
        pause_s = third_s
        while not self._ends.wait(max(pause_s, _SHORTEST_PAUSE_S)):
            with self._turn:
                if self._in_hand is None:
                    pause_s = third_s
                    continue
                if time.monotonic() >= self._claimed_at + third_s:
                    self._claimed_at = time.monotonic()
                    self._renew(self._in_hand)
                pause_s = self._claimed_at + third_s - time.monotonic()

    def _renew(self, held: _InHand) -> None:
        """Whatever comes of it, the handler goes on."""
        try:
            standings = self._store.claim(held.ownership, held.keys, self.lease_s)
        except StoreFenced as error:
            self._in_hand = None  # for good: whoever took the partition does not give it back
            log.warning("%s", error.message)
        except Exception as error:  # noqa: BLE001 (a store of the user's may raise anything, and this thread must go on)
            log.warning("the lease of what is being handled could not be renewed, and is tried again: %s", error)
        else:
            if set(standings) != {Standing.NEW}:
                log.warning("the lease of what is being handled had run out, and another reader has claimed it")
