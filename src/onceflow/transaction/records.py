"""Rows of Arrow columns to the records of message format v2 (KIP-98), a whole block of rows at a time.

A record is ``length, attributes (0), timestamp delta, offset delta, key length, key, value length, value, headers``;
all numbers are zigzag varints, the length counts what follows it, and -1 stands for null. The numbers before the key,
and the value's length, become two binary columns of their own; then one Arrow kernel joins the columns row by row, and
the data buffer of its result is the records section.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import InputError
from onceflow.transaction.arrow import Integers, join, lengths
from onceflow.transaction.headers import encode_headers
from onceflow.transaction.varint import encode, sizes_bytes, zigzag

_NO_HEADERS = b"\x00"
_NULL = 1  # the varint of -1


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one block in Kafka's terms; ``headers`` are encoded, ``timestamps_ms`` is None for the default."""

    value: pa.Array
    key: pa.Array | None
    headers: pa.Array | None
    timestamps_ms: Integers | None

    def take(self, order: pa.Array) -> Rows:
        """The rows in another order."""
        key, headers, timestamps = self.key, self.headers, self.timestamps_ms
        return Rows(
            pc.take(self.value, order, boundscheck=False),
            None if key is None else pc.take(key, order, boundscheck=False),
            None if headers is None else pc.take(headers, order, boundscheck=False),
            None if timestamps is None else timestamps[order.to_numpy()],
        )


def read_rows(batch: pa.RecordBatch, default_timestamp_ms: int) -> Rows:
    """The rows of a normalized batch below 2 GB.

    Raises InputError for a header without a key or a timestamp before 1970.
    """
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    key, headers, timestamp = given.get("key"), given.get("headers"), given.get("timestamp")
    return Rows(
        given["value"].cast(pa.binary()),
        None if key is None or key.null_count == len(key) else key.cast(pa.binary()),
        None if headers is None else encode_headers(headers),
        None if timestamp is None else _milliseconds(timestamp, default_timestamp_ms),
    )


def _milliseconds(timestamps: pa.Array, default_ms: int) -> Integers:
    numbers: Integers = timestamps.cast(pa.int64()).fill_null(default_ms).to_numpy(zero_copy_only=False)
    if len(numbers) and numbers.min() < 0:
        raise InputError(
            f"the column timestamp holds {numbers.min()} ms, a time before 1970, which Kafka does not take",
            action="mend the timestamp, or write null for the time of the batch",
            timestamp_ms=int(numbers.min()),
        )
    return numbers


class RecordEncoder:
    """The records of ``rows``: sizes first, so that the caller can place them in chunks, then the bytes."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._value, content_bytes = _measure(rows.value)
        self._key: Integers | None = None
        if rows.key is not None:
            self._key, key_bytes = _measure(rows.key)
            content_bytes += key_bytes - 1
        if rows.headers is not None:
            content_bytes += lengths(rows.headers) - 1
        self._content_bytes = content_bytes + 3  # attributes, no key, no headers; the two deltas come on top

    def sizes_bytes(self, deltas_bytes: int | Integers) -> Integers:
        """The size of each record when its two deltas take ``deltas_bytes``."""
        bodies = self._content_bytes + deltas_bytes
        return bodies + sizes_bytes(zigzag(bodies))

    def encode(self, offset_deltas: Integers, timestamp_deltas: Integers | None) -> pa.Array:
        """One binary value a row, adjacent in its data; ``timestamp_deltas`` None stands for zeros."""
        rows = self._rows
        offsets = zigzag(offset_deltas)
        timestamps = 0 if timestamp_deltas is None else zigzag(timestamp_deltas)
        bodies = self._content_bytes + sizes_bytes(offsets)
        bodies += 1 if isinstance(timestamps, int) else sizes_bytes(timestamps)
        front = (zigzag(bodies), 0, timestamps, offsets)
        headers = _NO_HEADERS if rows.headers is None else rows.headers
        if self._key is None:
            return join(encode(*front, _NULL, self._value), rows.value, headers)
        return join(encode(*front, self._key), rows.key, encode(self._value), rows.value, headers)


def _measure(column: pa.Array) -> tuple[Integers, Integers]:
    """The length of each value in zigzag, and the bytes that it takes with its length in front."""
    content = lengths(column)
    prefix = zigzag(content)
    return prefix, np.maximum(content, 0) + sizes_bytes(prefix)
