"""The embedded broker: a real Kafka node on this machine, started from jars, with no installation and no container."""

from onceflow.broker.embedded import BrokerStatus, EmbeddedBroker
from onceflow.broker.java_tool import run_java_tool

__all__ = ["BrokerStatus", "EmbeddedBroker", "run_java_tool"]
