"""The disk of a Kafka node is full (F14)."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

_PATIENCE_S = 120.0
_MOST_MORE_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class FullDisk:
    """Writes of one node fail, the first one perhaps in its middle; then there is room again and the node is started.

    It stands for a disk without room: no file may grow beyond a size (RLIMIT_FSIZE of the running process, which needs no
    rights), so ``write`` stores what still fits and fails from then on. Java ignores the signal that comes with it. The size is
    the present one of a log of the pipeline's output and a few bytes more: the record batch that passes it is torn, and
    cut off when the node recovers its log. Kafka shuts a node down whose only log directory fails.
    """

    name: str = "full-disk"
    text: str = "a broker's disk is full in the middle of a write; later there is room and it is started again"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        topic = random.choice(world.topics_out)
        node = world.kafka.leader(topic, 0)
        pid = node.pid
        assert pid is not None
        limit = _size_of_log(node.directory, topic) + random.randint(1, _MOST_MORE_BYTES)
        set_file_size_limit(pid, limit)
        world.note(f"no file of node {node.id} may grow beyond {limit} bytes")
        world.wait_for(lambda: not node.is_running, "the node gives up", _PATIENCE_S)
        world.note(f"node {node.id} gave up, the log of {topic}-0 has {_size_of_log(node.directory, topic)} bytes")
        world.kafka.heal()


def set_file_size_limit(pid: int, limit: int) -> None:
    """No file that the process writes may grow beyond ``limit`` bytes from now on. Linux."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))


def _size_of_log(directory: Path, topic: str) -> int:
    """The size of the newest segment of the topic's first partition."""
    segments = sorted((directory / "data" / f"{topic}-0").glob("*.log"))
    return segments[-1].stat().st_size


DISK_FAULTS = (FullDisk(),)
