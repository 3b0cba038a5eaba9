"""Each codec gives what other Kafka clients read, in the framing they expect."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace

import kafka.codec
import lz4.frame
import pyarrow as pa
import pytest

from onceflow.transaction.compression import Codec, compress

SAMPLES = {
    "one byte": b"x",
    "text": b'{"user": 1, "amount": 20.5}' * 10_000,
    "noise": random.Random(1).randbytes(200_000),
    "block edge": b"ab" * (32 * 1024),
}


@pytest.fixture(params=list(SAMPLES.values()), ids=list(SAMPLES))
def data(request: pytest.FixtureRequest) -> bytes:
    sample: bytes = request.param
    return sample


def snappy_block(block: bytes) -> bytes:
    """Decodes a raw block; its size stands in front as a varint."""
    size = shift = 0
    for byte in block:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)  # type: ignore[no-any-return]


def stream(name: str, packed: bytes) -> bytes:
    return pa.CompressedInputStream(pa.BufferReader(packed), name).read()  # type: ignore[no-any-return]


def test_ids_are_kafkas() -> None:
    assert {codec.name: codec.value for codec in Codec} == {"NONE": 0, "GZIP": 1, "SNAPPY": 2, "LZ4": 3, "ZSTD": 4}


def test_none_is_the_data_itself(data: bytes) -> None:
    assert compress(Codec.NONE, data) is data


def test_gzip_is_read_by_kafka_python(data: bytes) -> None:
    assert kafka.codec.gzip_decode(compress(Codec.GZIP, data)) == data


def test_zstd_is_a_plain_frame(data: bytes) -> None:
    assert stream("zstd", compress(Codec.ZSTD, data)) == data


def test_snappy_is_read_by_kafka_python_as_blocks_of_snappy_java(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka.codec, "snappy", SimpleNamespace(decompress=lambda block: snappy_block(bytes(block))))
    packed = compress(Codec.SNAPPY, data)
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    assert kafka.codec.snappy_decode(packed) == data


def test_lz4_blocks_are_independent_because_java_refuses_others(data: bytes) -> None:
    packed = compress(Codec.LZ4, data)
    described = lz4.frame.get_frame_info(packed)
    assert not described["block_linked"]
    assert described["block_size"] == 64 * 1024
    assert kafka.codec.lz4_decode(packed) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_a_view_gives_what_bytes_give(codec: Codec, data: bytes) -> None:
    assert compress(codec, memoryview(b"-" + data)[1:]) == compress(codec, data)
