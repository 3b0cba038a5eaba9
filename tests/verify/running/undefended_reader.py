"""Readers that lack what a Reader has: ``python undefended_reader.py VARIANT JOB``. They speak the lines that engines speak.

===============  =====================================================================================================
``memory``       a Reader whose store goes with its process; effects are rows of a file of their own
``behind``       a plain consumer: effects are committed, and the group's offsets behind them
``ahead``        a plain consumer: the group's offsets are committed, and the effects behind them
``uncommitted``  as ``behind``, and it reads what is not committed as well
``idle``         handles nothing
===============  =====================================================================================================
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import cast

from confluent_kafka import Consumer, KafkaException, Message

from onceflow.reader.event import Event
from onceflow.reader.reader import Reader
from onceflow.reader.steps import Step
from onceflow.verify.digest import content_digest
from onceflow.verify.effects import ledger
from onceflow.verify.effects.job import SESSION_TIMEOUT_S, Job
from onceflow.verify.engines import lines
from onceflow.verify.engines.conversation import Conversation

_RECORDS, _POLL_S = 1000, 0.2


def main() -> int:
    logging.basicConfig(level=logging.INFO)
    variant, job = sys.argv[1], Job.read(Path(sys.argv[2]))
    conversation = Conversation()
    with ledger._opened(Path(job.file)) as effects:
        if variant == "memory":
            run_in_memory(job, conversation, effects)
        else:
            run_plain(variant, job, conversation, effects)
    conversation.tell(lines.Message(lines.Told.FINISHED))
    return 0


def run_in_memory(job: Job, conversation: Conversation, effects: sqlite3.Connection) -> None:
    reader = Reader(
        job.topics,
        group=job.group,
        store="memory:",
        bootstrap_servers=job.servers,
        session_timeout_s=SESSION_TIMEOUT_S,
        on_step=lambda step: conversation.step(step.value, -1),
    )

    @reader.handler
    def count(event: Event) -> None:
        content = content_digest(event.key, event.value, event.headers)
        ledger.insert(effects, (event.topic, event.partition, event.offset), content, os.getpid())

    conversation.on_stop(reader.stop)
    reader.run()


def run_plain(variant: str, job: Job, conversation: Conversation, effects: sqlite3.Connection) -> None:
    stopped = threading.Event()
    conversation.on_stop(stopped.set)
    consumer = Consumer(
        {
            "bootstrap.servers": job.servers,
            "group.id": job.group,
            "isolation.level": "read_uncommitted" if variant == "uncommitted" else "read_committed",
            "session.timeout.ms": int(SESSION_TIMEOUT_S * 1000),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(list(job.topics))
    while not stopped.is_set():
        messages = [each for each in consumer.consume(_RECORDS, _POLL_S) if each.error() is None]
        if messages and variant != "idle":
            handle(variant, consumer, messages, conversation, effects)
    consumer.close()


def handle(
    variant: str, consumer: Consumer, messages: list[Message], conversation: Conversation, effects: sqlite3.Connection
) -> None:
    if variant == "ahead":
        commit(consumer)
    conversation.step(Step.POLLED.value, -1)
    for each in messages:
        headers = cast("list[tuple[str, str | bytes | None]] | None", each.headers())
        content = content_digest(each.key(), each.value(), headers)
        place = (each.topic() or "", each.partition() or 0, each.offset() or 0)
        ledger.insert(effects, place, content, os.getpid())
    conversation.step(Step.COMMITTED.value, -1)
    if variant != "ahead":
        commit(consumer)


def commit(consumer: Consumer) -> None:
    """A zombie is refused, and joins its group again."""
    with suppress(KafkaException):
        consumer.commit(asynchronous=False)


if __name__ == "__main__":
    sys.exit(main())
