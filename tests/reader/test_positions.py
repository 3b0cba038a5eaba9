"""Where a reader begins: the store's position, whatever became of Kafka's; and a lost store is never passed over."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from tests.conftest import until_stable
from tests.reader.support import TIMEOUT_S, Place

from onceflow.errors import EventsGone, StoreLost
from onceflow.events import EventIdentity
from onceflow.reader.settings import ReaderSettings

EVENTS = [str(number) for number in range(30)]


def lose_the_store(place: Place) -> None:
    """The tables of the store are gone, those of the ledger are not: the worst case."""
    for (name,) in place.ledger.execute(
        "SELECT name FROM sqlite_master WHERE name LIKE 'onceflow%' AND type = 'table'"
    ).fetchall():
        place.ledger.execute(f'DROP TABLE "{name}"')


@pytest.mark.parametrize("ids", [True, False])
def test_rewinding_the_group_repeats_nothing(place: Place, ids: bool) -> None:
    place.send(EVENTS, ids=ids)
    place.book_all()
    assert place.committed() == {0: 30}
    place.set_committed({0: 0})
    place.send(["30"], ids=ids)
    place.book_all()
    assert place.effects() == [*EVENTS, "30"]
    assert place.committed() == {0: 31}


def test_a_new_group_handles_everything_anew(place: Place) -> None:
    """How to ask for a repetition."""
    place.send(EVENTS)
    place.book_all()
    place.book_all(group=f"{place.group}-again")
    assert place.effects() == [*EVENTS, *EVENTS]


def test_a_lost_store_is_refused_before_anything_is_handled(place: Place) -> None:
    place.send(EVENTS)
    place.book_all()
    lose_the_store(place)
    place.send(["30"])
    with pytest.raises(StoreLost, match="before offset 30, the store knows of nothing") as raised:
        place.book_all()
    assert raised.value.fields["committed"] == 30
    assert place.effects() == EVENTS


def test_control_without_kafka_s_witness_a_lost_store_repeats_everything(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks like a group that never handled anything."""
    monkeypatch.setattr("onceflow.reader.assignment.committed_offsets", lambda *_: {})
    place.send(EVENTS)
    place.book_all()
    lose_the_store(place)
    place.book_all()
    assert place.effects() == [*EVENTS, *EVENTS]


def test_a_lost_store_is_rebuilt_with_its_ids(place: Place) -> None:
    place.send(EVENTS)
    place.book_all()
    lose_the_store(place)
    place.send(["30", *EVENTS[:5]])  # the source repeats itself: only the ids tell
    place.book_all(lost_store="rebuild", batch_size=7)
    place.book_all()
    assert place.effects() == [*EVENTS, "30"]


def test_a_lost_store_that_is_accepted_goes_on_without_the_ids(place: Place) -> None:
    place.send(EVENTS)
    place.book_all()
    lose_the_store(place)
    place.send(["30", *EVENTS[:5]])
    place.book_all(lost_store="accept")
    place.book_all()
    assert place.effects() == [*EVENTS, "30", *EVENTS[:5]]  # the price, as documented


@pytest.mark.parametrize("before", [[], EVENTS[:10]], ids=["lost", "restored"])
def test_what_is_accepted_is_in_the_store_before_the_next_event_comes(
    place: Place, tmp_path: Path, before: list[str]
) -> None:
    """Nothing comes for longer than Kafka keeps offsets: the store alone says where the group goes on."""
    backup = tmp_path / "backup.db"
    if before:
        place.send(before)
        place.book_all()
    with closing(sqlite3.connect(backup)) as copy:
        place.ledger.backup(copy)
    place.send(EVENTS[len(before) :])
    place.book_all()
    with closing(sqlite3.connect(backup)) as copy:
        copy.backup(place.ledger)
    place.book_all(lost_store="accept")
    place.book_all()  # it is said once
    forget_offsets(place)
    place.send(["30"])
    place.book_all()
    assert place.effects() == [*before, "30"]


def forget_offsets(place: Place) -> None:
    """As the cluster does when nothing was committed for ``offsets.retention.minutes``."""
    place.admin.delete_consumer_groups([place.group], request_timeout=TIMEOUT_S)[place.group].result(TIMEOUT_S)


def test_a_database_from_a_backup_is_refused_or_replayed(place: Place, tmp_path: Path) -> None:
    place.send(EVENTS[:10])
    place.book_all()
    with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        place.ledger.backup(backup)
    place.send(EVENTS[10:])
    place.book_all()
    with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        backup.backup(place.ledger)
    assert place.effects() == EVENTS[:10]
    with pytest.raises(StoreLost, match="knows of the events before offset 10"):
        place.book_all()
    place.book_all(lost_store="replay")
    assert place.effects() == EVENTS


def test_events_deleted_before_they_were_handled_are_not_passed_over(place: Place) -> None:
    place.send(EVENTS[:10])
    place.book_all()
    place.send(EVENTS[10:])
    keep_from(place, 20)
    with pytest.raises(EventsGone, match="offset 10, the next to be handled"):
        place.book_all()
    assert place.effects() == EVENTS[:10]


def test_control_with_kafka_s_own_way_out_events_would_be_passed_over(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``auto.offset.reset``, which every consumer has: ten events less, and not a word."""
    options = ReaderSettings.base_options
    monkeypatch.setattr(ReaderSettings, "base_options", lambda self: {**options(self), "auto.offset.reset": "earliest"})
    place.send(EVENTS[:10])
    place.book_all()
    place.send(EVENTS[10:])
    keep_from(place, 20)
    place.book_all()
    assert place.effects() == [*EVENTS[:10], *EVENTS[20:]]


def test_a_group_may_begin_at_the_end(place: Place) -> None:
    place.send(EVENTS)
    place.book_all(start="latest")
    assert place.effects() == []


def send_in_a_transaction(place: Place, text: str) -> None:
    """One event, and behind it the transaction's end at an offset of its own."""
    _sent_in_a_transaction(place, text).commit_transaction()
    until_stable(place.broker, place.topic)


def abort_in_a_transaction(place: Place, text: str) -> None:
    """The same, for nobody to handle."""
    producer = _sent_in_a_transaction(place, text)
    assert producer.flush(TIMEOUT_S) == 0
    producer.abort_transaction()
    until_stable(place.broker, place.topic)


def _sent_in_a_transaction(place: Place, text: str) -> Producer:
    producer = Producer({"bootstrap.servers": place.servers, "transactional.id": place.topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(place.topic, text, headers=[*EventIdentity("tests", text).headers()])
    return producer


def keep_from(place: Place, offset: int) -> None:
    """What retention does: all before the offset is gone."""
    partition = TopicPartition(place.topic, 0, offset)
    place.admin.delete_records([partition])[TopicPartition(place.topic, 0)].result(TIMEOUT_S)


def test_a_topic_of_which_only_the_end_of_a_transaction_was_left_has_a_way_on(place: Place) -> None:
    """That end has an offset of its own, the next one after the last event. Who has read to it knows that nothing was lost."""
    send_in_a_transaction(place, "0")
    place.book_all()
    keep_from(place, 2)
    place.send(["1"])
    place.book_all()
    assert place.effects() == ["0", "1"]


def test_what_is_gone_behind_the_end_of_a_transaction_is_not_passed_over(place: Place) -> None:
    """The note covers what the reader has seen, and not the event after it."""
    send_in_a_transaction(place, "0")
    place.book_all()
    place.send(["1", "2"])
    keep_from(place, 3)
    with pytest.raises(EventsGone, match="offset 1, the next to be handled"):
        place.book_all()
    assert place.effects() == ["0"]


def test_control_without_the_note_nobody_knows_what_stood_there(place: Place) -> None:
    """Whoever resets the group's offset takes the note along. The documented way on."""
    send_in_a_transaction(place, "0")
    place.book_all()
    place.set_committed({0: 1})
    keep_from(place, 2)
    place.send(["1"])
    with pytest.raises(EventsGone, match="offset 1, the next to be handled"):
        place.book_all()
    place.set_committed({0: 2})
    place.book_all(lost_store="accept")
    assert place.effects() == ["0", "1"]
