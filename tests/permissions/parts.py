"""What needs rights: each part of onceflow, run once as a user, from topics that an administrator made."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import Consumer
from tests.faults.light import Job, LightDriver
from tests.faults.support import TIMEOUT_S, eventually
from tests.permissions.places import Place, Right, documented

from onceflow.cli.records import read_committed
from onceflow.config import load
from onceflow.errors import DeliveryFailed, InputError, OnceflowError
from onceflow.ingest.committer import SourceCommitter
from onceflow.ingest.files import FileOptions, FileSource, Format
from onceflow.ingest.runner import Ingest
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.names import PROBE_TOPIC, PROGRESS_TOPIC
from onceflow.outbox import sql
from onceflow.outbox.service import OutboxService, outbox_at
from onceflow.outbox.waker import Waker
from onceflow.pipeline.topics import create, missing_topics
from onceflow.reader.event import Event
from onceflow.reader.reader import Reader
from onceflow.writer.writer import Writer

PATIENCE_S = 20  # of what must not take as long
ALWAYS = "always"


@dataclass(frozen=True)
class Part:
    """A way to use onceflow, and the tables' rows (``when``) that it needs; those of ``tried`` are taken away here.

    ``run`` gives what was written or handled. ``filled``: what its source holds. ``narrow``: topics, with what they take.
    ``other``: what a user gets who may DESCRIBE a resource, where it is not NotAuthorized. ``unnamed``: resources that Kafka
    does not name.
    """

    name: str
    page: str
    when: tuple[str, ...]
    run: Callable[[Place], Collection[str | None]]
    gives: Collection[str | None]
    tried: tuple[str, ...] = (ALWAYS,)
    filled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    narrow: Mapping[str, int] = field(default_factory=dict)
    other: Mapping[str, type[OnceflowError]] = field(default_factory=dict)
    unnamed: frozenset[str] = frozenset()

    @property
    def rights(self) -> tuple[Right, ...]:
        return documented(self.page, *self.when)

    @property
    def to_take_away(self) -> list[Right]:
        return list(documented(self.page, *self.tried))

    def prepare(self, place: Place) -> None:
        """Makes its topics, but for those that it makes itself."""
        own = {right.resource for right in self.rights if right.operation == "CREATE"}
        topics = (
            {right.resource for right in self.rights if right.kind == "topic"} - own - {PROGRESS_TOPIC, PROBE_TOPIC}
        )
        place.make_topics(map(place.named, topics - self.narrow.keys()))
        for topic, limit_bytes in self.narrow.items():
            place.make_topics([place.named(topic)], limit_bytes)
        for topic, values in self.filled.items():
            place.fill(place.named(topic), *values)


def _writer(place: Place, transactional_id: str | None = None) -> Writer:
    options = {**place.options, "delivery.timeout.ms": PATIENCE_S * 1000}
    return Writer(bootstrap_servers=place.login, source="shop", transactional_id=transactional_id, kafka=options)


def _write(place: Place) -> Collection[str | None]:
    topic = place.named("<topic>")
    with _writer(place) as writer:
        writer.send(topic, "a", id="a")
    return place.values(topic)


def _write_in_a_transaction(place: Place) -> Collection[str | None]:
    topic = place.named("<topic>")
    with _writer(place, place.named("<id>")) as writer, writer.transaction():
        writer.send(topic, "a", id="a")
    return place.values(topic)


def _pass_on(place: Place) -> Collection[str | None]:
    """The consumer is a super user's, so that the writer alone lacks what is lacking."""
    topic = place.named("<topic>")
    options = {
        "bootstrap.servers": place.servers,
        "group.id": place.named("<group>"),
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    with closing(Consumer(options)) as consumer, _writer(place, place.named("<id>")) as writer:
        consumer.subscribe([place.named("<consumed>")])
        eventually(lambda: consumer.poll(0.02) is None and bool(consumer.assignment()), bool, "an assignment")
        place.fill(place.named("<consumed>"), "a")
        with writer.transaction(consumer=consumer) as transaction:
            [message] = consumer.consume(1, TIMEOUT_S)
            writer.send(topic, message.value(), id="a")
            transaction.consumed(consumer)
    return place.values(topic)


def _reader(place: Place, **options: object) -> Reader:
    return Reader(
        place.named("<topic>"),
        group=place.named("<group>"),
        store=f"sqlite:///{place.directory}/store.db",
        bootstrap_servers=place.login,
        kafka=place.options,
        patience_s=PATIENCE_S,
        retries=0,
        backoff_s=0.01,
        **options,  # type: ignore[arg-type]
    )


def _handle(place: Place, **options: object) -> Collection[str | None]:
    handled: list[str | None] = []
    reader = _reader(place, **options)
    reader.handler(lambda event, tx: handled.append(_text(event)))
    reader.run(until_end=True)
    return handled


def _handle_from_the_end(place: Place) -> Collection[str | None]:
    """What it notes in Kafka at its start needs more than to see the topic."""
    return _handle(place, start="latest")


def _fail(event: Event, _: object) -> None:
    raise ValueError(_text(event))


def _bury(place: Place) -> Collection[str | None]:
    reader = _reader(place)
    reader.handler(_fail)
    reader.run(until_end=True)
    return place.values(place.named("<topic>.dead-letter"))


def _bury_again(place: Place) -> Collection[str | None]:
    reader = _reader(place)
    reader.handler(_fail)
    reader.run(until_end=True)
    reader.dead_letters().run(until_end=True)
    return place.values(place.named("<topic>.dead-letter.again"))


def _text(event: Event) -> str:
    assert event.value is not None
    return event.value.decode()


def _read(place: Place) -> Collection[str | None]:
    return [record.value for record in read_committed(place.settings, place.named("<topic>"))]


def _ingest(place: Place, rows: Sequence[str] = ('{"n":1}',)) -> Collection[str | None]:
    topic, path = place.named("<topic>"), place.directory / "rows.jsonl"
    path.write_text("".join(f"{row}\n" for row in rows))
    source = FileSource(FileOptions([str(path)], Format.JSONL))
    with SourceCommitter(place.named("<name>"), place.settings, patience_s=PATIENCE_S) as committer:
        Ingest(place.named("<name>"), topic, source).run(committer)
    return place.values(topic)


def _relay(place: Place, partitions: int | None = None, *, refused: bool = False) -> Collection[str | None]:
    """An outbox of one row, which is there until it is sent; ``refused``: and of one that Kafka can never take."""
    kind = place.named("<aggregatetype>")
    fill_outbox(place, [("a", kind, "a"), *([("b", "no topic", "b")] if refused else [])])
    relay(place, partitions, refused=refused)
    return place.values(place.named(_EVENTS))


def _relay_much(place: Place) -> Collection[str | None]:
    fill_outbox(place, [(str(number), place.named("<aggregatetype>"), large) for number, large in enumerate(MANY)])
    relay(place)
    return place.values(place.named(_EVENTS))


def outbox_of(place: Place) -> Path:
    return place.directory / "shop.db"


def fill_outbox(place: Place, rows: Iterable[tuple[str, str, str | bytes]]) -> None:
    """(id, aggregatetype, payload) each, unless there was an outbox."""
    with closing(sqlite3.connect(outbox_of(place))) as connection:
        if not connection.execute("select name from sqlite_master").fetchall():
            connection.executescript(sql.sqlite(sql.TableName.parse("outbox")))
            insert = "insert into outbox (id, aggregatetype, aggregateid, type, payload) values (?, ?, 'a', 'Paid', ?)"
            connection.executemany(insert, rows)
            connection.commit()


def relay(place: Place, partitions: int | None = None, *, refused: bool = False) -> None:
    """Sends what is there; ``refused``: and sets aside what cannot be sent."""
    with Waker() as waker:
        outbox = outbox_at(f"sqlite:///{outbox_of(place)}", "outbox")
        name = place.named("<name>")
        service = OutboxService(name, outbox, place.settings, waker, create_partitions=partitions, dead_letters=refused)
        service.once()


def _relay_and_make_topics(place: Place) -> Collection[str | None]:
    return _relay(place, partitions=1)


def _commit(place: Place) -> Collection[str | None]:
    """A pipeline's driver, without Spark."""
    options = place.settings.for_protocol()
    (servers,) = options.pop("bootstrap_servers")
    target = place.named("<target>")
    job = Job(servers, place.named("<name>"), target, str(place.directory / "checkpoint"), batches=1)
    LightDriver(replace(job, options=options, source=place.named("<source>"))).run()
    return [str(len(place.values(target)))]


PLAN = """
name = "made"
[kafka]
create_topics = true
[[source]]
name = "events"
topics = ["{source}"]
format = "raw"
[[sink]]
topic = "{target}"
from = "events"
value = "value"
"""


def _make_topics_of_a_plan(place: Place) -> Collection[str | None]:
    path = place.directory / "pipeline.toml"
    path.write_text(PLAN.format(source=place.named("<source>"), target=place.named("<target>")))
    file, admin = load(path, {}), ClusterAdmin(place.settings)
    create(file, admin, missing_topics(file, admin.partitions()), lambda event: None)
    return sorted(entry.topic for entry in missing_topics(file, admin.partitions()))


def _relay_with_letters(place: Place) -> Collection[str | None]:
    sent = _relay(place, refused=True)
    letters = place.values(place.named("outbox.dead-letter.<name>"))
    return [*sent, *(["a letter"] * len(letters))]


TRANSACTIONS, CONSUMED = "transactions", "consumed offsets"
LETTERS, MAKING_LETTERS = "dead letters", "making the topic of dead letters, where it is missing"
AGAIN, READ = "`dead_letters()`", "`onceflow read`"
MAKING_PLANNED = "making it, with `create_topics = true` in `[kafka]`"
KEPT = "brokers that keep committed offsets for less than a day"
MAKING, CREATE_TOPICS = "making it, where it is missing", "`--create-topics`"
REFUSED = "`--refused dead-letter`"
NARROW, NARROW_BYTES = "topics that take less than 600 kB", 20_000
MANY = [json.dumps(random.Random(number).randbytes(2500).hex()) for number in range(10)]
"""Each fits a narrow topic, and all in one batch do not."""
_EVENTS = "outbox.event.<aggregatetype>"
_SOURCE = {"<topic>": ("a",)}

PARTS = [
    Part(
        "Writer", "writer.md", (ALWAYS,), _write, ["a"],
        other={"<topic>": DeliveryFailed},
    ),
    Part(
        "Writer in transactions", "writer.md", (ALWAYS, TRANSACTIONS), _write_in_a_transaction, ["a"],
        tried=(ALWAYS, TRANSACTIONS),
    ),
    Part(
        "Writer with consumed offsets", "writer.md", (ALWAYS, TRANSACTIONS, CONSUMED), _pass_on, ["a"],
        tried=(CONSUMED,), unnamed=frozenset({"<group>"}),
    ),
    Part("Reader", "reader.md", (ALWAYS,), _handle, ["a"], filled=_SOURCE),
    Part(
        "Reader, consumer protocol", "reader.md", (ALWAYS,), lambda place: _handle(place, group_protocol="consumer"), ["a"],
        filled=_SOURCE,
    ),
    Part("Reader from the end", "reader.md", (ALWAYS,), _handle_from_the_end, [], filled=_SOURCE),
    Part("dead letters", "reader.md", (ALWAYS, LETTERS), _bury, ["a"], tried=(LETTERS,), filled=_SOURCE),
    Part(
        "dead letters, made", "reader.md", (ALWAYS, LETTERS, MAKING_LETTERS), _bury, ["a"],
        tried=(MAKING_LETTERS,), filled=_SOURCE,
    ),
    Part(
        "dead letters again", "reader.md", (ALWAYS, LETTERS, AGAIN), _bury_again, ["a"],
        tried=(AGAIN,), filled=_SOURCE,
    ),
    Part(
        "onceflow read", "reader.md", (READ,), _read, ["a"],
        tried=(READ,), filled=_SOURCE,
    ),
    Part("ingest", "ingest.md", (ALWAYS,), _ingest, ['{"n":1}']),
    Part("ingest, made", "ingest.md", (ALWAYS, MAKING), _ingest, ['{"n":1}'], tried=(MAKING,)),
    Part(
        "ingest, narrow topic", "ingest.md", (ALWAYS, NARROW), lambda place: _ingest(place, MANY), MANY,
        tried=(NARROW,), narrow={"<topic>": NARROW_BYTES}, other={"<topic>": InputError},
    ),
    Part("outbox", "outbox.md", (ALWAYS,), _relay, ["a"]),
    Part(
        "outbox, made", "outbox.md", (ALWAYS, CREATE_TOPICS), _relay_and_make_topics, ["a"],
        tried=(CREATE_TOPICS,),
    ),
    Part(
        "outbox with dead letters", "outbox.md", (ALWAYS, REFUSED), _relay_with_letters, ["a", "a letter"],
        tried=(REFUSED,),
    ),
    Part(
        "outbox, narrow topic", "outbox.md", (ALWAYS, NARROW), _relay_much, MANY,
        tried=(NARROW,), narrow={_EVENTS: NARROW_BYTES}, other={_EVENTS: InputError},
    ),
    Part("pipeline", "errors.md", (ALWAYS,), _commit, ["20"]),
    Part(
        "pipeline, made", "errors.md", (ALWAYS, MAKING_PLANNED), _make_topics_of_a_plan, [],
        tried=(MAKING_PLANNED,),
    ),
    Part(
        "pipeline, narrow topic", "errors.md", (ALWAYS, NARROW), _commit, ["20"],
        tried=(NARROW,), narrow={"<target>": 130}, other={"<target>": InputError},
    ),
]  # fmt: skip
