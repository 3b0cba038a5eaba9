"""The demo's pipeline: invoices in, sales and running totals out. Plain PySpark; the only line of onceflow is its sink."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, expr, from_json, lit, struct, to_json
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.demo.topics import INVOICES, Output
from onceflow.session import SOURCE_DEFAULTS

EVENTS_PER_BATCH = 200

# As in the file: all text. The casts below fail on what they cannot read, and lose nothing silently.
_EVENT = (
    "line BIGINT, InvoiceNo STRING, StockCode STRING, Description STRING, Quantity STRING, UnitPrice STRING, "
    "CustomerID STRING, Country STRING"
)

ForeachBatch = Callable[[DataFrame, int], None]


def invoices(spark: SparkSession, bootstrap_servers: str) -> DataFrame:
    """The stream of raw events."""
    source = spark.readStream.format("kafka").options(**SOURCE_DEFAULTS)
    return (
        source.option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", INVOICES)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", EVENTS_PER_BATCH)
        .load()
    )


def sold_lines(events: DataFrame) -> DataFrame:
    """One row per line that was sold: cancellations are left out, money is whole pence and never a float."""
    rows = events.select(from_json(col("value").cast("string"), _EVENT, {"mode": "FAILFAST"}).alias("row"))
    return rows.select(
        col("row.line"),
        col("row.InvoiceNo").alias("invoice"),
        col("row.StockCode").alias("stock_code"),
        expr("nullif(row.Description, '')").alias("description"),
        expr("CAST(row.Quantity AS BIGINT)").alias("quantity"),
        expr("CAST(row.Quantity AS BIGINT) * CAST(CAST(row.UnitPrice AS DECIMAL(12, 2)) * 100 AS BIGINT)").alias(
            "pence"
        ),
        expr("nullif(row.CustomerID, '')").alias("customer"),
        col("row.Country").alias("country"),
    ).where(~col("invoice").startswith("C"))


def sales(lines: DataFrame, topic: str) -> DataFrame:
    """A record per line, keyed by invoice."""
    return lines.select(lit(topic).alias("topic"), col("invoice").alias("key"), to_json(struct("*")).alias("value"))


def revenue(lines: DataFrame, topic: str) -> DataFrame:
    """A record per country and batch with the totals so far, which Spark keeps as state."""
    totals = lines.groupBy("country").agg(count("*").alias("lines"), sum_of("pence").alias("pence"))
    return totals.select(lit(topic).alias("topic"), col("country").alias("key"), to_json(struct("*")).alias("value"))


def start(
    spark: SparkSession, bootstrap_servers: str, checkpoint: str, output: Output, sink: ForeachBatch
) -> StreamingQuery:
    """Start the query that writes both outputs, batch by batch, until everything there is now is processed.

    With ``onceflow.KafkaSink`` as ``sink`` both outputs of a batch are one transaction.
    """
    lines = sold_lines(invoices(spark, bootstrap_servers))
    both = sales(lines, output.sales).unionByName(revenue(lines, output.revenue))
    return (
        both.writeStream.foreachBatch(sink)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
