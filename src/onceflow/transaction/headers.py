"""The headers section of records, from Spark's headers column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import InputError
from onceflow.transaction.arrow import binary_array, join, lengths, offsets
from onceflow.transaction.varint import encode, zigzag


def encode_headers(column: pa.Array) -> pa.Array | None:
    """The headers section of each row (binary): a count, then key and value of each header; None if no row has any.

    ``column``: list<struct<key: string, value: binary>>, nullable. A null value stays null; a null key raises
    InputError.
    """
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    if not counts.any():
        return None
    keys, values = column.flatten().flatten()
    if keys.null_count:
        raise InputError(
            f"{keys.null_count} headers have no key", action="give every header a key, or drop it", column="headers"
        )
    sizes = [encode(zigzag(lengths(child))) for child in (keys, values)]
    entries = join(sizes[0], keys.cast(pa.binary()), sizes[1], values)
    # The headers of a row lie next to each other, so its section is only a wider slice of the same bytes.
    last = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    sections = binary_array(offsets(entries)[last], entries.buffers()[2])
    return join(encode(zigzag(counts)), sections)
