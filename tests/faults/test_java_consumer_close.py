"""Java's own consumer, asked to close within a second while the broker has frozen (KAFKA-17734).

It is the one of the locked jars, 4.2.2 and Spark's 3.9.2, in a JVM of its own. On 4.2.2 the limit is not kept under the newer
group protocol by who does not commit by himself; in all other cases here the close took less than two seconds on a busy machine::

    the consumer has read, and its offsets are not committed; the broker freezes, and closes no connection
    close, of one second                             begins
    a question of another consumer, of three seconds begins behind it, and is given up
    close, of one second                             is still at work: it took ten seconds
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError
from tests.faults.support import Cluster, eventually
from tests.faults.test_frozen_broker import PATIENCE_S, VALUES, frozen, send

from onceflow import jars
from onceflow.broker import EmbeddedBroker
from onceflow.broker.java_tool import FAST_START
from onceflow.java import find_java

pytestmark = pytest.mark.faults

LIMIT_S, LATER_S = 1, 3
CLASSIC, NEWER = "classic", "consumer"
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
JAR_SETS: tuple[jars.JarSet, ...] = ("broker", "spark")


@pytest.fixture(scope="module")
def freezing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with EmbeddedBroker(tmp_path_factory.mktemp("freezing"), heap_mb=256) as broker, closing(Cluster(broker)) as found:
        yield found


@dataclass
class Closing:
    """A consumer that has read everything and committed nothing, in the JVM ``java``; ``ended`` hears of it when it is closed."""

    java: Any
    consumer: Any
    ended: list[str]
    protocol: str

    def __post_init__(self) -> None:
        self._begins = threading.Event()
        self.thread = threading.Thread(target=self._close, daemon=True)

    def begin(self) -> None:
        self.thread.start()
        assert self._begins.wait(PATIENCE_S)

    def await_end(self) -> None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()

    def _close(self) -> None:
        limit = self.java.java.time.Duration.ofSeconds(LIMIT_S)
        self._begins.set()
        self.consumer.close(limit)
        self.ended.append(self.protocol)


@contextmanager
def java_with(jar_set: jars.JarSet) -> Iterator[Any]:
    """A JVM with Kafka's client of these jars, which ends with us."""
    logging = SPARK_JARS.glob("slf4j-api-*.jar") if jar_set == "spark" else ()
    (py4j,) = SPARK_JARS.glob("py4j-*.jar")
    with Path(os.devnull).open("w") as nowhere:
        port = launch_gateway(
            jarpath=str(py4j),
            classpath=os.pathsep.join(map(str, [*jars.class_path(jar_set), *logging])),
            javaopts=list(FAST_START),
            die_on_exit=True,
            java_path=str(find_java()),
            redirect_stdout=nowhere,
            redirect_stderr=nowhere,
        )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()


def that_has_read(java: Any, cluster: Cluster, protocol: str, ended: list[str], *, commits: bool) -> Closing:
    topic = cluster.make_topic(1)
    send(cluster, topic, VALUES)
    settings = java.java.util.Properties()
    text = "org.apache.kafka.common.serialization.StringDeserializer"
    given = {
        "bootstrap.servers": cluster.servers,
        "group.id": topic,
        "group.protocol": protocol,
        "enable.auto.commit": str(commits).lower(),
        "auto.offset.reset": "earliest",
        "key.deserializer": text,
        "value.deserializer": text,
    }
    for name, value in given.items():
        settings.setProperty(name, value)
    consumer = java.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
    topics = java.java.util.ArrayList()
    topics.add(topic)
    consumer.subscribe(topics)
    read: list[int] = []

    def more() -> int:
        read.append(consumer.poll(java.java.time.Duration.ofSeconds(1)).count())
        return sum(read)

    eventually(more, lambda count: count == len(VALUES), "its records")
    return Closing(java, consumer, ended, protocol)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("protocol", [CLASSIC, NEWER])
@pytest.mark.parametrize("jar_set", JAR_SETS)
def test_a_java_consumer_ends_while_the_broker_stands_still(
    freezing: Cluster, jar_set: jars.JarSet, protocol: str, *, commits: bool
) -> None:
    """Within its limit or not, it does not hang."""
    with java_with(jar_set) as java:
        closes = that_has_read(java, freezing, protocol, [], commits=commits)
        with frozen(freezing):
            closes.begin()
            closes.await_end()


def test_a_java_consumer_does_not_keep_the_time_limit_of_its_close(freezing: Cluster) -> None:
    """KAFKA-17734, under the newer group protocol of Kafka 4.2.2."""
    ended: list[str] = []
    with java_with("broker") as java:
        assert java.org.apache.kafka.common.utils.AppInfoParser.getVersion() == "4.2.2"
        closes = that_has_read(java, freezing, NEWER, ended, commits=False)
        another = that_has_read(java, freezing, CLASSIC, [], commits=False)
        with frozen(freezing):
            closes.begin()
            with pytest.raises(Py4JJavaError, match="TimeoutException"):
                another.consumer.listTopics(java.java.time.Duration.ofSeconds(LATER_S))
            ended.append("given up")
            closes.await_end()
    assert ended == ["given up", NEWER]
