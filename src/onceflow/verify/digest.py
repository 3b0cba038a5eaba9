"""A record as one number: equal numbers, equal records."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

Header = tuple[str, bytes | str | None]


def key_digest(key: bytes | None) -> int | None:
    """64 bits of a record's key, signed; None for no key."""
    return None if key is None else _number(key)


def content_digest(key: bytes | None, value: bytes | None, headers: Iterable[Header] | None) -> int:
    """64 bits of a record's key, value and headers (in their order), signed. Its timestamp does not count."""
    parts = [_sized(key), _sized(value)]
    for name, header in headers or ():
        parts += [_sized(name.encode()), _sized(header.encode() if isinstance(header, str) else header)]
    return _number(b"".join(parts))


def _sized(part: bytes | None) -> bytes:
    """With its length in front, so that no two lists of parts are the same bytes; null is not the empty value."""
    return b"-" if part is None else b"%d:%b" % (len(part), part)


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
