"""``AsyncWriter`` on an event loop in a thread of its own, for tests that are written for ``Writer``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer

from onceflow.writer.asynchronous import AsyncTransaction, AsyncWriter
from onceflow.writer.coordination import Transactions
from onceflow.writer.delivery import Delivered
from onceflow.writer.transaction import Positions

_PATIENCE_S = 300
T = TypeVar("T")


class OnLoop:
    """What ``Writer`` does, done by an ``AsyncWriter``."""

    def __init__(self, **options: Any) -> None:
        self._writer = AsyncWriter(**options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event loop", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def open(self) -> Self:
        self.do(self._writer.open())
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.do(self._writer.__aexit__(kind, error, traceback))
        self._end()

    def send(self, topic: str, value: Any, **options: Any) -> _Delivery:
        return _Delivery(self, self.do(self._writer.send(topic, value, **options)))

    def flush(self) -> None:
        self.do(self._writer.flush())

    def transaction(self, progress: str | None = None, *, consumer: Consumer | None = None) -> _Transaction:
        return _Transaction(self, self._writer.transaction(progress, consumer=consumer))

    @property
    def progress(self) -> str:
        return self._writer.progress

    def settle(self) -> bool:
        return self.do(self._writer.settle())

    def _with_transactions(self) -> Transactions:
        return self._writer._writer._with_transactions()

    def _end(self) -> None:
        """Whatever it holds is dropped."""
        if self._thread.is_alive():
            self._writer._ending.set()
            self._writer._writer._end()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_PATIENCE_S)
            self._loop.close()


class _Delivery:
    def __init__(self, writer: OnLoop, future: asyncio.Future[Delivered]) -> None:
        self._writer = writer
        self._future = future

    def result(self) -> Delivered:
        async def awaited() -> Delivered:
            return await self._future

        return self._writer.do(awaited())


class _Transaction:
    def __init__(self, writer: OnLoop, transaction: AsyncTransaction) -> None:
        self._writer = writer
        self._transaction = transaction

    @property
    def committed(self) -> bool | None:
        return self._transaction.committed

    def consumed(self, consumer: Consumer, positions: Positions | None = None) -> None:
        self._writer.do(self._transaction.consumed(consumer, positions))

    def __enter__(self) -> Self:
        self._writer.do(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.do(self._transaction.__aexit__(kind, error, traceback))
