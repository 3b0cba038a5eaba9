"""Bounces by progress, so that none comes when all is done, however slow or fast the machine is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from onceflow.verify.faults.catalog import Fault
from onceflow.verify.recording.ends import ends_of
from onceflow.verify.recording.tables import Place
from onceflow.verify.running.schedule import Gauge, Turn
from onceflow.verify.running.world import committed_end

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

Wait = Callable[[Callable[[], bool]], None]


@dataclass(frozen=True, slots=True)
class ByProgress:
    """One bounce after the other, each when ``step`` of the input (a share) went through since the last one was over.

    A bounce for which nothing is left is not made up for: then too few came, and the run proves nothing. Ends when all of the
    input is through. ``patience_s``: for each of these steps; a pipeline that makes no progress at all is given up before.
    """

    bounces: tuple[Fault, ...]
    step: float
    seed: str
    patience_s: float

    @property
    def text(self) -> str:
        return f"{len(self.bounces)} times, each after {self.step:.0%} more of the input"

    def await_start(self, world: World) -> None:
        """At once: the input is all there, and goes by."""

    def gauge(self, world: World) -> Gauge:
        through = Through.of(world)
        return Gauge(100, "%", lambda: 100 * through())

    def due(self, world: World, faults: Sequence[Fault]) -> Iterator[Turn]:  # noqa: ARG002  it has its own
        wait = partial(world.wait_for, what="the pipeline reads more of its input", patience_s=self.patience_s)
        return self.turns(Through.of(world), wait, world.note)

    def turns(self, through: Callable[[], float], wait: Wait, note: Callable[[str], None]) -> Iterator[Turn]:
        """``through`` is the share of the input that was processed, 1 for all of it."""
        last = 0.0
        for bounce in self.bounces:
            due = min(last + self.step, 1.0)
            wait(lambda due=due: through() >= due)  # type: ignore[misc]
            if (share := through()) >= 1:
                return
            note(f"{share:.0%} of the input is through")
            yield Turn(0.0, bounce, self.seed)
            last = through()
        wait(lambda: through() >= 1)

    def lack(self, injected: int) -> str:
        if injected >= len(self.bounces):
            return ""
        return (
            f"{injected} of {len(self.bounces)} bounces came before the input was through: give it more with --messages"
        )


@dataclass(frozen=True, slots=True)
class Through:
    """How much of an input that does not grow any more is processed: the share of its offsets in committed batches."""

    ends: Mapping[Place, int]
    checkpoint: Path

    @classmethod
    def of(cls, world: World) -> Through:
        rows = ends_of(world.kafka.direct_servers, world.topics_in).to_pylist()
        return cls({(row["topic"], row["partition"]): row["end"] for row in rows}, world.checkpoint)

    def __call__(self) -> float:
        done = committed_end(self.checkpoint) or {}
        return sum(min(done.get(at, 0), end) for at, end in self.ends.items()) / sum(self.ends.values())
