"""Exactly-once event processing: Kafka → Spark → Kafka, in Python."""

from onceflow.transaction.sink import KafkaSink

__all__ = ["KafkaSink"]
__version__ = "0.1.0"
