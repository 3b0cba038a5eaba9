"""A world without Spark for the faults of brokers and network: the production protocol writes batches until it is told to end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.light import Job, LightDriver, records_of
from tests.faults.support import eventually
from tests.new_topics import create

from onceflow.errors import Fenced
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.requests import transactional_id
from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.running.world import World

PATIENCE_S = 240.0
PARTITIONS = 3
_numbers = itertools.count()


class Steady:
    """Works on a thread of its own until it is told to end; ``done`` counts what it has done, ``failure`` is why it stopped."""

    def __init__(self) -> None:
        self.done = 0
        self.failure: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)  # a test that fails may not end it

    def _work(self) -> None:
        """Goes on until ``_ending`` is set."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  the test must hear of it
            self.failure = error

    def goes_on(self, times: int = 2) -> None:
        """Waits until it has done some more."""
        wanted = self.done + times
        eventually(lambda: self.done >= wanted or self.failure is not None, bool, "more of it", PATIENCE_S)
        assert self.failure is None, self.failure

    def ends(self) -> None:
        """Waits until its thread has ended, behind what it does now."""
        self._ending.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.failure is None, self.failure


class SteadyDriver(Steady):
    """Writes one batch after the other."""

    def __init__(
        self, cluster: KafkaCluster, directory: Path, timeout_ms: int = 60_000, request_timeout_ms: int = 5_000
    ) -> None:
        super().__init__()
        self.name = f"steady-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": cluster.direct_servers, "log_level": 0})
        create(admin, NewTopic(self.name, PARTITIONS), PATIENCE_S)
        options = {"request_timeout_ms": request_timeout_ms}
        checkpoint = str(directory / self.name)
        job = Job(cluster.bootstrap_servers, self.name, self.name, checkpoint, timeout_ms=timeout_ms)
        self._driver = LightDriver(
            Job(**{**_fields(job), "patience_s": PATIENCE_S, "max_attempts": 1000, "options": options})
        )
        self.fenced = 0
        self._thread.start()

    @property
    def batches(self) -> int:
        """How many it has committed."""
        return self.done

    def _work(self) -> None:
        while not self._ending.is_set():
            self._live()

    def _live(self) -> None:
        """One life of the driver; whoever is fenced by a stranger is started again by its supervisor."""
        coordinator = self._driver.open()
        try:
            while not self._ending.is_set():
                self._driver.run_batch(coordinator, self.done)
                self.done += 1
        except Fenced:
            self.fenced += 1
        finally:
            self._driver.close()

    @property
    def steps(self) -> list[str]:
        return [step for step, _ in self._driver.steps]

    def end(self) -> list[tuple[str, str]]:
        """Ends after the running batch; what it has written in all."""
        self.ends()
        return [record for batch in range(self.batches) for record in records_of(batch)]


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__slots__}


@dataclass
class BareWorld:
    """What faults of brokers and network use of a ``World``."""

    kafka: KafkaCluster
    driver: SteadyDriver | None = None
    notes: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    struck_after: int = 0  # so many sleeps

    @property
    def driver_of_batches(self) -> SteadyDriver:
        assert self.driver is not None
        return self.driver

    @property
    def transactional_id(self) -> str:
        return transactional_id(self.driver_of_batches.name)

    @property
    def topics_out(self) -> tuple[str, ...]:
        return (self.driver_of_batches.name,)

    topics_in = topics_out

    def note(self, text: str) -> None:
        self.notes.append(text)

    def missed(self, text: str) -> None:
        self.note(text)
        self.misses.append(text)

    def strikes_now(self) -> None:
        self.struck_after = len(self.slept)

    def wait_for(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        eventually(condition, bool, what, max(patience_s, PATIENCE_S))

    def sleep(self, seconds: float) -> None:
        """The time for which a fault lasts, or waits."""
        self.slept.append(seconds)
        time.sleep(seconds)

    def as_world(self) -> World:
        return cast(World, self)


def leaders(client: KafkaClient, topic: str) -> dict[int, int]:
    return dict(client.topics([topic], refresh=True)[topic].leaders)
