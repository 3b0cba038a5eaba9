"""``onceflow.AsyncWriter``: the writer for asyncio.

confluent-kafka's own AIOProducer takes no headers, and so no event's identity. Here the loop's thread hands events over, a
thread of the writer takes in what is answered, and whatever blocks runs in asyncio's threads.

Cancellation never cuts a commit in two::

    a task is cancelled while its transaction commits
    the commit is finished first (to_the_end.py); then CancelledError goes on; ``transaction.committed`` says what became of it

    another task leaves the writer's block meanwhile
    the writer is closed when the commit is finished, and not in the middle of it
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from confluent_kafka import Consumer

from onceflow.errors import BrokerUnreachable, OnceflowError, WriterClosed
from onceflow.to_the_end import ended
from onceflow.writer import identity
from onceflow.writer.delivery import Delivered, Delivery
from onceflow.writer.identity import Headers, Position
from onceflow.writer.sender import WAIT_S, Data, Sender
from onceflow.writer.transaction import Positions, Transaction
from onceflow.writer.writer import Writer

P = ParamSpec("P")
T = TypeVar("T")


class _ReportingWriter(Writer):
    """A writer that says of each event when it is decided."""

    def __init__(self, on_settled: Callable[[Delivery], None], **options: Any) -> None:
        super().__init__(**options)
        self._on_settled = on_settled

    def _make_sender(self) -> Sender:
        return Sender(self._settings.for_producer(), self._settings.delivery_timeout_s, self._limits, self._on_settled)


class AsyncWriter:
    """As ``Writer``, to be used on one event loop: ``async with``, and ``await`` on everything that may wait."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        source: str = "",
        kafka: Mapping[str, object] | None = None,
        transactional_id: str | None = None,
    ) -> None:
        self._writer = _ReportingWriter(
            self._settled,
            bootstrap_servers=bootstrap_servers,
            source=source,
            kafka=kafka,
            transactional_id=transactional_id,
        )
        self._futures: dict[Delivery, asyncio.Future[Delivered]] = {}
        self._decided: deque[Delivery] = deque()
        self._room = asyncio.Event()
        self._announced = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._opening = asyncio.Lock()  # tasks may share a writer that none of them has opened

    # ------------------------------------------------------------------------------------------------------ lifetime

    async def open(self) -> Self:
        """As ``Writer.open``."""
        if self._thread is not None:
            return self
        async with self._opening:
            if self._thread is None:
                self._loop = asyncio.get_running_loop()
                await _to_the_end(self._writer.open)
                self._thread = threading.Thread(target=self._serve, name="onceflow-writer", daemon=True)
                self._thread.start()
        return self

    async def close(self) -> None:
        """As ``Writer.close``."""
        try:
            await _to_the_end(self._writer.close)
        finally:
            self._ending.set()
            self._resolve()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except asyncio.CancelledError:
            await self.close()  # its block never begins: nobody else would
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await _to_the_end(self._writer.__exit__, kind, error, traceback)
        finally:
            self._ending.set()
            self._resolve()

    # ------------------------------------------------------------------------------------------------------- sending

    async def send(
        self,
        topic: str,
        value: Data,
        *,
        id: str | None = None,  # noqa: A002  CloudEvents' name
        position: Position | None = None,
        key: Data = None,
        source: str | None = None,
        type: str = "",  # noqa: A002  CloudEvents' name
        sequence: int | None = None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
    ) -> asyncio.Future[Delivered]:
        """As ``Writer.send``; the future gives the delivery. Cancelled while it waits for room, the event is not sent.

        Cancelling the future takes nothing back. A failure that nobody awaits is raised by ``flush`` and at the end.
        """
        await self.open()
        sender = self._writer.sender()
        is_placed = identity.is_placed(key, partition)
        delivery, wire = self._writer.event(
            sender, topic, id, position, source, type, sequence, headers, is_placed=is_placed
        )
        if partition not in sender.known.get(topic, ()):
            await self._know(sender, delivery, partition)
        future = self._futures[delivery] = self._loop.create_future()
        try:
            await self._put(sender, delivery, (value, key, wire, partition, timestamp_ms))
        except BaseException:
            self._futures.pop(delivery, None)
            raise
        return future

    async def _know(self, sender: Sender, delivery: Delivery, partition: int) -> None:
        """As ``Sender.know``, which may replace the producer, and others wait for room while it does.

        They are woken when the thread is through, whatever became of this event::

            a task meets a topic that takes small batches; others find no room, and nothing outstanding is left to wake them
            it is cancelled, or refused for its partition: they would wait until somebody else's event is settled
        """
        known = self._loop.run_in_executor(None, sender.know, delivery, partition)
        known.add_done_callback(self._known)
        await asyncio.shield(known)

    def _known(self, known: asyncio.Future[None]) -> None:
        self._room.set()
        if not known.cancelled():
            known.exception()  # seen: its task may have been cancelled

    async def _put(self, sender: Sender, delivery: Delivery, event: tuple[Any, ...]) -> None:
        deadline = self._loop.time() + sender.timeout_s
        while True:
            self._room.clear()
            try:
                sender.put(delivery, *event)
            except BufferError:
                await self._wait_for_room(deadline)
                sender.check()
            else:
                return

    async def _wait_for_room(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.wait()
        except TimeoutError:
            raise BrokerUnreachable(
                "no room for another event within the delivery timeout", action="see whether the brokers take events"
            ) from None

    async def flush(self) -> None:
        """As ``Writer.flush``. Cancelled, it only stops waiting."""
        await asyncio.to_thread(self._writer.flush)

    # -------------------------------------------------------------------------------------------------- transactions

    def transaction(self, progress: str | None = None, *, consumer: Consumer | None = None) -> AsyncTransaction:
        """As ``Writer.transaction``, for ``async with``; the writer must be open."""
        if self._thread is None:
            raise WriterClosed("the writer is not open", action="use: async with AsyncWriter(...) as writer")
        return AsyncTransaction(self._writer.transaction(progress, consumer=consumer))

    @property
    def progress(self) -> str:
        """As ``Writer.progress``."""
        return self._writer.progress

    async def settle(self) -> bool:
        """As ``Writer.settle``."""
        return await _to_the_end(self._writer.settle)

    # ---------------------------------------------------------------------------------------------------- deliveries

    def _serve(self) -> None:
        while not self._ending.is_set():
            try:
                self._writer.serve(WAIT_S)
            except OnceflowError:  # closed, or replaced by a new one in the middle of this
                self._ending.wait(WAIT_S)

    def _settled(self, delivery: Delivery) -> None:
        """On whichever thread took the answer in; the loop is woken once for many."""
        self._decided.append(delivery)
        if not self._announced:
            self._announced = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._announced = False
        self._room.set()
        while self._decided:
            delivery = self._decided.popleft()
            future = self._futures.pop(delivery, None)
            if future is None or future.done():
                continue
            try:
                future.set_result(delivery.delivered())
            except OnceflowError as error:
                future.set_exception(error)
                future.exception()  # seen: flush raises it, if nobody awaits the future


class AsyncTransaction:
    """As ``Transaction``, for ``async with``."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    @property
    def committed(self) -> bool | None:
        return self._transaction.committed

    async def consumed(self, consumer: Consumer, positions: Positions | None = None) -> None:
        """As ``Transaction.consumed``."""
        await _to_the_end(self._transaction.consumed, consumer, positions)

    async def __aenter__(self) -> Self:
        try:
            await _to_the_end(self._transaction.__enter__)
        except asyncio.CancelledError as cancelled:
            await _to_the_end(self._transaction.__exit__, type(cancelled), cancelled, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await _to_the_end(self._transaction.__exit__, kind, error, traceback)


async def _to_the_end(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Runs a blocking function in a thread; a cancellation waits until it has ended."""
    call = partial(contextvars.copy_context().run, function, *arguments, **options)
    running = asyncio.get_running_loop().run_in_executor(None, call)
    cancelled = await ended(running)
    if cancelled is not None:
        running.exception()  # seen: the cancellation goes on instead
        raise cancelled
    return running.result()
