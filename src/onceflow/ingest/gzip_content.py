"""The unpacked bytes of a gzip file: member after member, and the zeros behind the last one, which a tape or a block device adds.

::

    a file of 3 KB comes back from a tape as 10 KB, the rest of which is zeros
    they are no member and no damage: left out, as gzip(1) does

    a file is still being copied into place that was reserved for it; the zeros end where the next member has been written
    left out, they would be rows that are lost: refused
"""

from __future__ import annotations

import zlib
from typing import IO

_PIECE_BYTES = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS  # with its header and checksum


class GzipContent:
    """``file`` is open and unbuffered, and read from where it stands. Raises OSError for what is no gzip, or is cut off."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._packed = b""
        self._member = zlib.decompressobj(_GZIP)

    def read(self, size: int, /) -> bytes:
        """So many bytes, fewer only at the end."""
        parts, missing = [], size
        while missing and (part := self._some(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        """At least one byte, none at the end."""
        while not (part := self._unpacked(size)):
            if self._member.eof:
                if not self._begin_next():
                    return b""
            elif not self._more():
                raise OSError("it is cut off, its end is missing")
        return part

    def _unpacked(self, size: int) -> bytes:
        if self._member.eof:
            return b""
        try:
            part = self._member.decompress(self._packed, size)
        except zlib.error as error:
            raise OSError(str(error)) from error
        self._packed = self._member.unused_data or self._member.unconsumed_tail  # behind the member, or in it
        return part

    def _more(self) -> bool:
        self._packed = self._packed or self._file.read(_PIECE_BYTES)
        return bool(self._packed)

    def _begin_next(self) -> bool:
        """Whether there is another member."""
        if self._more() and self._packed.startswith(b"\0"):
            self._pass_zeros()
        if self._packed:
            self._member = zlib.decompressobj(_GZIP)
        return bool(self._packed)

    def _pass_zeros(self) -> None:
        while self._more():
            if self._packed.strip(b"\0"):
                raise OSError("zeros follow a part of it, and more follows these")
            self._packed = b""
