"""A reader in a process of its own, to be killed or stopped: real Kafka, a real store, effects that are rows of a ledger.

Run as a program with a Job as JSON. It stops itself at a step where the job says so: SIGKILL and SIGSTOP hit between two effects,
not somewhere near.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from onceflow.errors import OnceflowError
from onceflow.reader import assignment, closing, loop
from onceflow.reader.event import Event, event_of
from onceflow.reader.reader import Reader
from onceflow.reader.steps import Step
from onceflow.reader.stores.interface import Ownership, Store


@dataclass(frozen=True, slots=True)
class Job:
    """What a light reader does. ``interrupt`` is (step, how often before, signal). ``ledger`` is where effects go.

    ``mode``: ``inbox`` (effects through the transaction), ``redis`` (the same, in a list named as the topic, and who did it in a
    set), ``claims`` (effects in a database of their own), or an undefended one: ``apart`` (effects in the store's file, but
    committed by themselves), ``ahead`` (a plain consumer that commits its offsets before it handles the events).
    ``form`` of the handler: of one ``event`` or of a ``batch``, ``async`` (of one event, on a loop of the reader's own), or
    ``run_async`` (the same on a loop that runs already). Besides the reader's own steps it can be interrupted at ``EFFECT``
    and at ``TAKE``.
    """

    bootstrap_servers: str
    topic: str
    group: str
    store: str
    ledger: str
    mode: str = "inbox"
    form: str = "event"
    interrupt: tuple[str, int, int] | None = None
    until_end: bool = True
    poison: str | None = None
    held_up_s: float | None = (
        None  # how long a unit that stands still holds up whoever comes next, if not as long as usual
    )
    fails_until: str | None = None  # a file, until whose coming the handler fails for the poison and all behind it
    offsets_every_s: float | None = None  # how often Kafka is told, if not as often as usual
    mark: str = "?"  # how the ledger's database marks a parameter
    waits_for: str | None = None  # a file, until whose coming a handler of claims goes on behind its effect
    options: dict[str, Any] = field(default_factory=dict)


TAKE = "take"  # one partition is taken in the store, and those that came with it are not
EFFECT = "effect"  # inside of the handler: one effect is there, and what else the handler has to do is not done


class Interrupter:
    """Sends this process the job's signal when the step has come that often."""

    def __init__(self, job: Job) -> None:
        self._wanted = job.interrupt
        self._counts: Counter[str] = Counter()

    def __call__(self, step: Step) -> None:
        self.at(step.value)

    def at(self, name: str) -> None:
        self._counts[name] += 1
        if self._wanted and (name, self._counts[name]) == (self._wanted[0], self._wanted[1] + 1):
            print(json.dumps({"stops_at": name}), flush=True)
            os.kill(os.getpid(), self._wanted[2])


def store_of(job: Job) -> str | Store:
    """Imports what the job needs: a client of PostgreSQL alone is as much as all the rest, in each of hundreds of processes."""
    if job.held_up_s is None:
        return job.store
    if job.store.startswith("postgresql"):
        from onceflow.reader.stores.postgresql import PostgresqlStore

        return PostgresqlStore(job.store, takeover_s=job.held_up_s)
    from onceflow.reader.stores.sqlite import SqliteStore

    return SqliteStore(job.store.removeprefix("sqlite:///"), busy_timeout_s=job.held_up_s)


def make_reader(job: Job) -> Reader:
    """The job's reader; its handler writes one row per event: who handled it, and which."""
    if job.offsets_every_s is not None:
        loop.OFFSETS_EVERY_S = job.offsets_every_s
    interrupter = Interrupter(job)
    reader = Reader(
        job.topic,
        group=job.group,
        store=store_of(job),
        bootstrap_servers=job.bootstrap_servers,
        on_step=interrupter,
        **{"backoff_s": 0.01, **job.options},
    )
    take_one_by_one(reader, job, interrupter)
    effect = effect_of(job)

    def book(event: Event, tx: Any) -> None:
        effect(event, tx)
        interrupter.at(EFFECT)

    reader.handler(batch=job.form == "batch")(in_form(book, job))
    return reader


def take_one_by_one(reader: Reader, job: Job, interrupter: Interrupter) -> None:
    """So that it can be interrupted in between."""
    take = reader._store.take

    def first_and_others(topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:
        if topic != job.topic:  # what else the store keeps by that call
            return take(topic, partitions, owner)
        first = take(topic, partitions[:1], owner)
        interrupter.at(TAKE)
        return [*first, *take(topic, partitions[1:], owner)]

    if job.interrupt and job.interrupt[0] == TAKE:
        reader._store.take = first_and_others  # type: ignore[method-assign]


Book = Callable[[Event, Any], None]


def effect_of(job: Job) -> Book:
    """What the handler does with one event, in the mode's place; the transaction is None where it has none."""
    if job.mode == "inbox":
        return lambda event, tx: write(tx, event, job)
    if job.mode == "redis":
        return lambda event, tx: push(tx, event, job)
    ledger = sqlite3.connect(job.ledger, isolation_level=None, timeout=60, check_same_thread=False)

    def elsewhere(event: Event, _: Any) -> None:
        write(ledger, event, job)
        while job.waits_for and not Path(job.waits_for).exists():
            time.sleep(0.02)

    return elsewhere


def in_form(book: Book, job: Job) -> Callable[..., Any]:
    """The handler: of two parameters where the mode has a transaction, else of one."""

    def of_a_batch(events: Sequence[Event], tx: Any) -> None:
        for event in events:
            book(event, tx)

    async def of_asyncio(event: Event, tx: Any) -> None:
        await asyncio.sleep(0)
        book(event, tx)
        await asyncio.sleep(0)

    forms: dict[str, Callable[..., Any]] = {
        "event": book,
        "batch": of_a_batch,
        "async": of_asyncio,
        "run_async": of_asyncio,
    }
    handler = forms[job.form]
    return handler if job.mode in ("inbox", "redis") else partial(handler, tx=None)


def _is_poison(text: str, job: Job) -> bool:
    if job.fails_until is None:
        return text == job.poison
    return int(text) >= int(job.poison or 0) and not Path(job.fails_until).exists()


def text_of(event: Event, job: Job) -> str:
    """What is booked; the job's poison cannot be."""
    text = (event.value or b"").decode()
    if _is_poison(text, job):
        raise ValueError(f"cannot book {text}")
    return text


def write(connection: Any, event: Event, job: Job) -> None:
    """The effect."""
    text = text_of(event, job)
    statement = {
        "?": "INSERT INTO ledger (event, pid) VALUES (?, ?)",
        "%s": "INSERT INTO ledger (event, pid) VALUES (%s, %s)",
    }
    connection.execute(statement[job.mark], (text, os.getpid()))


def push(tx: Any, event: Event, job: Job) -> None:
    """The effect in Redis."""
    tx.rpush(job.topic, text_of(event, job))
    tx.sadd(f"{job.topic}:pids", os.getpid())


async def run_on_a_loop(reader: Reader, job: Job) -> None:
    """A loop leaves SIGTERM to its host."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reader.stop)
    await reader.run_async(until_end=job.until_end)


def run_ahead(job: Job) -> None:
    """The undefended consumer, up to the end of partition 0."""
    step = Interrupter(job)
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap_servers,
            "group.id": job.group,
            "group.instance.id": job.options["group_instance_id"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([job.topic])
    ledger = sqlite3.connect(job.ledger, isolation_level=None, timeout=60)
    _, end = consumer.get_watermark_offsets(TopicPartition(job.topic, 0), timeout=60)
    handled = -1
    while handled < end - 1:
        messages = consumer.consume(job.options["batch_size"], 60)
        consumer.commit(asynchronous=False)
        step(Step.OFFSETS)
        for message in messages:
            write(ledger, event_of(message, ""), job)
            handled = message.offset() or 0
    consumer.close()


def take_time_to_end() -> None:
    """On a busy machine an answer may take longer than a reader that is to end waits for: its last events would come again."""
    assignment.LAST_WORD_S = closing.CLOSE_S = 60.0


def main() -> int:
    given = json.loads(sys.argv[1])
    given["interrupt"] = given["interrupt"] and tuple(given["interrupt"])
    job = Job(**given)
    try:
        if job.mode == "ahead":
            run_ahead(job)
        elif job.form == "run_async":
            asyncio.run(run_on_a_loop(make_reader(job), job))
        else:
            make_reader(job).run(until_end=job.until_end)
    except OnceflowError as error:
        print(json.dumps({"error": error.code, "message": error.message}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    take_time_to_end()
    sys.exit(main())
