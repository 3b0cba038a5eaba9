"""One driver process of a pipeline, from its launch to its end, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from onceflow.verify.engines.lines import Message, Told
from onceflow.verify.running.group import ProcessGroup
from onceflow.verify.running.timeline import Open


@dataclass(slots=True)
class Life:
    """One process, and what is known of it."""

    generation: int
    process: ProcessGroup | None = None
    name: str = ""  # of one that is no driver
    launched_s: float = 0.0  # when, on the timeline
    open: Open | None = None  # its bar on the timeline, from the order to run
    told: Message | None = None
    held: Message | None = None  # where it waits, until it is let go
    ended: bool = False
    learned: bool = False  # what its end means for the next one
    judged: bool = False  # its end was looked at, and is told once at most
    killed: bool = False  # by us
    jvm_killed: bool = False  # by us, and the rest of it is to end by itself
    stopped: bool = False  # by us, some time, and whoever supervises it may have killed it for that
    asked_to_end: bool = False  # and to be followed by another
    finished: bool = False  # in order
    failure: Message | None = None
    batches: int = 0
    committed: int = -1  # the newest batch that it told to be committed
    first_seen: dict[int, float] = field(default_factory=dict)  # when each batch's first step came

    @property
    def running(self) -> ProcessGroup:
        assert self.process is not None
        return self.process

    @property
    def title(self) -> str:
        return self.name or (f"driver {self.generation}" if self.generation else "the standby")

    @property
    def is_warm(self) -> bool:
        return not self.ended and self.told is not None and self.told.told is Told.READY

    def is_held_at(self, step: str) -> bool:
        return self.held is not None and self.held.step == step
