r"""JSON values as columns, with nothing lost in silence: a value that does not parse is an error, or is counted.

Spark's ``from_json`` alone is too forgiving::

    {"id": 1} junk           gives id 1, as if the rest were not there
    {"id": 1}{"id": 2}       gives id 1, and the second document is gone
    {"id": 1},"x":2          gives id 1 inside of an object made around it
    (an empty value)         gives null without being called corrupt
    {"name": "\xff"}         gives a replacement character
    {"amount": 12.505}       gives 12.51 for DECIMAL(12, 2)
    {"amount": "12,50"}      gives 1250.00 for DECIMAL(12, 2)
    {"level": 200}           gives -56 for TINYINT
    {"at": 1700000000000}    gives the year 55840 for TIMESTAMP, which counts seconds

so the value is parsed as the first of two elements of an array in an outer object: what follows a whole value would make
them more, or end the object before the second. What is around it has names that no value can know, or one could close it and
write the second itself. Its UTF-8 is checked too, and whether each number and each time is the one that
is written (``exact_numbers.py``). A null value is a tombstone, not a malformed row: all its columns are null.
"""

from __future__ import annotations

import re
import secrets

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from onceflow.errors import InputError
from onceflow.pipeline.exact_numbers import all_exact, narrowed, texts, widened

OBSERVED = "onceflow_malformed"
"""The prefix of the observed metric that counts a source's malformed rows."""

_MARK = "onceflow: malformed JSON"
_MARKED = re.compile(rf"{_MARK} in topic (\S+), partition (\d+), offset (-?\d+)")
_ROWS, _END, _BAD = (f"_onceflow_{name}_{secrets.token_hex(8)}" for name in ("rows", "end", "bad"))
_PARSED, _TEXTS, _PLACE = "_onceflow_parsed", "_onceflow_texts", "_onceflow_place"


def parse(frame: DataFrame, schema: StructType, on_malformed: str, source: str) -> DataFrame:
    """The JSON in column ``_value`` as columns of ``schema``, before the columns that ``frame`` has.

    ``on_malformed``: ``fail`` makes the batch fail with an error that ``find_malformed`` recognises, ``drop`` leaves
    the row out, ``null`` keeps it with null columns; the latter two count it as an observed metric.
    """
    others = frame.columns
    # The place (any non-deterministic column would do) keeps the optimizer from moving the filter below the parsing,
    # which would then be done twice.
    looked_at = texts(schema)
    seen = [_from_json(looked_at).alias(_TEXTS)] if looked_at.fields else []
    parsed = frame.select("*", _from_json(widened(schema)).alias(_PARSED), *seen, F.spark_partition_id().alias(_PLACE))
    row, text = (F.get(F.col(name)[_ROWS], 0) for name in (_PARSED, _TEXTS))
    is_exact = all_exact(row, text, schema.fields, F.col("_value").cast("string"))
    good = F.col("_value").isNull() | (_is_whole() & is_exact)
    columns = [narrowed(row[each.name], each.dataType).alias(each.name) for each in schema.fields]
    if on_malformed == "fail":
        return parsed.where(_or_raise(good)).select(*columns, *others)
    count = F.count_if(~good).alias("rows")
    counted = parsed.observe(f"{OBSERVED}_{source}", count)
    if on_malformed == "drop":
        return counted.where(good).select(*columns, *others)
    emptied = [F.when(good, column).alias(name) for column, name in zip(columns, schema.names, strict=True)]
    return counted.select(*emptied, *others)


def _from_json(schema: StructType) -> Column:
    element = StructType([*schema.fields, StructField(_END, BooleanType())])
    outer = StructType([StructField(_ROWS, ArrayType(element)), StructField(_BAD, StringType())])
    text = F.concat(F.lit(f'{{"{_ROWS}":['), F.col("_value").cast("string"), F.lit(f',{{"{_END}":true}}]}}'))
    return F.from_json(text, outer, {"columnNameOfCorruptRecord": _BAD})


def _is_whole() -> Column:
    """Never null: a condition that is null would pass a row over in silence."""
    rows = F.col(_PARSED)[_ROWS]
    is_last = F.coalesce(F.get(rows, 1)[_END], F.lit(False)) & (F.size(rows) == 2)
    is_whole = is_last & F.get(rows, 0).isNotNull() & F.col(_PARSED)[_BAD].isNull()
    return is_whole & F.is_valid_utf8(F.col("_value").cast("string"))


def _or_raise(good: Column) -> Column:
    """True, or an error. Not deterministic, so that no other filter is combined with it or moved below it.

    A filter of the user's that came first would drop the malformed row, and nobody would learn of it.
    """
    where = F.format_string(f"{_MARK} in topic %s, partition %s, offset %s", "_topic", "_partition", "_offset")
    passes = (F.col(_PLACE) >= 0) & (F.spark_partition_id() >= 0)
    return F.when(good, passes).otherwise(F.raise_error(where).cast("boolean"))


def find_malformed(text: str) -> InputError | None:
    """The error of a malformed row, if an error's text tells of one."""
    match = _MARKED.search(text)
    if match is None:
        return None
    topic, partition, offset = match[1], int(match[2]), int(match[3])
    return InputError(
        f"the value in topic {topic}, partition {partition}, offset {offset} is not JSON of the source's schema, or a number or "
        "time in it does not fit its type (more digits than that holds, a comma; a TIMESTAMP counts seconds, text begins with a "
        "year as in 2024-01-31); under exactly_once nothing of its batch was written",
        action="correct the schema, or set the source's on_malformed to null (the row is kept, its text is in _value) "
        "or to drop",
        topic=topic,
        partition=partition,
        offset=offset,
    )
