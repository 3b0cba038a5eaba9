"""Zigzag varints (Protocol Buffers' encoding, used by message format v2), a whole column at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceflow.transaction.arrow import Integers, binary_array

_Bits = npt.NDArray[np.bool_]


def zigzag(values: Integers) -> Integers:
    """Signed to unsigned, small magnitudes first: 0, -1, 1, -2 become 0, 1, 2, 3. Same width in bytes."""
    width = values.dtype.itemsize
    folded: Integers = (values << 1) ^ (values >> (8 * width - 1))
    return folded.view(f"u{width}")


def size_bytes(value: int) -> int:
    """The encoded size of one signed value."""
    return _width((value << 1) ^ (value >> 63))


def sizes_bytes(zigzags: Integers) -> npt.NDArray[np.int64]:
    """The encoded size of each value, 1 to 10 bytes."""
    sizes = np.ones(len(zigzags), np.int64)
    for width in range(1, _width(zigzags.max(initial=0))):
        sizes += zigzags >= zigzags.dtype.type(1 << 7 * width)
    return sizes


def encode(*fields: Integers | int) -> pa.Array:
    """One binary value a row: the varints of all ``fields``, one after the other.

    A field is an array of zigzag values, or a byte that is the same in every row; at least one is an array, not empty.
    """
    rows = next(len(field) for field in fields if not isinstance(field, int))
    columns = [column for field in fields for column in _byte_columns(field)]
    encoded = np.empty((rows, len(columns)), np.uint8)
    for index, (byte, _) in enumerate(columns):
        encoded[:, index] = byte  # keeps the low 8 bits
    present = {index: rows_with_it for index, (_, rows_with_it) in enumerate(columns) if rows_with_it is not None}
    return _ragged(encoded, present) if present else _uniform(encoded)


def _byte_columns(field: Integers | int) -> list[tuple[Integers | int, _Bits | None]]:
    """Each byte position of a field, and the rows that have it (None: all)."""
    if isinstance(field, int):
        return [(field, None)]
    shortest, longest = _width(field.min()), _width(field.max())
    kind = field.dtype.type
    columns: list[tuple[Integers | int, _Bits | None]] = []
    present: _Bits | None = None
    for position in range(longest):
        rest = field >> kind(7 * position) if position else field
        if position == longest - 1:
            columns.append((rest, present))
        elif position < shortest - 1:
            columns.append((rest | kind(0x80), present))
        else:
            more = rest >= kind(0x80)
            columns.append(((rest & kind(0x7F)) | (more.view(np.uint8) << np.uint8(7)), present))
            present = more
    return columns


def _ragged(encoded: npt.NDArray[np.uint8], present: dict[int, _Bits]) -> pa.Array:
    rows, width = encoded.shape
    kept = np.ones((rows, width), bool)
    sizes = np.full(rows, width - len(present), np.int32)
    for index, rows_with_it in present.items():
        kept[:, index] = rows_with_it
        sizes += rows_with_it
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return binary_array(offsets, encoded[kept])


def _uniform(encoded: npt.NDArray[np.uint8]) -> pa.Array:
    rows, width = encoded.shape
    return binary_array(np.arange(0, rows * width + 1, width, dtype=np.int32), encoded)


def _width(zigzag: Any) -> int:
    return max(1, -(-int(zigzag).bit_length() // 7))
