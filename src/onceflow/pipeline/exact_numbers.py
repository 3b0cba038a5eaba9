"""Numbers and times of JSON as they are written: Spark's ``from_json`` changes some for their column's type, and says nothing.

::

    12.505 for DECIMAL(12, 2)        gives 12.51
    "12,50" for DECIMAL(12, 2)       gives 1250.00: each comma is left out
    200 for TINYINT                  gives -56
    1e400 for DOUBLE                 gives Infinity
    1700000000000 for TIMESTAMP      gives a time in the year 55840: it counts seconds
    1807783200000000 for TIMESTAMP   gives one in 2042 (it is one of 2027, in microseconds): the seconds have wrapped around
    "12:30" for TIMESTAMP            gives today at 12:30, and tomorrow, when the batch is tried again, another day
    "20240101" for DATE              gives a day in the year 57385: it counts days; "202401" is in the year 202401

So a decimal is parsed with as many digits behind the point as there is room for (DECIMAL(12, 2) as DECIMAL(38, 28)), a TINYINT as
SMALLINT, and a row in which the schema's type does not hold it is malformed. A decimal of 38 digits leaves no room: what it does
not hold is rounded as ever (``without_room`` finds it, so that it is told at the start).

A time lies in the years 1 to 9999. What wrapped around or lost its commas does not show in the value: decimals, dates and times
are parsed a second time, as text, to be looked at (``texts``). A date or a time that is no number begins with a year and "-".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_MOST_DIGITS = 38
_LEAST_ROOM = 3
_DECIMAL = re.compile(r"\b(?:DECIMAL|DEC|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*\d+\s*)?\)", re.IGNORECASE)

_DAY_S = 86_400
_FIRST_S, _LAST_S = -62_135_596_800 - _DAY_S, 253_402_300_800 + _DAY_S  # the years 1 to 9999, in any time zone
_INFINITE = r"[:,\[]\s*\"?[+-]?(?:Infinity|INF)\b"  # as Spark takes it: not JSON, but meant

_DAY = r"^\s*(?!0000)\d{4}-"
_TOLD_BY_TEXT = {
    DecimalType: r"^[^,]*$",
    DateType: _DAY,
    TimestampNTZType: _DAY,
    TimestampType: rf"{_DAY}|^-?\d{{1,12}}$",  # a number that wraps around has more digits
}
_LOOKED_AT = (DecimalType, TimestampType, ByteType, DoubleType, FloatType)


def widened(schema: StructType) -> StructType:
    """The schema to parse with: with as many digits before the point, and all that is left behind it."""
    return StructType([StructField(each.name, _wide(each.dataType)) for each in schema.fields])


def texts(schema: StructType) -> StructType:
    """The part of the schema whose values do not tell how they are written, as text. Without fields where there is none."""
    found = _each(schema, lambda _: StringType(), lambda kind: _holds(kind, _TOLD_BY_TEXT))
    assert isinstance(found, StructType)
    return found


def narrowed(value: Column, kind: DataType) -> Column:
    """A value that was parsed with ``widened`` in the schema's own type; null where that has no room for it."""
    return value.try_cast(_nullable(kind)) if _is_widened(kind) else value


def all_exact(row: Column, text: Column, fields: Sequence[StructField], json: Column) -> Column:
    """Whether all is as it was written: ``json`` as a whole, ``text`` as ``texts`` has it. Never null."""
    told = [each for each in fields if _holds(each.dataType, _TOLD_BY_TEXT)]
    exact = [_is_exact(row[each.name], each.dataType, json) for each in fields]
    return reduce(and_, [*exact, *(_is_told(text[each.name], each.dataType) for each in told)], F.lit(True))


def without_room(schema: str) -> list[str]:
    """The decimals of a schema (DDL) that leave less than ``_LEAST_ROOM`` digits to see what they do not hold."""
    return [match[0] for match in _DECIMAL.finditer(schema) if int(match[1]) > _MOST_DIGITS - _LEAST_ROOM]


def _is_exact(value: Column, kind: DataType, json: Column) -> Column:
    """Whether the value is, as far as it tells. What its text tells is another column's (``_is_told``)."""
    if not _holds(kind, _LOOKED_AT):
        return F.lit(True)
    if isinstance(kind, StructType):
        return reduce(and_, (_is_exact(value[each.name], each.dataType, json) for each in kind.fields), F.lit(True))
    if isinstance(kind, ArrayType | MapType):
        return _all(value, kind, lambda each, inner: _is_exact(each, inner, json))
    if isinstance(kind, TimestampType):
        is_in_years = value.between(F.timestamp_seconds(F.lit(_FIRST_S)), F.timestamp_seconds(F.lit(_LAST_S)))
        return F.coalesce(is_in_years, F.lit(True))
    if isinstance(kind, DoubleType | FloatType):
        return F.when(F.abs(value) == float("inf"), json.rlike(_INFINITE)).otherwise(F.lit(True))
    return narrowed(value, kind).cast(_wide(kind)).eqNullSafe(value) if _is_widened(kind) else F.lit(True)


def _is_told(text: Column, kind: DataType) -> Column:
    if isinstance(kind, StructType):
        told = [each for each in kind.fields if _holds(each.dataType, _TOLD_BY_TEXT)]
        return reduce(and_, (_is_told(text[each.name], each.dataType) for each in told))
    if isinstance(kind, ArrayType | MapType):
        return _all(text, kind, _is_told)
    pattern = next(pattern for known, pattern in _TOLD_BY_TEXT.items() if isinstance(kind, known))
    return F.coalesce(text.rlike(pattern), F.lit(True))


def _all(values: Column, kind: ArrayType | MapType, is_good: Callable[[Column, DataType], Column]) -> Column:
    if isinstance(kind, MapType):
        return _all(F.map_values(values), ArrayType(kind.valueType), is_good)
    return F.coalesce(F.forall(values, lambda each: is_good(each, kind.elementType)), F.lit(True))


def _holds(kind: DataType, kinds: Iterable[type[DataType]]) -> bool:
    return any(isinstance(leaf, tuple(kinds)) for leaf in _leaves(kind))


def _leaves(kind: DataType) -> Iterator[DataType]:
    if isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _leaves(kind.valueType)
    elif isinstance(kind, StructType):
        for each in kind.fields:
            yield from _leaves(each.dataType)
    else:
        yield kind


def _is_widened(kind: DataType) -> bool:
    return _wide(kind) != _nullable(kind)


def _wide(kind: DataType) -> DataType:
    return _each(kind, _widest)


def _widest(kind: DataType) -> DataType:
    if isinstance(kind, DecimalType):
        return DecimalType(_MOST_DIGITS, _MOST_DIGITS - (kind.precision - kind.scale))
    return ShortType() if isinstance(kind, ByteType) else kind


def _nullable(kind: DataType) -> DataType:
    """As ``from_json`` gives it: what is missing is null, NOT NULL or not."""
    return _each(kind, lambda each: each)


def _each(
    kind: DataType, change: Callable[[DataType], DataType], keep: Callable[[DataType], bool] = lambda _: True
) -> DataType:
    """The type with what is innermost changed, and of its fields those that are kept."""
    if isinstance(kind, ArrayType):
        return ArrayType(_each(kind.elementType, change, keep))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _each(kind.valueType, change, keep))
    if isinstance(kind, StructType):
        kept = [each for each in kind.fields if keep(each.dataType)]
        return StructType([StructField(each.name, _each(each.dataType, change, keep)) for each in kept])
    return change(kind)
