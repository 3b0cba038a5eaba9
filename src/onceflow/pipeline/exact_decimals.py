"""Decimals of JSON, without rounding: Spark's ``from_json`` makes 12.51 of 12.505 for DECIMAL(12, 2), and says nothing.

So a decimal is parsed with as many digits behind the point as there is room for (DECIMAL(12, 2) as DECIMAL(38, 28)), and a row in
which the schema's type does not hold it is malformed. What a map holds is not looked at: maps cannot be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, DecimalType, StructField, StructType

_MOST_DIGITS = 38


def widened(schema: StructType) -> StructType:
    """The schema to parse with: with as many digits before the point, and all that is left behind it."""
    return StructType([StructField(each.name, _wide(each.dataType), each.nullable) for each in schema.fields])


def _wide(kind: DataType) -> DataType:
    if isinstance(kind, DecimalType):
        return DecimalType(_MOST_DIGITS, _MOST_DIGITS - (kind.precision - kind.scale))
    if isinstance(kind, ArrayType):
        return ArrayType(_wide(kind.elementType), kind.containsNull)
    return widened(kind) if isinstance(kind, StructType) else kind


def narrowed(value: Column, kind: DataType) -> Column:
    """A value that was parsed with ``widened`` in the schema's own type; null where that has no room for it."""
    return value.try_cast(kind) if _wide(kind) != kind else value


def all_exact(row: Column, fields: Sequence[StructField]) -> Column:
    """Whether narrowing changes nothing. Never null."""
    decimals = [each for each in fields if _wide(each.dataType) != each.dataType]
    same = (
        narrowed(row[each.name], each.dataType).cast(_wide(each.dataType)).eqNullSafe(row[each.name])
        for each in decimals
    )
    return reduce(and_, same, F.lit(True))
