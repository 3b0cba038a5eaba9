"""A Python worker is caught in the middle of its write, and frozen there: what befalls an idle one befalls nothing.

An idle worker is connected to its executor alone, one that writes to a broker as well. The write of a small batch lasts some ten
milliseconds, and the kernel takes longer to say who is connected to whom. So what is looked at, again and again, is whether a
worker has other sockets than when it was idle; and it is frozen before it is asked to whom they lead::

    worker   is seen to write; ends its task, and waits for the next one
    fault    comes upon a worker that has nothing to do

    worker   is connected to its broker, and has sent nothing yet
    fault    freezes it until its transaction is given up; but none is open, and when it wakes it is no zombie
"""

from __future__ import annotations

import signal
import time
from random import Random
from typing import TYPE_CHECKING

from onceflow.verify.cluster import processes
from onceflow.verify.cluster.transaction_log import ONGOING, entry_of

if TYPE_CHECKING:
    from onceflow.verify.running.world import World

_BATCHES = 5
_PATIENCE_S = 300.0
_LOOK_AGAIN_S = 0.004


def frozen_at_work(world: World, random: Random, *, in_transaction: bool = False) -> int | None:
    """A Python worker of the driver's executors that stands still (SIGSTOP) in the middle of its write.

    ``in_transaction``: while the transaction is open. None: there was none within some batches, and the world was told. There are
    none where the driver writes by itself.
    """
    lookout = _Lookout(world, random, in_transaction)
    until, deadline = world.driver.course.commits + _BATCHES, time.monotonic() + _PATIENCE_S
    while world.driver.course.commits < until and time.monotonic() < deadline:
        if (pid := lookout.frozen()) is not None:
            return pid
        world.sleep(_LOOK_AGAIN_S)
    world.missed(
        f"no Python worker was seen to write to Kafka{' while a transaction was open' if in_transaction else ''}"
    )
    return None


class _Lookout:
    def __init__(self, world: World, random: Random, in_transaction: bool) -> None:
        assert world.spark is not None
        self._in_transaction = in_transaction
        self._world, self._spark, self._random = world, world.spark, random
        servers = world.kafka.bootstrap_servers.split(",")
        self._brokers = frozenset(int(server.rpartition(":")[2]) for server in servers)
        self._workers: list[int] = []
        self._commits = -1  # when they were looked for
        self._when_idle: dict[int, frozenset[str]] = {}  # the sockets of each

    def frozen(self) -> int | None:
        """One that writes now."""
        return next((pid for pid in self._known() if self._has_changed(pid) and self._stands_at_work(pid)), None)

    def _known(self) -> list[int]:
        """Looked for once a batch, for that takes long: all processes are asked. In any order."""
        if self._world.driver.course.commits != self._commits:
            self._commits = self._world.driver.course.commits
            self._workers = self._spark.python_workers(self._world.driver.pid)
        return self._random.sample(self._workers, len(self._workers))

    def _has_changed(self, pid: int) -> bool:
        return processes.sockets(pid) != self._when_idle.get(pid)

    def _stands_at_work(self, pid: int) -> bool:
        if not processes.freeze(pid):
            return False
        stays = False
        try:
            stays = self._is_at_work(pid) and (not self._in_transaction or self._is_open())
        finally:
            if not stays:
                processes.send(pid, signal.SIGCONT)
        return stays

    def _is_at_work(self, pid: int) -> bool:
        if processes.is_connected(pid, self._brokers):
            return True
        self._when_idle[pid] = processes.sockets(pid)
        return False

    def _is_open(self) -> bool:
        entry = entry_of(self._world.kafka.client, self._world.transactional_id)
        return entry is not None and entry.state == ONGOING
