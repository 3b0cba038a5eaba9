"""The columns of a history, version 1. The meaning of each stands in ``docs/history-format.md``; change both together."""

from __future__ import annotations

from enum import IntEnum

import pyarrow as pa

VERSION = 1
VERSION_KEY = b"onceflow.history"  # in the metadata of the Arrow schema

# A key and an offset travel through the checks as one 64-bit number.
OFFSET_BITS = 43
MAX_OFFSET = (1 << OFFSET_BITS) - 1
MAX_KEYS = MAX_PAIRS = 1 << 20  # what fits into 64 bits beside an offset, of keys, and of pairs of key and group


class Kind(IntEnum):
    """What a row says; in files the name in small letters."""

    SEND = 0
    POLL = 1
    WINDOW = 2
    ASSIGN = 3
    SUBSCRIBE = 4
    CRASH = 5
    EFFECT = 6
    LOG_END = 7
    STABLE_END = 8
    POSITION = 9
    GONE = 10


class Status(IntEnum):
    """What became of the operation; the order is that in which a writer is believed."""

    OK = 0
    INFO = 1
    FAIL = 2


KINDS = tuple(kind.name.lower() for kind in Kind)
STATUSES = tuple(status.name.lower() for status in Status)

_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field("op", pa.int64(), nullable=False),
        pa.field("process", _NAME, nullable=False),
        pa.field("kind", _NAME, nullable=False),
        pa.field("status", _NAME, nullable=False),
        pa.field("txn", pa.int64()),
        pa.field("key", _NAME),
        pa.field("offset", pa.int64()),
        pa.field("until", pa.int64()),
        pa.field("value", pa.int64()),  # or strings, as the history has them
        pa.field("group", _NAME),
    ],
    metadata={VERSION_KEY: str(VERSION).encode()},
)
OPTIONAL = frozenset({"txn", "key", "offset", "until", "value", "group"})

REQUIRED_BY_KIND: dict[Kind, tuple[str, ...]] = {
    Kind.SEND: ("key", "value"),
    Kind.POLL: ("key", "offset", "value"),
    Kind.WINDOW: ("key", "offset", "until"),
    Kind.ASSIGN: ("key",),
    Kind.SUBSCRIBE: (),
    Kind.CRASH: (),
    Kind.EFFECT: ("key", "value"),
    Kind.LOG_END: ("key", "offset"),
    Kind.STABLE_END: ("key", "offset"),
    Kind.POSITION: ("key", "offset"),
    Kind.GONE: ("key", "offset", "until"),
}
"""The columns that a row of each kind must fill."""
