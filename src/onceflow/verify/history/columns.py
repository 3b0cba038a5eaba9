"""A history as plain number columns: what every check reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.history.coding import Ints, codes_of, dense, plain_numbers, words_of
from onceflow.verify.history.schema import KINDS, STATUSES, Kind
from onceflow.verify.history.validation import validate

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """One array a column, one element a row; -1 where a row has nothing. Names stand in ``keys`` and ``values``.

    A *unit* is what shares one fate: all rows of a transaction, or of an operation outside of transactions.
    """

    table: pa.Table
    unit: Ints
    op: Ints
    process: Ints
    kind: npt.NDArray[np.int8]
    status: npt.NDArray[np.int8]
    in_txn: Mask
    key: Ints
    offset: Ints
    until: Ints
    value: Ints
    group: Ints
    keys: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, table: pa.Table, where: str = "the history") -> Columns:
        """The columns of a history. Raises HistoryInvalid with every mistake found."""
        return cls.of_valid(validate(table, where))

    @classmethod
    def of_valid(cls, table: pa.Table) -> Columns:
        """The columns of a history that is validated, as one from a file is."""
        txn, op = dense(plain_numbers(table["txn"])), dense(plain_numbers(table["op"]))
        in_txn = txn >= 0
        key, keys = codes_of(table["key"])
        value, values = codes_of(table["value"])
        return cls(
            table=table,
            unit=np.where(in_txn, txn, op + int(txn.max(initial=-1)) + 1),
            op=op,
            process=codes_of(table["process"])[0],
            kind=words_of(table["kind"], KINDS),
            status=words_of(table["status"], STATUSES),
            in_txn=in_txn,
            key=key,
            offset=plain_numbers(table["offset"]),
            until=plain_numbers(table["until"]),
            value=value,
            group=codes_of(table["group"])[0],
            keys=keys,
            values=values,
        )

    def codes(self, names: Iterable[str]) -> Ints:
        """The numbers that ``key`` has for those of these names that are in the history."""
        return np.flatnonzero(np.asarray(pc.is_in(self.keys, pa.array(list(names), pa.string())), bool))

    def rows(self, *kinds: Kind) -> Ints:
        """The rows of these kinds, in order."""
        mask = self.kind == kinds[0]
        for kind in kinds[1:]:
            mask |= self.kind == kind
        return np.flatnonzero(mask)
