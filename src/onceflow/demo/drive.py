"""Runs one pipeline to its end, and kills it on the way as planned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onceflow.broker import EmbeddedBroker
from onceflow.demo.assignment import Assignment, Message, Moment, Pipeline, Told
from onceflow.demo.faults import Fault, Injected, Target
from onceflow.demo.process import Worker
from onceflow.demo.progress import Progress
from onceflow.demo.standby import Standby
from onceflow.demo.topics import OUTPUTS, uncommitted
from onceflow.errors import DemoError

_HALF_WRITTEN_TIMEOUT_S = 30
_NOTHING_IN_DOUBT = (Moment.CLAIM_COMMIT, Moment.WRITE, Moment.COMMITTED)
_POLL_S = 0.01


@dataclass(slots=True)
class Run:
    """What happened to one pipeline."""

    pipeline: Pipeline
    injected: list[Injected] = field(default_factory=list)
    batches: set[int] = field(default_factory=set)

    def count(self, target: Target) -> int:
        return sum(1 for each in self.injected if each.fault.target is target)


def workers_needed(plan: Sequence[Fault]) -> int:
    """One more than it kills."""
    return 1 + sum(1 for fault in plan if fault.target is Target.DRIVER)


class Drive:
    """One pipeline, worker after worker. ``run`` is filled as it happens."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        broker: EmbeddedBroker,
        standby: Standby,
        checkpoint: Path,
        progress: Progress,
    ) -> None:
        self.run = Run(pipeline)
        self._broker = broker
        self._standby = standby
        self._checkpoint = checkpoint
        self._progress = progress

    def through(self, plan: Sequence[Fault]) -> Run:
        """Until everything is processed. Raises DemoError if a planned step never comes."""
        worker: Worker | None = None
        for fault in plan:
            assert worker is None, "a worker has one planned step; only the last may survive its own"
            worker = self._begin(fault)
            self._until_held(worker, fault)
            self._inject(worker, fault)
            if fault.target is Target.DRIVER:
                worker = None
        self._until_done(worker or self._begin(None))
        return self.run

    def _begin(self, fault: Fault | None) -> Worker:
        worker = self._standby.take()
        servers, checkpoint = self._broker.bootstrap_servers, str(self._checkpoint)
        worker.assign(Assignment(self.run.pipeline, servers, checkpoint, fault.hold if fault else None))
        return worker

    def _until_held(self, worker: Worker, fault: Fault) -> None:
        while (message := worker.listen()).told is not Told.HELD:
            self._note(message)
            if message.told is Told.DONE:
                raise DemoError(f"all was processed, and the planned step did not come: {fault.text}, {fault.hold}")
        if fault.hold.moment is Moment.COMMITTED:
            self._note(message)

    def _until_done(self, worker: Worker) -> None:
        while (message := worker.listen()).told is not Told.DONE:
            self._note(message)

    def _note(self, message: Message) -> None:
        if message.step == Moment.COMMITTED and message.batch not in self.run.batches:
            self.run.batches.add(message.batch)
            self._progress.batches(len(self.run.batches))

    # ---------------------------------------------------------------------------------------------------------- faults

    def _inject(self, worker: Worker, fault: Fault) -> None:
        hidden = self._hidden(fault)
        self._progress.kill(fault, hidden)
        if fault.target is Target.DRIVER:
            worker.kill()
        else:
            # The driver goes on at once: it meets a broker that is gone, not one that is back already.
            self._broker.kill()
            worker.go()
            self._broker.start()
        self.run.injected.append(Injected(self.run.pipeline, fault, worker.pid, worker.exit_code, hidden))

    def _hidden(self, fault: Fault) -> int:
        """What readers cannot see yet.

        Of a half-written batch not before the broker has a part of it. Where nothing is in doubt, not before the last batch is
        to be seen: a commit is answered before its markers are written.
        """
        topics = OUTPUTS[self.run.pipeline].topics
        deadline = time.monotonic() + _HALF_WRITTEN_TIMEOUT_S
        while True:
            hidden = uncommitted(self._broker.bootstrap_servers, topics)
            waits = hidden == 0 if fault.half_written else hidden > 0 and fault.hold.moment in _NOTHING_IN_DOUBT
            if not waits:
                return hidden
            if time.monotonic() > deadline:
                if not fault.half_written:
                    return hidden
                raise DemoError(f"half of batch {fault.hold.batch} should be written, and nothing of it came")
            time.sleep(_POLL_S)
