"""A topic that is written to in transactions, as a pipeline writes its output, and the verdict on who reads it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer

from onceflow.broker import EmbeddedBroker
from onceflow.verify.effects.job import Job
from onceflow.verify.oracle.expected import RANGES, RECORDS, Expected
from onceflow.verify.oracle.judging import Judgement, judge
from onceflow.verify.recording import Recorded, observe, read_all
from onceflow.verify.recording.tables import last_offsets
from onceflow.verify.result import Happening
from onceflow.verify.running.readers import COMMAND, EffectReaders, effect_readers
from onceflow.verify.running.timeline import Timeline

PATIENCE_S = 240.0
Headers = tuple[tuple[str, str | bytes | None], ...]
ONE_ID: Headers = (("ce_source", b"shop"), ("ce_id", b"7"))
PARTITIONS = 2
_EVERY_S = 0.05
_RECORDS = 6
_ABORTED = 4  # each so manieth
WITH_AN_ABORTED_ONE = _RECORDS * _ABORTED
"""More records than that from the beginning, and an aborted one is among them."""


@contextmanager
def fed(broker: EmbeddedBroker, topic: str, headers: Headers = ONE_ID) -> Iterator[None]:
    """Committed transactions and aborted ones, until the block ends. All records have the same headers."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "linger.ms": 1})
    producer.init_transactions(PATIENCE_S)
    ending, failed = threading.Event(), list[Exception]()

    def write() -> None:
        try:
            number = 0
            while not ending.wait(_EVERY_S):
                number += 1
                _transaction(producer, topic, number, headers)
        except Exception as error:  # noqa: BLE001  raised below
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert not failed, failed


def _transaction(producer: Producer, topic: str, number: int, headers: Headers) -> None:
    producer.begin_transaction()
    for nth in range(_RECORDS):
        producer.produce(topic, f"{number}/{nth}", f"key {nth}", nth % PARTITIONS, headers=[*headers])
    if number % _ABORTED:
        producer.commit_transaction(PATIENCE_S)
    else:
        assert producer.flush(PATIENCE_S) == 0, "they stand in the log"
        producer.abort_transaction(PATIENCE_S)


class Behind:
    """Readers behind the topic, and what became of them."""

    def __init__(self, broker: EmbeddedBroker, topic: str, directory: Path, count: int, command: Sequence[str]) -> None:
        self._servers, self._topic = broker.bootstrap_servers, topic
        self.timeline = Timeline()
        (directory / "logs").mkdir()
        self.file = directory / "effects" / "effects.db"
        job = Job(self._servers, (topic,), str(self.file), group=f"readers-{topic}-{directory.name}")
        self.readers: EffectReaders = effect_readers(
            directory / "effects", directory / "logs", job, self.timeline, count, command
        )

    def judged(self) -> Judgement:
        """When nobody writes any more. That what stands in the log is right is taken for granted."""
        observed = observe(self._servers, [self._topic], self._topic)
        final = read_all(self._servers, observed.ends)
        troubles = self.readers.finish(last_offsets(final), PATIENCE_S)
        assert troubles == []
        recorded = Recorded(self._topic, (), (self._topic,), final, observed, effects=self.readers.effects())
        return judge(recorded, _as_it_stands(final))

    def lives(self) -> list[Happening]:
        return [each for each in self.timeline.happenings() if each.lane == "reader"]


@contextmanager
def readers_behind(
    broker: EmbeddedBroker, topic: str, directory: Path, count: int = 2, command: Sequence[str] = COMMAND
) -> Iterator[Behind]:
    behind = Behind(broker, topic, directory, count, command)
    with behind.readers as readers:
        readers.start()
        yield behind


def _as_it_stands(final: pa.Table) -> Expected:
    """All of it as the output of one batch."""
    ordinal: dict[int, int] = {}
    rows = []
    for each in final.to_pylist():
        number = ordinal[each["partition"]] = ordinal.get(each["partition"], -1) + 1
        rows.append((0, each["topic"], each["partition"], number, each["key"], each["content"], 0))
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORDS, strict=True)]
    return Expected(pa.table(arrays, schema=RECORDS), RANGES.empty_table(), "query", finished=(0,))
