"""Faults of the checkpoint: what a file system forgets when its writes were not synchronised before the power went (F12, F13).

The driver is down meanwhile, as it is when the machine went down with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from onceflow.transaction.source_ends import readings_agree
from onceflow.verify.recording.ends import committed_of
from onceflow.verify.running.world import planned_offsets

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

STATELESS = "stateless plan"
_EMPTIED = 0.3
_START_S = 120.0


@dataclass(frozen=True, slots=True)
class LoseCommitLog:
    """The newest entry of Spark's commit log is gone, or its content is: Spark runs a batch again that Kafka has committed.

    Spark does not start on an empty entry, and says so. What an operator does then is to remove it; so does this. What was
    planned after that batch was written later, and is lost with it; if it stood there still, Spark would take the batch for
    committed, and a stateful query would stop, because it finds no trace of the batch's state.

    It takes a batch that wrote something::

        driver   batch 38 finds nothing but records of aborted transactions, and writes none
        fault    commits/38 is lost; an engine without defence runs the batch again, writes none again, and passes for a good one
        driver   commits/40 is written, and it is killed before it tells how much that batch wrote: it is spared as well

    Of an engine whose output is no transaction what the lost plan had written stays, and is the output of no batch::

        driver   Spark's own sink has written totals of batch 85, up to where that was planned; it is killed
        fault    commits/84 is lost, and offsets/85 with it
        driver   84 is run again (duplicated), and 85 planned anew, over more input: the first totals are phantoms

    One of a plan with state that Kafka has committed must stay: Spark would plan it anew, and only a resume with empty state
    were left, which leaves nothing to judge. Without state the pipeline may refuse what is planned anew, and is resumed::

        driver   Kafka has committed batch 8; it is killed before Spark writes commits/8: that entry is as good as lost
        fault    7 is the newest entry; lost with it is offsets/8
    """

    name: str = "lose-commit-log"
    text: str = "the newest commit log entry of the checkpoint is lost, or empty"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        empties = random.random() < _EMPTIED
        world.driver.await_output(_START_S)
        lacked = world.driver.lacks_committed  # since a fault before this one
        with world.driver.down():
            newest = _newest(world.checkpoint / "commits")
            if newest is None:
                world.missed("the commit log has no entry")
                return
            if unseen := _no_output(world, [newest]):
                world.missed(unseen)
                return
            planned = _from(world.checkpoint / "offsets", int(newest.name) + 1)
            takes_committed = bool(planned) and _is_behind(world, int(newest.name))
            if takes_committed and keeps_state(world.checkpoint):
                world.missed(f"commits/{newest.name} is not that of the newest batch that Kafka has committed")
                return
            world.driver.lacks_committed |= takes_committed or empties
            for entry in planned:
                _change(entry, _gone)
            _change(newest, (lambda path: path.write_bytes(b"")) if empties else _gone)
            world.met(f"{'emptied' if empties else 'lost'} commits/{newest.name}")
        if empties and not world.driver.await_failure_or_batch(_START_S):
            with world.driver.down():
                _change(newest, _gone)
                world.driver.lacks_committed = lacked or takes_committed
                world.note(f"removed the empty commits/{newest.name}")


@dataclass(frozen=True, slots=True)
class LoseOffsets:
    """The newest committed batch is forgotten, and what was planned after it: the checkpoint is older than the progress.

    Spark plans that batch anew, over more input than before. The pipeline must refuse and name the way out, which is to resume
    from the committed offsets; the supervisor takes it. A resumed pipeline begins with empty state, so what a stateful one then
    writes is nothing to judge. Where a resume has to be refused as well, there is no way out, and the checkpoint is spared.
    It takes a batch that wrote something, as ``lose-commit-log`` does, and for the same reason.
    """

    name: str = "lose-offsets"
    text: str = "the newest committed batch is lost from the checkpoint, with all after it"
    needs: tuple[str, ...] = (STATELESS,)

    def inject(self, world: World, random: Random) -> None:  # noqa: ARG002  the interface
        world.driver.await_output(_START_S)
        with world.driver.down():
            newest = _newest(world.checkpoint / "commits")
            if newest is None:
                world.missed("the commit log has no entry")
                return
            lost = _from(world.checkpoint / "offsets", int(newest.name))
            if reason := _no_output(world, lost) or _no_resume(world.checkpoint):
                world.missed(reason)
                return
            for log in ("offsets", "commits"):
                for entry in _from(world.checkpoint / log, int(newest.name)):
                    _change(entry, _gone)
            world.driver.lacks_committed = True
            world.met(f"lost batch {newest.name} of the checkpoint")


@dataclass(frozen=True, slots=True)
class TornCheckpointWrite:
    """The newest entry of the offset log exists and is empty: created, renamed, its content never synchronised.

    Spark cannot start on it and says so; the pipeline must not go on over it. Resuming is the way out, where that is not refused.
    """

    name: str = "torn-checkpoint-write"
    text: str = "the newest offset log entry of the checkpoint is cut off"
    needs: tuple[str, ...] = (STATELESS,)

    def inject(self, world: World, random: Random) -> None:
        with world.driver.down():
            newest = _newest(world.checkpoint / "offsets")
            if newest is None:
                world.missed("the offset log has no entry")
                return
            if refused := _no_resume(world.checkpoint):
                world.missed(refused)
                return
            length = random.choice((0, newest.stat().st_size // 2))
            _change(newest, lambda path: path.write_bytes(path.read_bytes()[:length]))
            world.driver.lacks_committed = True
            world.met(f"cut offsets/{newest.name} to {length} bytes")


CHECKPOINT_FAULTS = (LoseCommitLog(), LoseOffsets(), TornCheckpointWrite())


def keeps_state(checkpoint: Path) -> bool:
    """Whether the plan keeps state, which is lost with its checkpoint."""
    return (checkpoint / "state").exists()


def _no_output(world: World, entries: Sequence[Path]) -> str:
    """Why nobody might see that these batches are written again; empty where somebody would, or nothing is told of outputs."""
    numbers = sorted(int(entry.name) for entry in entries)
    if not world.driver.course.tells_outputs or any(map(world.driver.course.outputs.get, numbers)):
        return ""
    return f"batch {' and '.join(map(str, numbers))} has no output that is known of, so nobody might see it repeated"


def _no_resume(checkpoint: Path) -> str:
    """Why a resume has to be refused that nobody can avoid once the checkpoint is lost; empty if there is no reason.

    The newest batch that is committed is the newest of the commit log, or the one after it::

        offsets/7   two sources over one topic: the first one ends at 100, the second one at 104
        Kafka       keeps one offset of the partition; `onceflow run --resume` says that this cannot tell both, and refuses
    """
    newest = _newest(checkpoint / "commits")
    entries = [] if newest is None else _from(checkpoint / "offsets", int(newest.name))
    differing = [entry.name for entry in entries if not _readings_agree(entry)]
    if not differing:
        return ""
    return (
        f"two readings of a partition end batch {differing[0]} at different offsets, behind which a resume is refused"
    )


def _readings_agree(entry: Path) -> bool:
    """Whether a resume could go on from the ends of this batch; also where a fault has cut its entry off."""
    try:
        return readings_agree(planned_offsets(entry))
    except ValueError:
        return True


def _is_behind(world: World, newest: int) -> bool:
    """Whether Kafka has committed a batch behind the newest one that is noted as done. Spark's own sink commits no progress."""
    if not (world.driver.engine.is_ours or keeps_state(world.checkpoint)):
        return False
    progress = committed_of(world.kafka.direct_servers, world.plan.name).progress
    return progress is not None and progress.next_batch > newest + 1


def _newest(log: Path) -> Path | None:
    """The newest entry of one of Spark's metadata logs."""
    return max(_from(log, 0), key=lambda each: int(each.name), default=None)


def _from(log: Path, batch: int) -> list[Path]:
    """Its entries from a batch on."""
    entries = list(log.iterdir()) if log.exists() else []
    return [each for each in entries if each.name.isdecimal() and int(each.name) >= batch]


def _gone(entry: Path) -> None:
    entry.unlink(missing_ok=True)


def _change(entry: Path, change: Callable[[Path], object]) -> None:
    """With its checksum, which Hadoop's file system keeps beside it."""
    change(entry)
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
