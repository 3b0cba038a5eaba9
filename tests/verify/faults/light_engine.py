"""An engine without Spark that commits with the production protocol: ``python light_engine.py PLAN``.

It speaks the engines' lines. The plan's ``[spark]`` table names cluster, pipeline, topic and the transaction's timeout, and a
variant, if it shall be one: it lacks a defence (one of the simulator's, ``UNFENCED``, ``BY_NOTES``, ``BY_LOG``) or none
(``NOTES_LATE``, ``KEEPS_LOG``).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import tomllib
from contextlib import suppress
from functools import partial
from pathlib import Path

import tests.faults.light
from tests.faults.light import Job, LightDriver, write_whole

from onceflow.errors import OnceflowError
from onceflow.transaction.progress import OnMismatch
from onceflow.transaction.protocol import Settings
from onceflow.verify.engines.conversation import Conversation
from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.simulator.variants import VARIANTS

PATIENCE_S = 120.0
UNFENCED = "a name of its own"
"""Each start takes a name that no other has, and with it a transactional id: all else is as ever, but nobody is fenced.

Nor is there any progress of the one before it. Where it begins, its checkpoint alone says.
"""
NOTES_LATE = "notes late"
"""It notes that a batch is done when it has committed the next one: whenever it is killed, the note is a batch behind."""
BY_NOTES = "a name of its own, and notes late"
"""Where it begins that note alone says, as with a consumer whose offsets are committed now and then."""
KEEPS_LOG = "a log"
"""It has an entry for each batch that it has committed, in the directory of Spark's offset log, and begins behind the newest one
that it can read."""
BY_LOG = "a name of its own, and a log"
"""Where it begins that log alone says."""


class Telling(LightDriver):
    """Tells each step, and waits where it is told to."""

    def __init__(self, job: Job, conversation: Conversation) -> None:
        super().__init__(job)
        self._conversation = conversation

    def step(self, step: str, batch_id: int) -> None:
        super().step(step, batch_id)
        self._conversation.step(step, batch_id)


class TellingLate(Telling):
    def note_done(self, batch_id: int) -> None:
        super().note_done(batch_id - 1)


class TellingInALog(Telling):
    def note_done(self, batch_id: int) -> None:
        entry = self._log / str(batch_id)
        entry.parent.mkdir(exist_ok=True)
        write_whole(entry, json.dumps({"next": batch_id + 1}))

    def done(self) -> int:
        return max((self._next(entry) for entry in self._log.glob("[0-9]*")), default=0)

    @property
    def _log(self) -> Path:
        return Path(self.job.checkpoint).with_name("offsets")

    @staticmethod
    def _next(entry: Path) -> int:
        """What comes behind it; the beginning, where it is cut off."""
        with suppress(ValueError):
            return int(json.loads(entry.read_text())["next"])
        return 0


DRIVERS = {
    NOTES_LATE: TellingLate,
    BY_NOTES: TellingLate,
    KEEPS_LOG: TellingInALog,
    BY_LOG: TellingInALog,
}


def main() -> int:
    plan = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    table = plan["spark"]
    name = without(table["variant"], table["name"])
    checkpoint = str(Path(plan["checkpoint"]) / "done")
    job = Job(
        table["servers"], name, table["topic"], checkpoint, timeout_ms=int(table["timeout_ms"]),
        patience_s=PATIENCE_S, max_attempts=1000, options={"request_timeout_ms": 5_000},
    )  # fmt: skip
    conversation = Conversation()
    conversation.tell(Message(Told.READY))
    conversation.wait_for_run()
    stopped = threading.Event()
    conversation.on_stop(stopped.set)
    conversation.tell(Message(Told.STARTED))
    driver = DRIVERS.get(table["variant"], Telling)
    try:
        run(driver(job, conversation), conversation, stopped)
    except OnceflowError as error:
        conversation.tell(Message(Told.FAILED, code=error.code, error=str(error)))
        return 1
    conversation.tell(Message(Told.FINISHED))
    return 0


def without(variant: str, name: str) -> str:
    """Takes the variant's defence from all light drivers of this process. The name under which it commits."""
    light = vars(tests.faults.light)
    if variant in {UNFENCED, BY_NOTES, BY_LOG}:
        light["Settings"] = partial(Settings, allowed=OnMismatch.RESTART)
        return f"{name}-{os.getpid()}"
    if variant not in {"", NOTES_LATE, KEEPS_LOG}:
        light["Protocol"] = VARIANTS[variant].machine
    return name


def run(driver: Telling, conversation: Conversation, stopped: threading.Event) -> None:
    """One batch after the other, from where its checkpoint ends."""
    coordinator = driver.open()
    try:
        batch_id = driver.done()
        while not stopped.is_set():
            driver.run_batch(coordinator, batch_id)
            conversation.tell(Message(Told.COMMITTED, batch=batch_id))
            batch_id += 1
    finally:
        driver.close()


if __name__ == "__main__":
    sys.exit(main())
