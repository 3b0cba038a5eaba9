"""Arrow binary arrays seen as numpy arrays, and back, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Integers = npt.NDArray[Any]


def binary_array(starts: npt.NDArray[np.int32], data: npt.NDArray[np.uint8] | pa.Buffer) -> pa.Array:
    """A binary array of ``len(starts) - 1`` values: value i is ``data[starts[i]:starts[i + 1]]``."""
    return pa.Array.from_buffers(pa.binary(), len(starts) - 1, [None, pa.py_buffer(starts), pa.py_buffer(data)])


def offsets(array: pa.Array) -> Integers:
    """Where each value of a binary array (int32) or large_binary array (int64) starts in its data; then the end."""
    kind = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    return np.frombuffer(array.buffers()[1], kind, len(array) + 1, array.offset * kind.itemsize)


def lengths(array: pa.Array) -> Integers:
    """The length of each value in bytes as int64, -1 for null (which is how Kafka's formats write null)."""
    measured: Integers = pc.binary_length(array).fill_null(-1).to_numpy(zero_copy_only=False)
    return measured.astype(np.int64)


def join(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """The binary columns put together row by row, in one pass in C++; a null adds nothing."""
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")
