"""What a file is by its first bytes: packed in a way that is read here, in another one, or no text at all.

Hazards::

    a zstd or lz4 file begins with frames that a reader is to skip (pzstd notes sizes in them), and not with its own magic number
    they are skipped: taken for text, the packed bytes would be rows

    a file is packed in a way that is not read here, packed twice, or an archive; or it is UTF-16
    it is refused before its first row: its bytes have line ends too, so they would be cut into rows
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from onceflow.errors import InputError

HEAD_BYTES = 512
_READ = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_NOT_READ = {
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"PK\x07\x08": "zip",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x02\x21\x4c\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"Rar!\x1a\x07": "rar",
    b"LZIP\x01": "lzip",
    b"\x1f\x9d": "compress (.Z)",
}
_BLOCK_OF_BZIP2, _END_OF_BZIP2 = b"1AY&SY", b"\x17rE8P\x90"  # behind its "BZh" and a digit, which might be text
_SKIPPED = range(0x184D2A50, 0x184D2A60)  # magic numbers of frames to skip, in zstd and in lz4
_TAR, _TAR_AT = b"ustar", 257
_PARQUET = b"PAR1\x15"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF_16_ACTION = "convert the file to UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"


def compression_of(file: IO[bytes]) -> str | None:
    """``gzip``, ``zstd`` or None, by the first bytes: names lie after a rotation."""
    at = _behind_skipped(lambda size, place: os.pread(file.fileno(), size, place))
    head = os.pread(file.fileno(), 4, at)
    # Frames to skip alone unpack to nothing in either format; lz4 is refused as soon as a frame of its own follows.
    return _named(_READ, head) or ("zstd" if at and _named(_NOT_READ, head) is None else None)


def check_text(head: bytes, path: Path) -> None:
    """Raises InputError unless these first bytes, unpacked if need be, may be text; ``HEAD_BYTES`` of them tell."""
    at = _behind_skipped(lambda size, place: head[place : place + size])
    packed = _named({**_READ, **_NOT_READ}, head[at:]) or ("zstd or lz4" if at else None)
    if packed is not None:
        raise InputError(
            f"{path}: its content is packed: {packed}",
            action="unpack it, or pack it once with gzip or zstd; nothing of it was written",
            path=str(path),
        )
    if head[_TAR_AT:].startswith(_TAR):
        raise InputError(
            f"{path} is a tar archive", action="unpack the files in it; nothing of it was written", path=str(path)
        )
    if head.startswith(_PARQUET):
        raise InputError(
            f"{path} is a Parquet file", action="choose --format parquet; nothing of it was written", path=str(path)
        )
    if head.startswith(_UTF_16) or b"\0" in head[:4]:
        raise InputError(
            f"{path} is UTF-16 or no text at all: it begins {head[:20]!r}",
            action=f"{_UTF_16_ACTION}; nothing of it was written",
            path=str(path),
        )


def _named(magic: dict[bytes, str], head: bytes) -> str | None:
    found = next((name for first, name in magic.items() if head.startswith(first)), None)
    return None if found == "bzip2" and not head[4:].startswith((_BLOCK_OF_BZIP2, _END_OF_BZIP2)) else found


def _behind_skipped(read: Callable[[int, int], bytes]) -> int:
    """Where the first frame begins that is not to be skipped; ``read``: so many bytes from a place on."""
    at = 0
    while int.from_bytes((head := read(8, at))[:4], "little") in _SKIPPED:
        at += 8 + int.from_bytes(head[4:], "little")  # of a file that ends in there, some place behind its end
    return at
