"""Parquet: row group by row group; a file is a whole, since its footer is written last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from onceflow.errors import InputError, SourceChanged
from onceflow.ingest.content import for_arrow
from onceflow.ingest.file_position import FilePosition

ROWS_PER_BATCH = 65_536


def parquet_batches(file: IO[bytes], position: FilePosition) -> Iterator[pa.RecordBatch]:
    """The rows after ``position.rows``, in the order of the file; none if it is at the end. Raises InputError."""
    if position.rows and not position.seen.is_of(file.fileno()):
        raise SourceChanged(f"{position.path} was written anew after {position.rows:,} rows of it were committed")
    try:
        with for_arrow(file) as own, pq.ParquetFile(own) as opened:
            yield from _after(opened, position.rows)
    except (pa.ArrowInvalid, OSError) as error:  # OSError: bytes that are no metadata, or no page
        raise InputError(
            f"{position.path} is no whole Parquet file: {error}",
            action="move files in when they are whole, or choose --format",
        ) from None


def _after(opened: pq.ParquetFile, skip: int) -> Iterator[pa.RecordBatch]:
    """Whole groups are skipped by their counts alone."""
    for group in range(opened.num_row_groups):
        count = opened.metadata.row_group(group).num_rows
        if skip >= count:
            skip -= count
            continue
        for batch in opened.iter_batches(ROWS_PER_BATCH, row_groups=[group]):
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)
