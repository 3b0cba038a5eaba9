"""The disk of a Kafka node is full (F14), or does not have what the node has acknowledged (F13)."""

from __future__ import annotations

import resource
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.cluster.placement import GROUPS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from onceflow.verify.cluster import Node
    from onceflow.verify.running.encounters import UnderWay
    from onceflow.verify.running.world import World

_PATIENCE_S = 120.0
_MOST_MORE_BYTES = 2_000
_STEP_S = 120.0
# Before these, by engine, all records of a batch are acknowledged, and none of them is committed.
_ACKNOWLEDGED = ("AUDIT", "WRITTEN")
# What coordinators remember: progress, and which transactions are open.
_COORDINATED = (GROUPS_TOPIC, TRANSACTIONS_TOPIC)
# A record batch in a segment begins with its first offset and how many bytes follow.
_PREFIX_BYTES, _ATTRIBUTES_AT, _IS_CONTROL = 12, 21, 0x20


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
        limit = -1
        # It grows until the limit is there.
        while (size := _size_of_log(node.directory, topic)) > limit and node.is_running:
            limit = size + random.randint(1, _MOST_MORE_BYTES)
            set_file_size_limit(pid, limit)
        world.note(f"no file of node {node.id} may grow beyond {limit} bytes")
        world.wait_for(lambda: not node.is_running, "the node gives up", _PATIENCE_S)
        world.note(f"node {node.id} gave up, the log of {topic}-0 has {_size_of_log(node.directory, topic)} bytes")
        world.kafka.heal()


@dataclass(frozen=True, slots=True)
class LoseTail:
    """A node is killed, and its disk does not have the newest batch of its logs: acknowledged, and not yet written to it.

    Of three nodes any one, whenever; of output, input and what coordinators remember: the others have what it lost, and it gets
    that from them. A node that is alone: of the output, while that is not committed yet; what it loses later is lost, which no
    client can prevent. Whoever writes must look for it::

        driver   all records of a batch are acknowledged
        node     killed, and without some of them when it is back
        driver   asks the leaders what they have of the transaction, before it commits
    """

    name: str = "lose-tail"
    text: str = "a broker is killed and loses the newest batch of its logs, which it had acknowledged"
    needs: tuple[str, ...] = ()

    def inject(self, world: World, random: Random) -> None:
        if len(world.kafka.nodes) > 1:
            self._of_several(world, random.choice(world.kafka.nodes))
        else:
            self._alone(world, world.kafka.nodes[0])

    @staticmethod
    def _of_several(world: World, node: Node) -> None:
        """Not started before its session has ended: a leader that is back at once would still lead, with what it has."""
        at = world.driver.under_way
        node.kill()
        world.wait_for(lambda: world.kafka.is_fenced(node), "the others know that it is gone", _PATIENCE_S)
        topics = (*world.topics_in, *world.topics_out, *_COORDINATED)
        _tell(world, node, cut_tails(node.directory, topics, markers_too=True), at)
        world.kafka.heal()

    @staticmethod
    def _alone(world: World, node: Node) -> None:
        step = next((step for step in _ACKNOWLEDGED if step in world.driver.steps), "")
        held = world.driver.hold(step, _STEP_S) if step else None
        if held is None:
            world.missed(f"no batch came to {step or ' or '.join(_ACKNOWLEDGED)}, before which all is acknowledged")
            return
        at = world.driver.under_way
        world.strikes_now()
        node.kill()
        _tell(world, node, cut_tails(node.directory, world.topics_out, markers_too=False), at)
        world.kafka.heal()
        world.driver.go(held)


def _tell(world: World, node: Node, logs: int, at: UnderWay) -> None:
    text = f"node {node.id} was killed and lost the newest batch of {logs} logs"
    if logs:
        world.met(text, at)
    else:
        world.missed(text)


def cut_tails(directory: Path, topics: Iterable[str], *, markers_too: bool) -> int:
    """Cuts the newest batch off the logs of a node that does not run; of how many. A marker's has no records, but an end."""
    logs = [log for topic in topics for log in (directory / "data").glob(f"{topic}-*") if _is_log_of(log, topic)]
    return sum(_cut_tail(max(log.glob("*.log")), markers_too=markers_too) for log in logs)


def _is_log_of(log: Path, topic: str) -> bool:
    """Another topic's name may begin with this one's."""
    return log.name.removeprefix(f"{topic}-").isdecimal()


def _cut_tail(segment: Path, *, markers_too: bool) -> bool:
    log = segment.read_bytes()
    at = newest_batch(log)
    if at is None or (_is_marker(log, at) and not markers_too):
        return False
    with segment.open("r+b") as file:
        file.truncate(at)
    return True


def newest_batch(log: bytes) -> int | None:
    """Where it begins; None in an empty log."""
    at, last = 0, None
    while at + _PREFIX_BYTES <= len(log):
        (size,) = struct.unpack_from(">i", log, at + 8)
        if size <= 0:
            break  # the rest is reserved and not written
        last, at = at, at + _PREFIX_BYTES + size
    return last


def _is_marker(log: bytes, at: int) -> bool:
    (attributes,) = struct.unpack_from(">h", log, at + _ATTRIBUTES_AT)
    return bool(attributes & _IS_CONTROL)


def set_file_size_limit(pid: int, limit: int) -> None:
    """No file that the process writes may grow beyond ``limit`` bytes from now on. Linux."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))


def _size_of_log(directory: Path, topic: str) -> int:
    """The size of the newest segment of the topic's first partition."""
    segments = sorted((directory / "data" / f"{topic}-0").glob("*.log"))
    return segments[-1].stat().st_size


DISK_FAULTS = (FullDisk(), LoseTail())
