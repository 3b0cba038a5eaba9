"""The pure parts: what identifies an event, which events a try takes, and mistakes named all at once."""

from __future__ import annotations

import gc
import logging
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

import onceflow
from onceflow.collector import seldom
from onceflow.errors import ConfigurationError
from onceflow.events import identity_of
from onceflow.reader.event import Event, event_of
from onceflow.reader.lane import Lane
from onceflow.reader.patience import Stopped
from onceflow.reader.rebuild import _end_among
from onceflow.reader.remainder import _read
from onceflow.reader.retries import Backoff
from onceflow.reader.stores.blame import causes
from onceflow.reader.stores.interface import EventKey, Ownership
from onceflow.stop_flag import StopFlag

NAMES = st.sampled_from(["ce_id", "ce_source", "ce_sequence", "ce_type", "other"])
VALUES = st.one_of(st.none(), st.binary(max_size=4), st.sampled_from([b"7", b"", "٣".encode(), b"-1"]))


def message(offset: int, headers: list[tuple[str, bytes | None]] | None = None) -> Message:
    return Message(topic="t", partition=0, offset=offset, headers=headers or [])  # type: ignore[arg-type]


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6))
def test_the_entry_names_what_the_headers_name(headers: list[tuple[str, bytes | None]]) -> None:
    identity = identity_of(headers)
    entry = event_of(message(5, headers), "kafka:t-0").entry
    if identity is None:
        assert entry == EventKey(5, "kafka:t-0", "5", 5)
    else:
        assert entry == EventKey(5, identity.source, identity.id, identity.sequence)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_two_events_never_share_an_idempotency_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    keys = [Event(message(0), EventKey(0, source, event_id)).idempotency_key for source, event_id in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def lane_of(*offsets: int) -> Lane:
    lane = Lane(Ownership("t", 0, 1, None), None)
    lane.pending = [Event(message(offset), EventKey(offset, "s", str(offset))) for offset in offsets]
    return lane


def offsets_of(events: list[Event]) -> list[int]:
    return [event.offset for event in events]


def test_a_try_ends_before_the_event_that_failed_and_then_begins_with_it() -> None:
    lane = lane_of(3, 4, 8, 9)
    lane.failed(lane.pending[2], ValueError())
    assert offsets_of(lane.upcoming(100)) == [3, 4]
    lane.advance(2)
    assert offsets_of(lane.upcoming(100)) == [8]
    assert (lane.position, lane.poison(0) is not None, lane.poison(1)) == (5, True, None)


def test_what_was_booked_is_what_the_store_must_know_from_then_on() -> None:
    lane = lane_of(3, 4, 8)
    lane.advance(2)
    assert (lane.ownership, lane.stored) == (Ownership("t", 0, 1, 5), 5)


def test_only_the_event_that_failed_waits_for_its_next_try() -> None:
    lane = lane_of(3, 4)
    lane.failed(lane.pending[1], ValueError()).retry_at = 1000.0
    assert lane.due_at() == 0.0
    lane.advance(1)
    assert lane.due_at() == 1000.0


def test_attempts_are_counted_for_each_event() -> None:
    lane = lane_of(3, 4, 5)
    for number in (0, 1, 1, 0):
        failure = lane.failed(lane.pending[number], ValueError())
    assert failure.attempts == 2
    assert offsets_of(lane.upcoming(100)) == [3]
    lane.advance(1)
    assert (list(lane.failures), lane.failures[4].attempts) == ([4], 2)
    assert offsets_of(lane.upcoming(100)) == [4]
    lane.advance(1)
    assert (lane.failures, offsets_of(lane.upcoming(100))) == ({}, [5])


def test_a_partition_taken_anew_drops_what_was_handled() -> None:
    lane = lane_of(3, 4, 8)
    lane.effects_done = 2
    lane.taken(Ownership("t", 0, 2, 4))
    assert (offsets_of(lane.pending), lane.effects_done, lane.doubtful) == ([4, 8], 1, False)


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.pause_s(n) for n in (1, 2, 3, 4, 10_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_garbage_collector_is_as_it_was_when_the_last_reader_has_ended() -> None:
    """Two of them overlap: the second one finds the first one's threshold, which is not the one to put back."""
    before = gc.get_threshold()
    first, second = seldom(20_000), seldom(40_000)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 40_000
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_a_topic_is_given_once() -> None:
    """librdkafka would refuse the list, without a word that says which."""
    with pytest.raises(ConfigurationError) as raised:
        onceflow.Reader(["a", "b", "a", "c", "b"], group="g", store="memory:")
    assert raised.value.fields["mistakes"] == ("topic a is given more than once", "topic b is given more than once")


def test_groups_that_kafka_would_not_tell_apart_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"group: 'g.x00one' has a NUL"):
        onceflow.Reader("a", group="g\0one", store="memory:")


def test_every_mistake_is_named_at_once() -> None:
    wrong: dict[str, Any] = {
        "group": "",
        "store": "oracle://x",
        "bootstrap_servers": "no-port",
        "kafka": {"group.id": "other"},
        "group_protocol": "new",
        "start": "yesterday",
        "lost_store": "ignore",
        "batch_size": 0,
        "retries": -1,
        "dead_letters": "a b",
        "lease_s": 0,
    }
    with pytest.raises(ConfigurationError) as raised:
        onceflow.Reader(["good", "not good"], **wrong)
    text = "\n".join(raised.value.fields["mistakes"])
    for name in (
        "group is empty",
        "oracle",
        "no-port",
        "group.id",
        "group_protocol",
        "start",
        "lost_store",
        "not good",
    ):
        assert name in text
    for name in ("batch_size", "retries", "dead_letters", "lease_s"):
        assert name in text


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("retries must be a whole number, not '5'", {"retries": "5"}),
        ("retries must be a whole number, not None", {"retries": None}),
        ("batch_size must be a whole number, not 1.5", {"batch_size": 1.5}),
        ("patience_s must be a number, not '1'", {"patience_s": "1"}),
        ("session_timeout_s must be a number, not '10'", {"session_timeout_s": "10"}),
        ("session_timeout_s has no effect with", {"session_timeout_s": 10, "group_protocol": "consumer"}),
        ("store must be a URL .* not None", {"store": None}),
        ("store must be a URL .* not 5", {"store": 5}),
        ("'no pe' is no name of a topic", {"topics": "no pe"}),
        ("topics must be a name or several, not None", {"topics": None}),
        ("5 is no name of a topic", {"topics": [5]}),
        ("group must be a text, not 5", {"group": 5}),
        ("dead_letters must be a name of a topic or None, not 5", {"dead_letters": 5}),
        ("bootstrap_servers must be a text, not", {"bootstrap_servers": ["a:1"]}),
        ("kafka must be a mapping", {"kafka": "acks=all"}),
        ("enable.auto.commit: cannot be set: the store has the position", {"kafka": {"enable.auto.commit": "true"}}),
        ("max.poll.records: cannot be set: give it as batch_size", {"kafka": {"max.poll.records": 5}}),
    ],
)
def test_one_mistake_is_named_once_and_for_what_it_is(what: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=what) as raised:
        onceflow.Reader(**{"topics": "t", "group": "g", "store": "memory:", **wrong})
    assert len(raised.value.fields["mistakes"]) == 1


def test_dead_letters_must_not_go_to_a_topic_that_is_read() -> None:
    with pytest.raises(ConfigurationError, match="read by this very reader"):
        onceflow.Reader(["a", "b"], group="g", store="memory:", dead_letters="b")


def no_parameters() -> None: ...


def three_parameters(_: object, __: object, ___: object) -> None: ...


def with_transaction(event: Event, tx: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (no_parameters, "it takes 0 parameters"),
        (three_parameters, "it takes 3 parameters"),
        (with_transaction, "MemoryStore has none"),
    ],
)
def test_a_handler_that_cannot_be_served_is_refused_at_once(function: Any, what: str) -> None:
    reader = onceflow.Reader("t", group="g", store="memory:")
    with pytest.raises(ConfigurationError, match=what):
        reader.handler(function)


def test_a_reader_has_one_handler_and_needs_it() -> None:
    reader = onceflow.Reader("t", group="g", store="memory:")
    with pytest.raises(ConfigurationError, match="no handler"):
        reader.run()
    reader.handler(lambda event: None)
    with pytest.raises(ConfigurationError, match="has a handler already"):
        reader.handler(lambda event: None)


def test_ids_that_are_no_text_stay_apart_and_an_empty_one_is_none() -> None:
    latin = [
        event_of(message(5, [("ce_id", text.encode("latin-1")), ("ce_source", b"s")]), "p").entry.id for text in "äö"
    ]
    assert latin[0] != latin[1]
    identities = [identity_of({"ce_id": text.encode("latin-1"), "ce_source": b"s"}) for text in "äö"]
    assert [each.id for each in identities if each] == latin
    assert identity_of({"ce_id": b"", "ce_source": b"s"}) is None
    assert event_of(message(5, [("ce_id", b""), ("ce_source", b"s")]), "p").entry == EventKey(5, "p", "5", 5)


@pytest.mark.parametrize("source", [[], [("ce_source", b"")], [("ce_source", None)]])
def test_an_id_without_a_source_names_nothing(source: list[tuple[str, bytes | None]]) -> None:
    """Two producers that count from 1, in two topics or in one, have sent two events."""
    headers: list[tuple[str, bytes | None]] = [("ce_id", b"1"), *source]
    assert identity_of(headers) is None
    assert event_of(message(5, headers), "kafka:a-0").entry == EventKey(5, "kafka:a-0", "5", 5)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (str(2**63 - 1), 2**63 - 1),
        ("0" * 30 + "7", 7),
        (str(2**63), None),
        ("1" * 5000, None),
    ],
)
def test_a_sequence_that_no_database_can_keep_counts_as_none(text: str, number: int | None) -> None:
    headers: list[tuple[str, bytes | None]] = [("ce_id", b"a"), ("ce_source", b"s"), ("ce_sequence", text.encode())]
    identity = identity_of(headers)
    assert identity is not None
    assert event_of(message(5, headers), "p").entry.sequence == identity.sequence == number


def test_a_reader_that_looks_for_what_is_left_ends_when_it_is_asked_to() -> None:
    """No broker answers: it would look for a minute, and whoever sent SIGTERM would have killed it by then."""
    stop = StopFlag()
    stop.set()
    options = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    with closing(Consumer(options, logger=logging.getLogger("onceflow.tests"))) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        with pytest.raises(Stopped):
            next(_read(consumer, ("t", 0), 1, stop))


@pytest.mark.parametrize("name", ["COORDINATOR_NOT_AVAILABLE", "_TRANSPORT"])
def test_what_passes_by_itself_in_the_loop_passes_where_others_are_looked_after_and_ids_are_read_again(
    name: str,
) -> None:
    """No error that is polled says of itself that it is retriable."""
    trouble = Message(error=KafkaError(getattr(KafkaError, name)), topic="t", partition=0)
    end = Message(error=KafkaError(KafkaError._PARTITION_EOF), topic="t", partition=0, offset=6)

    class Scripted:
        def __init__(self) -> None:
            self.messages = iter([trouble, message(5), end])

        def poll(self, _: float) -> Message:
            return next(self.messages)

    consumer: Any = Scripted()
    assert [found.offset() for found in _read(consumer, ("t", 0), 6, StopFlag())] == [5]
    assert [_end_among(messages, "t-0") for messages in ([trouble], [trouble, end])] == [-1, 6]


def test_errors_that_are_raised_from_each_other_are_looked_at_once() -> None:
    """``raise error from error`` makes a circle: walked without an end, it would hold the store's lock for ever."""
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]
