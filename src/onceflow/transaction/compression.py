"""Compression of a records section, in the framings that every Kafka client can read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import lz4.frame
import pyarrow as pa

_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)  # magic, version, lowest compatible version
_XERIAL_BLOCK_BYTES = 32 * 1024  # what snappy-java writes


class Codec(IntEnum):
    """A compression type with Kafka's id for it (attributes bits 0-2 of message format v2)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Kafka's own defaults. The other codecs take no level here.
LEVELS = {Codec.GZIP: 6, Codec.ZSTD: 3}


def compress(codec: Codec, data: bytes | memoryview) -> bytes:
    """``data`` in ``codec``'s framing. Releases the GIL; any thread."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.LZ4:
            return _lz4(data)
        case Codec.SNAPPY:
            return b"".join(_xerial(memoryview(data)))
        case Codec.GZIP | Codec.ZSTD:
            packed: bytes = pa.Codec(codec.name.lower(), compression_level=LEVELS[codec]).compress(data, asbytes=True)
            return packed


def _lz4(data: bytes | memoryview) -> bytes:
    # Java's reader refuses dependent blocks: the default of the library, and all that pyarrow's codec writes.
    # 64 KiB blocks are what the Java producer writes; larger ones gain 1 % in size and nothing in speed.
    packed: bytes = lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False)
    return packed


def _xerial(data: memoryview) -> Iterator[bytes]:
    """The snappy-java stream: a header of 16 bytes, then blocks, each after its length as big-endian int32."""
    codec = pa.Codec("snappy")
    yield _XERIAL_HEADER
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = codec.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        yield struct.pack(">i", len(block))
        yield block
