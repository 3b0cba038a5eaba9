"""Private clusters for verification: Kafka of one or three real nodes, Spark of a master and workers, all on the loopback."""

from onceflow.verify.cluster.kafka import KafkaCluster
from onceflow.verify.cluster.node import Node
from onceflow.verify.cluster.spark import SparkCluster, SparkProcess

__all__ = ["KafkaCluster", "Node", "SparkCluster", "SparkProcess"]
