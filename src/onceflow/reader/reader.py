"""``onceflow.Reader``: handles each committed event of its topics once."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar, overload

from onceflow import collector
from onceflow.errors import ConfigurationError, TopicMissing
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.missing import meant
from onceflow.reader import claims, inbox
from onceflow.reader.assignment import Assignment
from onceflow.reader.claims import Claims
from onceflow.reader.fence import Fence
from onceflow.reader.handling import Handler, RunCoroutine
from onceflow.reader.inbox import Inbox
from onceflow.reader.leases import Leases
from onceflow.reader.loop import Loop
from onceflow.reader.on_loop import OnLoop
from onceflow.reader.one_at_a_time import OneAtATime
from onceflow.reader.patience import Stopped, patiently
from onceflow.reader.rebuild import Rebuilder
from onceflow.reader.retries import Backoff
from onceflow.reader.settings import Checker, GroupProtocol, LostStore, ReaderSettings, Start
from onceflow.reader.steps import OnStep
from onceflow.reader.stops import Stops
from onceflow.reader.stores import DEFAULT, FORMS, open_store
from onceflow.reader.stores.interface import Retention, Store
from onceflow.reader.tally import Tally
from onceflow.stop_flag import StopFlag
from onceflow.to_the_end import ended

log = logging.getLogger("onceflow.reader")
_STORE_METHODS = ("open", "close", "take", "unit", "claim", "confirm", "forget_expired")
_OBJECTS_PER_EVENT = 20  # message, headers, identity, and as many again of the store's
F = TypeVar("F", bound=Callable[..., Any])


class Reader:
    """Reads committed events and handles each of them once, with a deduplication store.

    ::

        reader = onceflow.Reader("sales", group="ledger", store="postgresql://…")

        @reader.handler
        def book(event, tx):
            tx.execute("insert into ledger …")

        reader.run()

    A handler that takes ``(event, tx)`` works in the *transactional inbox*: ``tx`` is the store's transaction, in which the
    event's id and position are recorded too, so its effects happen exactly once. A handler that takes ``(event)`` alone has
    its effects elsewhere: *claim, process, confirm*. An effect may then repeat, if the process dies (or is stopped for too
    long) inside it, or with a store in memory before Kafka has heard of it; ``event.idempotency_key`` is the same then.
    ``@reader.handler(batch=True)`` gets a list of events. Both may be ``async def``. A handler may run again for an event whose
    transaction was rolled back.

    ``store`` is a URL (``memory:``, ``sqlite:///path``, ``postgresql://…``, ``redis://…``) or a store of your own. Without one it
    is a SQLite file in the working directory, ``onceflow-store.db``.
    ``kafka`` holds Java client options (``security.protocol``, …). ``group_protocol`` is ``classic`` or ``consumer``
    (KIP-848); with a ``group_instance_id`` a restarted process gets its partitions back at once. A group without a position
    begins at ``start`` (``earliest``, ``latest``). Ids are kept for ``keep_ids_s`` seconds and as the newest
    ``keep_ids``, whichever keeps more; None is no bound. A claim lasts ``lease_s``, and is renewed while its handler runs.

    An event whose handler raises is tried ``retries`` times more, with growing pauses (``backoff_s`` to ``backoff_max_s``)
    while other partitions go on; then it is written to the topic ``dead_letters`` (``{topic}`` stands for the event's own) and
    counts as handled. ``None`` stops the reader with HandlerFailed instead. A store that does not answer is waited for, for
    ``patience_s``. ``lost_store`` says what to do where Kafka's offsets are ahead of the store: ``refuse``, ``rebuild``,
    ``accept`` or ``replay``. ``on_step`` is told each step after it was taken, for tests.

    Raises ConfigurationError at once, with every mistake.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        store: str | Store = DEFAULT,
        bootstrap_servers: str = "localhost:9092",
        kafka: Mapping[str, object] | None = None,
        group_protocol: str = "classic",
        group_instance_id: str | None = None,
        session_timeout_s: float | None = None,
        max_poll_interval_s: float = 300.0,
        start: str = "earliest",
        batch_size: int = 1000,
        keep_ids_s: float | None = 7 * 24 * 3600.0,
        keep_ids: int | None = None,
        lease_s: float = 60.0,
        retries: int = 5,
        backoff_s: float = 0.1,
        backoff_max_s: float = 30.0,
        dead_letters: str | None = "{topic}.dead-letter",
        lost_store: str = "refuse",
        patience_s: float = 60.0,
        on_step: OnStep | None = None,
    ) -> None:
        checker = Checker()
        names = checker.topics(topics)
        checker.dead_letters(dead_letters, names)
        checker.at_least(1, batch_size=batch_size)
        checker.at_least(
            0,
            keep_ids_s=keep_ids_s,
            keep_ids=keep_ids,
            retries=retries,
            backoff_s=backoff_s,
            backoff_max_s=backoff_max_s,
            patience_s=patience_s,
        )
        checker.at_least(0.001, lease_s=lease_s, session_timeout_s=session_timeout_s)
        shortest_s = session_timeout_s if isinstance(session_timeout_s, int | float) else 1
        checker.at_least(shortest_s, max_poll_interval_s=max_poll_interval_s)
        checker.text(group=group, group_instance_id=group_instance_id)
        protocol = checker.choice(GroupProtocol, "group_protocol", group_protocol)
        checker.session_timeout(session_timeout_s, protocol)
        self._settings = ReaderSettings(
            topics=names,
            group=group,
            cluster=checker.cluster(bootstrap_servers, kafka),
            group_protocol=protocol,
            group_instance_id=group_instance_id,
            session_timeout_s=session_timeout_s,
            max_poll_interval_s=max_poll_interval_s,
            start=checker.choice(Start, "start", start),
            lost_store=checker.choice(LostStore, "lost_store", lost_store),
            batch_size=batch_size,
            retention=Retention(keep_ids_s, keep_ids),
            lease_s=lease_s,
            retries=retries,
            backoff=Backoff(backoff_s, backoff_max_s),
            dead_letters=dead_letters,
            patience_s=patience_s,
        )
        opened = _opened(store, checker)
        if checker.mistakes or opened is None:
            raise ConfigurationError.of("Reader", checker.mistakes)
        self._store = opened
        self._on_step = on_step or (lambda step: None)
        self._handler: Handler | None = None
        self._stops = Stops()
        # Shared by the readers of its dead letters: they have one store and one handler.
        self._running = OneAtATime(opened)

    # ---------------------------------------------------------------------------------------------------- the handler

    @overload
    def handler(self, function: F) -> F: ...

    @overload
    def handler(self, *, batch: bool = False) -> Callable[[F], F]: ...

    def handler(self, function: F | None = None, *, batch: bool = False) -> F | Callable[[F], F]:
        """Decorates the one function that handles events. Raises ConfigurationError if the store cannot do what it asks."""

        def register(given: F) -> F:
            self._handler = self._checked(Handler(given, batch=batch))
            return given

        return register if function is None else register(function)

    def _checked(self, handler: Handler) -> Handler:
        mistakes = []
        if self._handler is not None:
            mistakes.append("it has a handler already")
        if handler.takes_transaction and not self._store.capabilities.transactional:
            mistakes.append(
                f"the handler takes a transaction, and {type(self._store).__name__} has none: take (event) alone "
                "and pass event.idempotency_key on, or use a transactional store"
            )
        if mistakes:
            raise ConfigurationError.of("Reader.handler", mistakes)
        return handler

    @property
    def mode(self) -> str:
        """What the handler's effects are given: the name of the mode, as in the documentation."""
        return inbox.NAME if self._required_handler().takes_transaction else claims.NAME

    def _required_handler(self) -> Handler:
        if self._handler is None:
            raise ConfigurationError.of("Reader", ["no handler is given: decorate a function with @reader.handler"])
        return self._handler

    def dead_letters(self) -> Reader:
        """A reader of the dead letters that this one wrote, for when their reason is mended: the same store and handler.

        Each letter is handled once, also where it was written twice, under the idempotency key of its event. It is a group of
        its own (``{group}.dead-letter``); what fails again goes to ``{letter topic}.again``, and ``dead_letters()`` of this
        reader handles that. The two do not run at the same time. Raises ConfigurationError where there are no dead letters.
        """
        self._required_handler()
        if self._settings.dead_letters is None:
            raise ConfigurationError.of("Reader.dead_letters", ["this reader writes none: dead_letters is None"])
        reader = copy.copy(self)
        reader._settings = self._settings.of_dead_letters()  # noqa: SLF001
        reader._stops = Stops()  # noqa: SLF001
        return reader

    # --------------------------------------------------------------------------------------------------------- running

    def run(self, *, until_end: bool = False, progress: bool = False) -> bool:
        """Handles events until ``stop()``, SIGINT or SIGTERM; with ``until_end`` until all there is now is handled.

        Returns whether it ended because all was handled: False behind ``stop()`` or a signal, and always without ``until_end``.
        What stands behind the last stable offset is not there yet: it is not waited for.
        With ``until_end`` a member of a group stands by until the others have handled what is in their partitions.
        Every ten seconds and at the end it logs how much it did (``onceflow.reader``, INFO); ``progress`` prints that as well.
        On a thread other than the main one signals are left alone. Raises StoreError, KafkaError, ReaderError.
        """
        stop = self._stops.begin()  # before a signal can come that is for this run
        # Not entered, the runner makes its loop when a handler needs one: inside of a running loop it could not end it.
        with self._ended_by_signals(), closing(asyncio.Runner()) as runner:
            return self._run(runner.run, stop, until_end=until_end, progress=progress)

    async def run_async(self, *, until_end: bool = False, progress: bool = False) -> bool:
        """As ``run``, within a running event loop: asyncio handlers run on it, the rest on a thread. Cancelling stops it.

        Cancelled, it raises when the thread has ended: CancelledError, or the error that ended the reader. Await it to its end: a
        loop that is closed before ends the reader with ReaderError, in the log.
        """
        stop = self._stops.begin()
        loop = asyncio.get_running_loop()
        run = partial(self._run, OnLoop(loop), stop, until_end=until_end, progress=progress)
        # Not one of the loop's own threads: a handler that waits for those (``asyncio.to_thread``, a host's name) would wait for
        # ever where readers have them all.
        thread = ThreadPoolExecutor(1, "onceflow-reader")
        work = loop.run_in_executor(thread, contextvars.copy_context().run, run)
        thread.shutdown(wait=False)  # when that has ended
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await ended(work)
            work.result()
            raise

    def stop(self) -> None:
        """Ends ``run`` after the batch in hand; before the first one has begun it ends that, and behind the end of one nothing.

        May be called from any thread.
        """
        self._stops.set()

    def _run(self, run_coroutine: RunCoroutine, stop: StopFlag, *, until_end: bool, progress: bool) -> bool:
        try:
            handler = self._required_handler()
            if not self._running.acquire():
                mistake = (
                    "it runs already, or another reader does that has the same store object, as that of its dead letters has: "
                    "let one end first, or give each a store of its own"
                )
                raise ConfigurationError.of("Reader.run", [mistake])
            try:
                return self._run_alone(handler, run_coroutine, stop, until_end=until_end, progress=progress)
            finally:
                self._running.release()
        finally:
            self._stops.over(stop)

    def _run_alone(
        self, handler: Handler, run_coroutine: RunCoroutine, stop: StopFlag, *, until_end: bool, progress: bool
    ) -> bool:
        handler.run_coroutine = run_coroutine
        settings, store = self._settings, self._store
        try:
            patiently(self._check_topics, settings, stop)
            patiently(lambda: store.open(settings.group, settings.retention), settings, stop)
        except Stopped:
            log.info("ended before its brokers and its store had answered")
            return False
        try:
            tally = Tally(_printed if progress else log.info)
            leases = Leases(store, settings.lease_s)
            fence = Fence(store, settings.session_timeout_s)
            mode = self._mode(handler, tally, leases, fence)
            owner = f"{socket.gethostname()}-{os.getpid()}"
            rebuilder = Rebuilder(settings, mode.book, stop)
            assignment = Assignment(settings, store, owner, rebuilder, stop, self._on_step, mode.settle)
            loop = Loop(settings, store, mode, assignment, stop, self._on_step, tally, fence)
            with leases, collector.seldom(settings.batch_size * _OBJECTS_PER_EVENT):
                is_at_end = loop.run(until_end=until_end)
            tally.tell("ended" if is_at_end or not until_end else "ended before all was handled")
            return is_at_end
        finally:
            store.close()

    def _mode(self, handler: Handler, tally: Tally, leases: Leases, fence: Fence) -> Inbox | Claims:
        if handler.takes_transaction:
            return Inbox(self._store, handler, self._on_step, tally)
        return Claims(self._store, handler, self._on_step, leases, tally, fence)

    def _check_topics(self) -> None:
        admin = ClusterAdmin(self._settings.cluster, patience_s=self._settings.answer_s)
        missing = admin.missing(self._settings.topics, needed="READ")
        if missing:
            raise TopicMissing(
                f"topics that do not exist: {', '.join(missing)}",
                action=f"create them, or correct the names; {meant(missing, admin.partitions())}",
                topics=tuple(missing),
            )

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # What a host that is written in C has set could not be put back, and is left alone.
        ours = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in ours}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)


def _printed(text: str) -> None:
    log.info(text)
    print(text, file=sys.stderr, flush=True)


def _opened(store: str | Store, checker: Checker) -> Store | None:
    if not isinstance(store, str):
        lacking = [name for name in _STORE_METHODS if not callable(getattr(store, name, None))]
        if lacking:
            checker.mistakes.append(
                f"store must be a URL ({', '.join(FORMS)}) or a store, not {store!r}, which has no {', '.join(lacking)}"
            )
        return store
    try:
        return open_store(store)
    except ConfigurationError as error:
        checker.mistakes += error.fields["mistakes"]
        return None
