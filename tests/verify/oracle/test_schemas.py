"""What is made for a schema is what Spark reads with it."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING

from tests.verify.workload.test_values import EVERYTHING

from onceflow.pipeline.malformed import parse
from onceflow.verify.workload.ddl import Field, parse_ddl
from onceflow.verify.workload.values import Values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACE = ("topic", 0, 1)
READABLE = EVERYTHING.replace("VARCHAR(1)", "STRING")  # from_json refuses the others


def test_spark_reads_the_schema_alike(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(EVERYTHING)
    assert isinstance(schema, StructType)
    ours = parse_ddl(EVERYTHING, "a test")
    assert [(field.name, field.nullable) for field in schema] == [(field.name, field.nullable) for field in ours]
    inner = ", ".join(field.name for field in ours[3].type.elements[0].fields)
    assert re.findall(r"(\w+):", schema["e"].dataType.simpleString()) == inner.split(", ")
    assert schema["d"].dataType.simpleString() == "decimal(8,2)"


def test_spark_takes_every_value(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(READABLE)
    assert isinstance(schema, StructType)
    fields = parse_ddl(READABLE, "a test")
    values = Values(tuple(Field(each.name, each.type, nullable=False) for each in fields), random.Random(1))
    made = [values.row() for _ in range(50)]
    rows = [(json.dumps(row).encode(), *PLACE) for row in made]
    frame = spark.createDataFrame(rows, "_value binary, _topic string, _partition int, _offset bigint")
    read = parse(frame, schema, "fail", "test").collect()
    for name in ("a", "b c", "d", "e", "h", "i", "j", "k", "n", "o", "r"):
        assert all(row[name] is not None for row in read), name
    assert [row["a"] for row in read] == [row["a"] for row in made]
