"""Arguments of the wrong kind: each is named, with its event, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import Message
from tests.writer.on_a_loop import OnLoop

from onceflow.errors import ConfigurationError, EventRefused
from onceflow.writer.sender import Sender
from onceflow.writer.writer import Writer

MakeWriter = Callable[..., Writer | OnLoop]
NOBODY = "127.0.0.1:1"


def sender_of(writer: Writer | OnLoop) -> Sender:
    return (writer if isinstance(writer, Writer) else writer._writer._writer).sender()


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("value must be bytes", {"value": 5}),
    ("value must be bytes.*not dict", {"value": {"total": 30}}),
    ("value holds a lone surrogate", {"value": "\ud800"}),
    ("key must be bytes", {"key": 7}),
    ("id must be", {"id": 7}),
    ("id must be", {"id": 7, "type": "sale"}),
    ("id must be a text, not bytes", {"id": b"7"}),  # librdkafka takes them in a header
    ("id holds a lone surrogate", {"id": "\ud800"}),
    ("id holds a lone surrogate", {"id": "\ud800", "type": "sale"}),
    ("source must be", {"source": 7}),
    ("source must be a text, not bytes", {"source": b"shop"}),
    ("type must be a text", {"type": 7}),
    ("a position is a sequence", {"id": None, "position": "orders:3"}),
    ("a position is a sequence", {"id": None, "position": 3}),
    ("a position is a sequence.*not set", {"id": None, "position": {"orders", 3}}),
    ("a position is a sequence.*not dict", {"id": None, "position": {"orders": 3}}),
    ("parts are texts and whole numbers, not None", {"id": None, "position": ("orders", None)}),
    ("parts are texts and whole numbers, not None", {"id": None, "position": ["orders", None]}),
    ("parts are .* numbers, not bytes, float, set", {"id": None, "position": (b"k", 1.5, "t", {1}, 2, {2})}),
    ("parts are texts and whole numbers, not bool", {"id": None, "position": ("orders", True)}),
    ("sequence must be a whole number", {"sequence": "a", "key": "k"}),
    ("sequence must be a whole number", {"sequence": 1.5, "key": "k"}),
    ("sequence must be a whole number, not bool", {"sequence": True, "key": "k"}),
    ("headers must be pairs", {"headers": {"a": "b"}}),
    ("headers must be pairs", {"headers": {"ab": "c"}}),
    ("headers must be pairs", {"headers": ["ab"]}),
    ("headers must be pairs", {"headers": 5}),
    ("headers: trace must be bytes", {"headers": [("trace", 1)]}),
    ("partition must be a whole number", {"partition": "0"}),
    ("partition has more than 32 bits", {"partition": 1 << 40}),
    ("timestamp_ms must be a whole number", {"timestamp_ms": 1.5}),
    ("timestamp_ms is -5", {"timestamp_ms": -5}),
]


@pytest.mark.parametrize(("what", "wrong"), WRONG)
@pytest.mark.parametrize("writer", [Writer, OnLoop], indirect=True, ids=["Writer", "AsyncWriter"])
def test_an_argument_of_the_wrong_kind_is_named(writer: MakeWriter, what: str, wrong: dict[str, Any]) -> None:
    shop = writer(on=NOBODY)
    sender = sender_of(shop)
    sender.known["orders"] = range(-1, 1)
    with pytest.raises(EventRefused, match=what):
        shop.send("orders", **{"value": b"x", "id": "1", **wrong})
    assert sender.outstanding == 0


@pytest.mark.parametrize("writer", [Writer, OnLoop], indirect=True, ids=["Writer", "AsyncWriter"])
def test_the_refused_event_is_named(writer: MakeWriter) -> None:
    shop = writer(on=NOBODY)
    sender_of(shop).known["orders"] = range(-1, 1)
    with pytest.raises(EventRefused, match=r"event 'shop 4711' for orders: value must be .*; key must be ") as caught:
        shop.send("orders", 5, key=7, id="4711")  # type: ignore[arg-type]
    assert len(caught.value.fields["mistakes"]) == 2
    for wrong in ({"sequence": "a", "key": "k"}, {"headers": {"a": "b"}}):
        with pytest.raises(EventRefused, match="event 'shop 4711': "):
            shop.send("orders", b"x", id="4711", **wrong)


def test_a_delivery_is_waited_for_no_longer_than_told(writer: Callable[..., Writer]) -> None:
    """It goes on, and may be asked for again."""
    shop = writer(on=NOBODY)
    sender_of(shop).known["orders"] = range(-1, 1)
    delivery = shop.send("orders", b"x", id="4711")
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"event shop 4711 for orders .* within 0 s"):
            delivery.result(timeout_s=0)
    assert not delivery.done
    assert sender_of(shop).outstanding == 1


class Answer:
    """What is asked of a message that was delivered."""

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 5


def test_what_is_decided_is_told_after_the_end_of_its_writer(writer: Callable[..., Writer]) -> None:
    shop = writer(on=NOBODY)
    sender = sender_of(shop)
    sender.known["orders"] = range(-1, 1)
    delivery = shop.send("orders", b"x", id="4711")
    delivery(None, cast(Message, Answer()))
    sender.producer.purge()
    shop.close()
    assert delivery.result().offset == 7


def test_a_topic_is_a_text(writer: MakeWriter) -> None:
    with pytest.raises(EventRefused, match="topic must be a text"):
        writer(on=NOBODY).send(5, b"x", id="1")  # type: ignore[arg-type]
    with pytest.raises(EventRefused, match=r"topic: .* has a NUL"):
        writer(on=NOBODY).send("orders\0x", b"x", id="1")


def test_settings_of_the_wrong_kind_are_named_all_at_once() -> None:
    wrong: dict[str, Any] = {
        "bootstrap_servers": ["a:1", "b:2"],
        "kafka": "acks=all",
        "transactional_id": 5,
        "source": 5,
    }
    with pytest.raises(ConfigurationError) as caught:
        Writer(**wrong)
    assert [text.split(":")[0] for text in caught.value.fields["mistakes"]] == list(wrong)


def test_a_source_that_no_header_can_hold_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="source: it holds a lone surrogate"):
        Writer(bootstrap_servers=NOBODY, source="shop\ud800")
