"""Target partitions: the row's own, else the Java producer's for its key, else runs of rows that rotate over all."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import InputError
from onceflow.transaction.arrow import Integers, offsets
from onceflow.transaction.columns import as_binary

Partitions = npt.NDArray[np.int32]
_Words = npt.NDArray[np.uint32]

RUN_ROWS = 256  # rows without a key stay together this long: better compression than round robin, still balanced
_BLOCK_ROWS = 8192  # the temporaries of one block stay in the cache
_FEW = 16  # below this many keys a plain loop beats a numpy call per word
_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)


def assign_partitions(
    keys: pa.Array | None, explicit: pa.Array | None, count: int, *, rows: int, seed: int, first_row: int
) -> Partitions:
    """The partition of each of ``rows`` rows, below ``count``: ``explicit`` where not null, else by key, else by row.

    ``keys``: string or binary, nullable; ``explicit``: an integer array, nullable. The same ``seed`` and ``first_row``
    always give the same partitions, so a batch that runs again is the same batch. Raises InputError for an explicit
    partition out of range.
    """
    targets = _implicit(keys, count, rows=rows, seed=seed, first_row=first_row)
    if explicit is not None and explicit.null_count < rows:
        np.copyto(targets, _checked(explicit, count), where=_valid(explicit))
    return targets


def _implicit(keys: pa.Array | None, count: int, *, rows: int, seed: int, first_row: int) -> Partitions:
    if keys is not None and keys.null_count == 0:
        return partition_for_keys(keys, count)
    targets = spread(rows, count, seed=seed, first_row=first_row)
    if keys is not None and keys.null_count < rows:
        np.copyto(targets, partition_for_keys(keys, count), where=_valid(keys))
    return targets


def spread(rows: int, count: int, *, seed: int, first_row: int) -> Partitions:
    """Partitions for rows without a key: runs of ``RUN_ROWS`` rows, the first run of row 0 at ``seed`` modulo count."""
    runs = np.arange(first_row, first_row + rows, dtype=np.int64) // RUN_ROWS
    return ((runs + seed % count) % count).astype(np.int32)


def partition_for_keys(keys: pa.Array, count: int) -> Partitions:
    """The Java producer's partition for each key; what a null gives has no meaning. The empty key is a key."""
    hashes = murmur2(keys) & np.uint32(0x7FFFFFFF)
    return (hashes % np.uint32(count)).astype(np.int32)


def murmur2(keys: pa.Array) -> _Words:
    """Kafka's 32-bit murmur2 (``org.apache.kafka.common.utils.Utils.murmur2``) of each key, as uint32."""
    binary = as_binary(keys, "key")
    if len(binary) == 0:
        return np.empty(0, np.uint32)
    words, bounds = _words(binary.buffers()[2]), offsets(binary)
    blocks = range(0, len(binary), _BLOCK_ROWS)
    return np.concatenate([_hash(words, bounds[start : start + _BLOCK_ROWS + 1]) for start in blocks])


def _valid(column: pa.Array) -> Any:
    return True if column.null_count == 0 else column.is_valid().to_numpy(zero_copy_only=False)


def _checked(explicit: pa.Array, count: int) -> Partitions:
    low, high = pc.min_max(explicit).values()
    for value in (low.as_py(), high.as_py()):
        if not 0 <= value < count:
            raise InputError(
                f"the column partition holds {value}; the topic has {count} partitions (0 to {count - 1})",
                action="write partitions that exist, or null to let the key decide",
                partition=value,
                count=count,
            )
    filled: Partitions = explicit.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    return filled


def _words(data: pa.Buffer | None) -> _Words:
    """The 4-byte little-endian word that starts at each byte of ``data``, without a copy."""
    raw = np.zeros(4, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    if len(raw) < 4:
        raw = np.concatenate([raw, np.zeros(4 - len(raw), np.uint8)])
    return np.ndarray((len(raw) - 3,), np.dtype("<u4"), raw, strides=(1,))


def _hash(words: _Words, bounds: Integers) -> _Words:
    starts, lengths = bounds[:-1], np.diff(bounds)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    counts = lengths >> 2
    _mix_words(hashes, words, starts, counts)
    _mix_tails(hashes, words, starts + (counts << 2), lengths & 3)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _mix_words(hashes: _Words, words: _Words, starts: Integers, counts: Integers) -> None:
    for word in range(int(counts.min())):
        _mix(hashes, slice(None), words[starts + 4 * word])
    for word in range(int(counts.min()), int(counts.max())):
        longer = np.flatnonzero(counts > word)
        if len(longer) < _FEW:
            _mix_few(hashes, words, starts, counts, longer, word)
            return
        _mix(hashes, longer, words[starts[longer] + 4 * word])


def _mix(hashes: _Words, rows: Any, words: _Words) -> None:
    words *= _M
    words ^= words >> np.uint32(24)
    words *= _M
    hashes[rows] = (hashes[rows] * _M) ^ words


def _mix_few(hashes: _Words, words: _Words, starts: Integers, counts: Integers, rows: Any, first: int) -> None:
    """One key at a time from word ``first`` on: a few long keys must not cost a numpy call for every word."""
    multiplier = int(_M)
    for row in rows:
        start, end = int(starts[row]) + 4 * first, int(starts[row]) + 4 * int(counts[row])
        mixed = int(hashes[row])
        for word in words[start:end:4].tolist():
            scrambled = word * multiplier & 0xFFFFFFFF
            scrambled = (scrambled ^ scrambled >> 24) * multiplier
            mixed = (mixed * multiplier ^ scrambled) & 0xFFFFFFFF
        hashes[row] = mixed


def _mix_tails(hashes: _Words, words: _Words, starts: Integers, lengths: Integers) -> None:
    """The last 1 to 3 bytes; the word there may reach past the data, then an earlier word is shifted into place."""
    if not lengths.any():
        return
    places = np.minimum(starts, len(words) - 1)
    shifted = words[places] >> ((starts - places) << 3).astype(np.uint32)
    masks = (np.uint32(1) << (lengths << 3).astype(np.uint32)) - np.uint32(1)
    hashes ^= shifted & masks
    hashes *= np.where(lengths > 0, _M, np.uint32(1))
