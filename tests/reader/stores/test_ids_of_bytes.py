"""Ids that are no UTF-8: each store keeps them apart, also from texts that look like them."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Message

from onceflow.events import header_text, identity_of
from onceflow.reader.event import event_of
from onceflow.reader.stores import open_store
from onceflow.reader.stores.interface import EventKey, Retention, Standing

_GROUPS = itertools.count()
_LOOKS_LIKE_FF = b"\xef\xbf\xbfff"  # U+FFFF, then the digits that the byte FF gets
IDS = (
    b"\xff",
    rb"\xff",
    b"ff",
    b"\xff\xff",
    b"a\xff",
    b"\xfe",
    "\u00ff".encode(),
    _LOOKS_LIKE_FF,
    header_text(_LOOKS_LIKE_FF).encode(),
    b"\xef\xbf\xbf",
    b"\xff\x00",
    b"a\x00",
    b"\xed\xa0\x80",  # half of a surrogate pair, which is no UTF-8
    b"\xff" * 600,
    b"\xff" * 599 + b"\xfe",
)


def entries(ids: tuple[bytes, ...], first: int, header: str) -> list[EventKey]:
    headers = {"ce_id": b"1", "ce_source": b"s"}
    return [_entry(offset, {**headers, header: raw}) for offset, raw in enumerate(ids, first)]


def _entry(offset: int, headers: dict[str, bytes]) -> EventKey:
    given: Any = {"topic": "t", "partition": 0, "offset": offset, "headers": list(headers.items())}
    return event_of(Message(**given), "place").entry


@pytest.mark.parametrize("header", ["ce_id", "ce_source"])
def test_no_two_are_one_and_each_is_known_again(store_url: str, header: str) -> None:
    with closing(open_store(store_url)) as store:
        store.open(f"bytes-{next(_GROUPS)}", Retention())
        (ownership,) = store.take("t", [0], "tests")
        for first, expected in ((0, Standing.NEW), (len(IDS), Standing.DUPLICATE)):
            keys = entries(IDS, first, header)
            assert store.claim(ownership, keys, 60) == [expected] * len(IDS)
            store.confirm(ownership, keys)


def test_what_is_text_stays_as_it_is() -> None:
    """Ids that a store holds by now are found again."""
    for text in ("a", "\u00ff", r"\xff", "\uffff", "\uffffxy", "\uffffFF", "a\uffffff", "\U0001f600", "\ufffd"):
        assert header_text(text.encode()) == header_text(text) == text
    assert header_text(None) == header_text(b"") == ""


def test_the_headers_name_the_same() -> None:
    for raw in IDS:
        headers = {"ce_id": raw, "ce_source": b"s"}
        identity = identity_of(headers)
        assert identity is not None
        assert identity.id == _entry(0, headers).id
