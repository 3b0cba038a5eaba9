"""A topic that is deleted, or deleted and made anew: its positions are of another topic then, and no error comes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from tests.conftest import create_topic
from tests.reader.conftest import PROTOCOLS, Places
from tests.reader.servers import postgresql_server, running_redis
from tests.reader.support import TIMEOUT_S, Place, eventually

from onceflow.errors import EventsGone, TopicMissing
from onceflow.reader import topic_watch
from onceflow.reader.event import Event
from onceflow.reader.same_topics import SameTopics
from onceflow.reader.stores.interface import Store
from onceflow.reader.stores.memory import MemoryStore

EVENTS = [f"old {number}" for number in range(100)]
OTHERS = [f"new {number}" for number in range(150)]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The shared stores; each test has a group of its own in them."""
    file = tmp_path_factory.mktemp("made-anew") / "store.db"
    with postgresql_server() as database, running_redis() as server:
        yield {"sqlite": f"sqlite:///{file}", "postgresql": database.url, "redis": server.url}


def id_of(place: Place) -> str:
    asked = place.admin.describe_topics(TopicCollection([place.topic]))
    return str(asked[place.topic].result(TIMEOUT_S).topic_id)


def is_there(place: Place) -> bool:
    return place.topic in place.admin.list_topics(timeout=TIMEOUT_S).topics


def delete(place: Place) -> None:
    place.admin.delete_topics([place.topic])[place.topic].result(TIMEOUT_S)
    eventually(lambda: is_there(place), (False).__eq__, "the topic is there")


def make_anew(place: Place) -> None:
    """Deleted, made, and longer than it was."""
    delete(place)
    create_topic(place.broker, place.topic, place.partitions)
    place.send(OTHERS)


def handle_all(place: Place, store: str | Store, *, inbox: bool = False, **options: Any) -> list[str]:
    """What a reader handles up to the end."""
    seen: list[str] = []
    reader = place.reader(store=store, **options)

    if inbox:

        @reader.handler
        def in_the_transaction(event: Event, tx: Any) -> None:
            seen.append((event.value or b"").decode())

    else:

        @reader.handler
        def elsewhere(event: Event) -> None:
            seen.append((event.value or b"").decode())

    reader.run(until_end=True)
    return seen


@pytest.mark.parametrize(
    ("kind", "inbox"),
    [("memory", False), *((kind, inbox) for kind in ("sqlite", "postgresql", "redis") for inbox in (True, False))],
)
def test_made_anew_between_two_runs(place: Place, urls: dict[str, str], kind: str, inbox: bool) -> None:
    """150 events come behind the position of 100: the first 100 of them would never be handled."""
    store = MemoryStore() if kind == "memory" else urls[kind]
    place.send(EVENTS)
    assert handle_all(place, store, inbox=inbox) == EVENTS
    before = id_of(place)
    make_anew(place)
    seen: list[str] = []
    with pytest.raises(EventsGone) as raised:
        seen = handle_all(place, store, inbox=inbox)
    assert seen == []
    assert (raised.value.fields["known_id"], raised.value.fields["id"]) == tuple(
        topic_id[:8].translate(str.maketrans("+/", "-_")) for topic_id in (before, id_of(place))
    )
    store = MemoryStore() if kind == "memory" else store  # one object is one group
    assert handle_all(place, store, inbox=inbox, group=f"{place.group}-new") == OTHERS


def test_control_who_does_not_ask_which_topic_it_is_passes_over_the_new_ones_first_events(
    place: Place, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SameTopics, "check", lambda self, topics: None)
    place.send(EVENTS)
    assert handle_all(place, urls["sqlite"]) == EVENTS
    make_anew(place)
    assert handle_all(place, urls["sqlite"]) == OTHERS[len(EVENTS) :]


def test_the_rows_of_the_topic_deleted_the_group_begins_with_the_new_one(place: Place) -> None:
    """What the error says to do."""
    place.send(EVENTS)
    handle_all(place, place.store)
    make_anew(place)
    names = (place.topic, f"{place.topic}:id")
    for table in ("onceflow_positions", "onceflow_sequences"):
        place.ledger.execute(f"DELETE FROM {table} WHERE topic IN (?, ?)", names)
    assert handle_all(place, place.store) == OTHERS


def test_positions_of_before_without_an_id_are_taken_over(place: Place) -> None:
    place.send(EVENTS)
    handle_all(place, place.store)
    place.ledger.execute("DELETE FROM onceflow_positions WHERE topic = ?", (f"{place.topic}:id",))
    place.send(["more"])
    assert handle_all(place, place.store) == ["more"]
    make_anew(place)
    with pytest.raises(EventsGone):
        handle_all(place, place.store)


def test_an_offset_of_the_topic_before_is_no_witness(place: Place) -> None:
    """A reader that is told late commits once more behind the deletion; a store that forgets would pass over as many events."""
    place.send(EVENTS)
    assert handle_all(place, "memory:") == EVENTS
    told = told_of(place)
    make_anew(place)
    with closing(Consumer({"bootstrap.servers": place.servers, "group.id": place.group})) as late:
        late.commit(offsets=[told], asynchronous=False)
    assert handle_all(place, "memory:") == OTHERS


def told_of(place: Place) -> TopicPartition:
    """The group's offset, with its note."""
    with closing(Consumer({"bootstrap.servers": place.servers, "group.id": place.group})) as consumer:
        (told,) = consumer.committed([TopicPartition(place.topic, 0)], timeout=TIMEOUT_S)
    return TopicPartition(place.topic, 0, told.offset, metadata=told.metadata)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("anew", [True, False], ids=["made anew", "deleted"])
@pytest.mark.parametrize("inbox", [True, False], ids=["inbox", "claims"])
def test_while_the_reader_runs(
    places: Places, monkeypatch: pytest.MonkeyPatch, protocol: str, anew: bool, inbox: bool
) -> None:
    """Nothing comes any more, or what comes is from the middle of another topic: the reader ends, and says which."""
    monkeypatch.setattr(topic_watch, "LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(topic_watch, "LOOK_AGAIN_S", 30.0 if anew else 0.2)  # a look may come in between
    place = places()
    place.send(EVENTS)
    seen: list[bytes | None] = []
    reader = place.reader(group_protocol=protocol)

    if inbox:

        @reader.handler
        def in_the_transaction(event: Event, tx: Any) -> None:
            seen.append(event.value)

    else:

        @reader.handler
        def elsewhere(event: Event) -> None:
            seen.append(event.value)

    with ThreadPoolExecutor(1) as background:
        running = background.submit(reader.run)
        try:
            eventually(lambda: len(seen), (100).__eq__, "events handled")
            (make_anew if anew else delete)(place)
            error = running.exception(TIMEOUT_S)
        finally:
            reader.stop()
    assert isinstance(error, EventsGone if anew else TopicMissing), error
    assert place.topic in error.message
