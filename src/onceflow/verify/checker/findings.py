"""What a check found, as a table of one row per finding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from onceflow.verify.history.coding import Ints
from onceflow.verify.history.columns import Columns

FINDINGS = ("anomaly", "key", "offset", "value", "rows", "detail")
"""Columns of a findings table. ``rows`` are the numbers of the history's rows that show it, the accused one first."""


def findings(history: Columns, anomaly: str, rows: Ints, *witnesses: Ints, detail: str = "") -> pa.Table:
    """One finding for each of ``rows``, which gives key, offset and value; ``witnesses`` are rows as well, or -1."""
    shown = np.stack([rows, *witnesses], axis=1) if len(rows) else np.empty((0, 1), np.int64)
    return _table(
        history,
        anomaly,
        (history.key[rows], history.offset[rows], history.value[rows]),
        pa.ListArray.from_arrays(_ends(shown), pa.array(shown[shown >= 0])),
        pa.array([detail] * len(rows), pa.string()),
    )


def one_finding(
    history: Columns, anomaly: str, rows: list[int], *, place: tuple[int, int, int] | None = None, detail: str = ""
) -> pa.Table:
    """A finding of any number of rows; ``place`` is (key, offset, value) where it is not that of the first row."""
    key, offset, value = place or (history.key[rows[0]], history.offset[rows[0]], history.value[rows[0]])
    coded = (np.array([key]), np.array([offset]), np.array([value]))
    return _table(history, anomaly, coded, pa.array([rows], pa.list_(pa.int64())), pa.array([detail], pa.string()))


def joined(history: Columns, tables: list[pa.Table]) -> pa.Table:
    """All findings in one table, which has its columns even when there is none."""
    return pa.concat_tables([findings(history, "", np.empty(0, np.int64)), *tables]).combine_chunks()


def _table(
    history: Columns, anomaly: str, place: tuple[Ints, Ints, Ints], rows: pa.ListArray, detail: pa.Array
) -> pa.Table:
    key, offset, value = place
    return pa.table(
        {
            "anomaly": pa.array([anomaly] * len(rows), pa.string()),
            "key": history.keys.take(pa.array(key, mask=key < 0)),
            "offset": pa.array(offset, mask=offset < 0),
            "value": history.values.take(pa.array(value, mask=value < 0)),
            "rows": rows,
            "detail": detail,
        }
    )


def _ends(shown: Ints) -> pa.Array:
    counts = (shown >= 0).sum(axis=1)
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
