"""Kafka's frames on a stream: a size, then a request header (KIP-511) or the correlation id of an answer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from onceflow.kafka_python import ApiVersionsRequest, EndTxnResponse
from onceflow.verify.wire.rules import Head

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
_LARGEST = 256 << 20


def frames(source: BinaryIO) -> Iterator[bytes]:
    """Every whole frame with its size, until the stream ends or breaks."""
    while len(size := source.read(_SIZE.size)) == _SIZE.size:
        (length,) = _SIZE.unpack(size)
        if not 0 <= length <= _LARGEST:
            raise OSError(f"a frame of {length} bytes: that is not Kafka's protocol")
        rest = source.read(length)
        if len(rest) < length:
            return
        yield size + rest


def request_head(frame: bytes) -> Head:
    """The header of a request, whatever its version: the client id stands at the same place in all of them."""
    begin = _SIZE.size + _REQUEST.size
    if len(frame) < begin:
        raise OSError(f"a request of {len(frame)} bytes: that is not Kafka's protocol")
    api, version, correlation, length = _REQUEST.unpack_from(frame, _SIZE.size)
    client_id = frame[begin : begin + max(length, 0)].decode(errors="replace")
    return Head(api, version, correlation, client_id)


def correlation_of(frame: bytes) -> int:
    """The correlation id of an answer."""
    if len(frame) < 2 * _SIZE.size:
        raise OSError(f"an answer of {len(frame)} bytes: that is not Kafka's protocol")
    (correlation,) = _SIZE.unpack_from(frame, _SIZE.size)
    return int(correlation)


def failed(head: Head, error: int) -> bytes:
    """The answer to an EndTxn that says ``error``, as a broker gives it."""
    kind = EndTxnResponse[head.version]
    answer = kind(throttle_time_ms=0, error_code=error, producer_id=-1, producer_epoch=-1)
    answer.with_header(head.correlation)
    return bytes(answer.encode(header=True, framed=True))


def idle_question(head: Head) -> bytes:
    """A request that changes nothing, in the place of this one: its answer comes when this one's would."""
    question = ApiVersionsRequest[0]()
    question.with_header(head.correlation, head.client_id)
    return bytes(question.encode(header=True, framed=True))
