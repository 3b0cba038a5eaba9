"""A reader of the output: ``python -m onceflow.verify.effects JOB``. It speaks the lines that engines speak.

It tells each step of its loop, waits behind one where it is told to hold there, and ends in order when it is told to stop. When
its input ends, nobody watches it any more, and it kills itself.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
from pathlib import Path

from onceflow.errors import OnceflowError
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader
from onceflow.reader.steps import Step
from onceflow.verify.digest import content_digest
from onceflow.verify.effects import ledger
from onceflow.verify.effects.by_place import ByPlace
from onceflow.verify.effects.job import PARTITIONS_FOUND_MS, SESSION_TIMEOUT_S, Job
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Message, Told


def main() -> int:
    """Reads until it is told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    conversation = Conversation()
    reader = reader_of(Job.read(Path(sys.argv[1])), conversation)
    conversation.on_stop(reader.stop)
    conversation.tell(Message(Told.STARTED))
    try:
        reader.run()
    except OnceflowError as error:
        conversation.tell(Message(Told.FAILED, code=error.code, error=str(error), lasting=not error.retriable))
        return 1
    conversation.tell(Message(Told.FINISHED))
    return 0


def reader_of(job: Job, conversation: Conversation) -> Reader:
    """Its effect is one row of the ledger, in the transaction that books the event. What it cannot handle ends it."""

    def told(step: Step) -> None:
        conversation.step(step.value, -1)

    reader = Reader(
        job.topics,
        group=job.group,
        store=ByPlace(job.file),
        bootstrap_servers=job.servers,
        session_timeout_s=SESSION_TIMEOUT_S,
        kafka={"metadata.max.age.ms": PARTITIONS_FOUND_MS},
        dead_letters=None,
        on_step=told,
    )

    @reader.handler
    def count(event: Event, tx: sqlite3.Connection) -> None:
        content = content_digest(event.key, event.value, event.headers)
        ledger.insert(tx, (event.topic, event.partition, event.offset), content, os.getpid())

    return reader


if __name__ == "__main__":
    sys.exit(main())
