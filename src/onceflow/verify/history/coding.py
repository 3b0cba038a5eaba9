"""Small numbers for names: what the checks compute with instead of text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


def codes_of(column: pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    """For each row a number from 0 on, -1 for null, and what the numbers stand for."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # dictionaries of several chunks stay apart, and a column without rows
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    return plain_numbers(coded.indices), coded.dictionary


def words_of(column: pa.ChunkedArray, words: tuple[str, ...]) -> npt.NDArray[np.int8]:
    """For each row the place of its word among these, -1 for null and for any other word."""
    codes, names = codes_of(column)
    place = np.asarray(pc.index_in(names, pa.array(words)).fill_null(-1), np.int8)
    return np.append(place, np.int8(-1))[codes]


def plain_numbers(column: pa.ChunkedArray | pa.Array) -> Ints:
    """An integer column as numpy has it, -1 for null."""
    return np.asarray(column.cast(pa.int64()).fill_null(-1))


def numbered(column: pa.ChunkedArray | pa.Array, names: pa.Array) -> Ints:
    """For each element its number among these, -1 where it is none of them."""
    return plain_numbers(pc.index_in(column, names))


def dense(numbers: Ints) -> Ints:
    """Numbers without gaps that are equal where the given ones are; -1 stays -1."""
    highest = int(numbers.max(initial=-1))
    if highest < 4 * len(numbers) + 1024:  # small already: a table of what occurs is faster than a hash table
        occurs = np.zeros(highest + 2, bool)
        occurs[numbers] = True
        occurs[-1] = False
        if occurs[:-1].all():
            return numbers
        small = np.cumsum(occurs.view(np.int8), dtype=np.int64) - 1
        small[-1] = -1
        return small[numbers]
    coded = pa.array(numbers, mask=numbers < 0).dictionary_encode()
    return plain_numbers(coded.indices)


def distinct(numbers: Ints) -> Ints:
    """The numbers in order, each once.

    As ``np.unique`` gives them, which hashes since NumPy 2.3: the numbers of a history are nearly sorted, and then that takes a
    hundred times as long as to sort them.
    """
    ordered = np.sort(numbers, kind="stable")
    first: _Mask = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return ordered[first]


def among(numbers: Ints, chosen: Ints) -> _Mask:
    """For each number whether it is one of the chosen ones: ``np.isin`` where a table can tell, else without its hashes."""
    if not len(numbers) or not len(chosen):
        return np.zeros(len(numbers), bool)
    if int(chosen.max()) - int(chosen.min()) < 4 * (len(numbers) + len(chosen)) + 1024:
        return np.isin(numbers, chosen, kind="table")
    ordered = np.sort(chosen, kind="stable")
    found: _Mask = ordered[np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)] == numbers
    return found


def lowest(groups: Ints, numbers: Ints, count: int) -> Ints:
    """For each of so many groups the lowest of its numbers, beyond all where it has none."""
    found = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(found, groups, numbers)
    return found


def expanded(begin: Ints, end: Ints, name: Ints) -> tuple[Ints, Ints]:
    """All numbers of these ranges, and for each the name of its range."""
    count = end - begin
    nth = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(begin, count) + nth, np.repeat(name, count)


def occurrence(groups: Ints) -> Ints:
    """For each element, none of them negative, how many equal ones stand before it."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sizes = np.diff(np.append(starts, len(groups)))
    nth = np.empty(len(groups), np.int64)
    nth[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return nth
