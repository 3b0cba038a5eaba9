"""The production engine without one of its defences: ``python sabotaged.py DEFENCE PLAN``. For tests alone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast

from confluent_kafka import Producer

from onceflow import session
from onceflow.config import load
from onceflow.transaction import protocol, session_check
from onceflow.transaction.asking import Asking
from onceflow.transaction.messages import End, Event, Identity, ProgressRead, Stored
from onceflow.transaction.progress import WRITE, Batch, Decision, OnMismatch, Progress, Verdict, decide
from onceflow.transaction.questions import At
from onceflow.transaction.talk import Talk
from onceflow.verify.engines.onceflow import run_plan
from onceflow.verify.engines.serving import serve

APART_S = 1.0  # for which each batch is half there: some looks of the watcher


def without_skip() -> None:
    """A batch that is committed already is written again."""

    def careless(progress: Progress, batch: Batch, allowed: OnMismatch) -> Decision:
        decision = decide(progress, batch, allowed)
        return WRITE if decision.verdict is Verdict.SKIP else decision

    vars(protocol)["decide"] = careless


def without_refusal() -> None:
    """A checkpoint that does not continue the committed progress is taken up as it is."""

    def careless(progress: Progress, batch: Batch, allowed: OnMismatch) -> Decision:
        return decide(progress, batch, OnMismatch.RESTART)

    vars(protocol)["decide"] = careless


def without_unity() -> None:
    """The offsets of a batch are committed before its transaction, whose end then has nothing but the progress for the group."""
    store = Asking.store

    def apart(
        asking: Asking, identity: Identity, progress: Progress, source: Mapping[At, int], read: ProgressRead | None
    ) -> Talk[Event]:
        for question in asking.questions.plain_offsets(source):
            yield from asking.ask(question)
        time.sleep(APART_S)
        return (yield from store(asking, identity, progress, {}, read))

    setattr(Asking, "store", apart)  # noqa: B010  mypy forbids the assignment


def without_a_commit() -> None:
    """The second batch is aborted, and taken for committed."""
    commit = protocol.TRANSITIONS[protocol.State.STORE, Stored]

    def careless(settings: protocol.Settings, context: protocol.Context, event: Stored) -> protocol.Step:
        moved, effect = commit(settings, context, event)
        assert isinstance(effect, End)
        assert context.batch is not None
        return moved, replace(effect, commit=context.batch.id != 1)

    protocol.TRANSITIONS[protocol.State.STORE, Stored] = careless


def without_isolation() -> None:
    """What is read may be aborted, and is, now and then."""
    cast(dict[str, str], session.SOURCE_DEFAULTS)["kafka.isolation.level"] = "read_uncommitted"
    vars(session_check)["_isolation"] = lambda frame: []


def without_progress() -> None:
    """The fourth batch is never done with, and nobody is told why."""
    audit, batches = Asking.audit, count()

    def stands_still(asking: Asking, identity: Identity, counts: Mapping[At, int]) -> Talk[Event]:
        if next(batches) == 3:
            threading.Event().wait()
        return audit(asking, identity, counts)

    setattr(Asking, "audit", stands_still)  # noqa: B010  mypy forbids the assignment


def without_an_end(*, of_input: bool = False) -> None:
    """Another producer of the engine's writes behind the first batch, or into its input, and never ends its transaction."""
    audit, left = Asking.audit, list[Producer]()
    plan = load(Path(sys.argv[1]), {}).plan

    def leave(target: At) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": plan.kafka.bootstrap_servers,
                "transactional.id": "left open",
                "transaction.timeout.ms": 900_000,
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(target[0], "left open", partition=target[1])
        assert producer.flush(60) == 0
        return producer

    def and_leaves(asking: Asking, identity: Identity, counts: Mapping[At, int]) -> Talk[Event]:
        if not left:
            left.append(leave((plan.source[0].topics[0], 0) if of_input else next(iter(counts))))
        return audit(asking, identity, counts)

    setattr(Asking, "audit", and_leaves)  # noqa: B010  mypy forbids the assignment


DEFENCES: Mapping[str, Callable[[], None]] = {
    "skip": without_skip,
    "refusal": without_refusal,
    "unity": without_unity,
    "commit": without_a_commit,
    "isolation": without_isolation,
    "end": without_an_end,
    "input": partial(without_an_end, of_input=True),
    "progress": without_progress,
}


if __name__ == "__main__":
    DEFENCES[sys.argv.pop(1)]()
    sys.exit(serve(run_plan))
