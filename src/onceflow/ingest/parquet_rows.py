"""Parquet: row group by row group; a file is a whole, since its footer is written last.

Hazard::

    a bit of a page is damaged: 777 is read as 4294968073, without an error
    a page whose writer has noted its checksum (as Spark does) is compared with it; of another one nothing tells
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from onceflow.errors import InputError, SourceChanged
from onceflow.ingest.content import for_arrow
from onceflow.ingest.file_position import FilePosition

ROWS_PER_BATCH = 65_536
BYTES_PER_BATCH = 16 << 20
"""What rows become is held in memory, and Arrow's columns of text hold 2 GiB at most: so of wide rows fewer are taken at once."""


def parquet_batches(file: IO[bytes], position: FilePosition) -> Iterator[pa.RecordBatch]:
    """The rows after ``position.rows``, in the order of the file; none if it is at the end. Raises InputError."""
    if position.rows and not position.seen.is_of(file.fileno()):
        raise SourceChanged(f"{position.path} was written anew after {position.rows:,} rows of it were committed")
    try:
        with for_arrow(file) as own, pq.ParquetFile(own, page_checksum_verification=True) as opened:
            yield from _after(opened, position.rows)
    except (pa.ArrowInvalid, OSError) as error:  # OSError: bytes that are no metadata, or no page
        raise InputError(
            f"{position.path} is no whole Parquet file, or is damaged: {error}",
            action="move files in when they are whole, or choose --format; if it is damaged put a good copy in its place",
        ) from None


def _after(opened: pq.ParquetFile, skip: int) -> Iterator[pa.RecordBatch]:
    """Whole groups are skipped by their counts alone."""
    for group in range(opened.num_row_groups):
        told = opened.metadata.row_group(group)
        if skip >= told.num_rows:
            skip -= told.num_rows
            continue
        for batch in opened.iter_batches(_that_fit(told.num_rows, told.total_byte_size), row_groups=[group]):
            if skip < batch.num_rows:
                yield from _pieces(batch.slice(skip))
            skip = max(0, skip - batch.num_rows)


def _that_fit(rows: int, size_bytes: int) -> int:
    return max(1, min(ROWS_PER_BATCH, rows * BYTES_PER_BATCH // max(1, size_bytes)))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The size that a file tells is that of encoded values: what is there many times counts once."""
    rows = _that_fit(batch.num_rows, sum(map(_bytes_of, batch.columns)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _bytes_of(column: pa.Array) -> int:
    if not pt.is_dictionary(column.type):
        return int(column.nbytes)
    return int(column.dictionary.nbytes) * len(column) // max(1, len(column.dictionary))
