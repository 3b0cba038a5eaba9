"""A driver on a Spark cluster that copies a topic through ``KafkaSink``, on the executors, until standard input or query end.

Arguments: master, its settings as JSON, bootstrap servers, source topic, target topic, checkpoint, transaction timeout in
milliseconds. A program of its own, because a process can have one Spark session.
"""

from __future__ import annotations

import json
import sys
import threading

from onceflow import KafkaSink, spark_session
from onceflow.session import SOURCE_DEFAULTS

LOOK_S = 0.5


def main(master: str, settings: str, servers: str, source: str, target: str, checkpoint: str, timeout_ms: str) -> None:
    spark = spark_session("cluster", master=master, config=json.loads(settings))
    sink = KafkaSink(
        target, name=target, bootstrap_servers=servers, driver_bytes=0, transaction_timeout_ms=int(timeout_ms)
    )
    lines = spark.readStream.format("kafka").options(**SOURCE_DEFAULTS).option("kafka.bootstrap.servers", servers)
    lines = lines.option("subscribe", source).option("startingOffsets", "earliest")
    writer = (
        lines.load().select("key", "value").writeStream.foreachBatch(sink).trigger(processingTime="200 milliseconds")
    )
    query = writer.option("checkpointLocation", checkpoint).start()
    ending = threading.Thread(target=sys.stdin.read, daemon=True)
    ending.start()
    while ending.is_alive() and query.isActive:
        ending.join(LOOK_S)
    error = query.exception()
    query.stop()
    sink.close()
    spark.stop()
    if error:
        raise error


if __name__ == "__main__":
    main(*sys.argv[1:])
