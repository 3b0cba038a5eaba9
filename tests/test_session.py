"""The Spark session: what it sets, what it refuses, and that it reads Kafka and runs Python, for real."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.conftest import until_stable

from onceflow.broker import EmbeddedBroker
from onceflow.errors import ConfigurationError, UnsafeSession
from onceflow.session import DEFAULTS, SOURCE_DEFAULTS, session_config, spark_session

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

STATE = "spark.sql.streaming.stateStore"
HDFS_BACKED = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
TIMEOUT_S = 120


def stream(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> DataFrame:
    source = spark.readStream.format("kafka").options(**SOURCE_DEFAULTS)
    source = source.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return source.option("subscribe", topic).option("startingOffsets", "earliest").load()


def run_to_the_end(frame: DataFrame, checkpoint: Path, mode: str = "append") -> int:
    """Run the stream through all that is there into nothing; gives the number of rows read."""
    writer = frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(TIMEOUT_S)
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def write(broker: EmbeddedBroker, topic: str, values: range, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"writer-{commit}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, str(value).encode())
    producer.flush(TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S) if commit else producer.abort_transaction(TIMEOUT_S)


def test_a_stream_reads_what_is_committed(
    spark: SparkSession, broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(2)
    write(broker, name, range(10), commit=True)
    write(broker, name, range(1000), commit=False)
    until_stable(broker, name)
    assert run_to_the_end(stream(spark, broker, name), tmp_path / "checkpoint") == 10


def test_state_is_kept_in_files_that_no_zombie_can_replace(
    spark: SparkSession, broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic()
    write(broker, name, range(10), commit=True)
    counted = stream(spark, broker, name).groupBy(sf.col("value")).count()
    run_to_the_end(counted, tmp_path / "checkpoint", mode="update")
    state = list((tmp_path / "checkpoint" / "state" / "0" / "0").glob("1_*"))
    assert state, "format 2 names a file by version and a unique id"
    assert "stateUniqueIds" in (tmp_path / "checkpoint" / "commits" / "0").read_text()


def test_snapshots_of_state_are_stored_often_enough_for_drivers_that_live_less_than_a_minute(
    spark: SparkSession,
) -> None:
    """As Spark itself reads the setting."""
    assert spark._jsparkSession.sessionState().conf().streamingMaintenanceInterval() == 10_000


def test_python_runs_in_the_workers_with_our_packages(spark: SparkSession) -> None:
    def executable(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    found = spark.range(1, numPartitions=1).mapInArrow(executable, "python string").toArrow()
    assert found.column("python").to_pylist() == [sys.executable]


def test_the_defaults_hold_and_config_overrides_them(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in DEFAULTS} == DEFAULTS
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    again = spark_session(config={"spark.sql.shuffle.partitions": 5})
    try:
        assert again is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "5"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_starting_it_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    before = dict(os.environ)
    spark_session()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("key", "value"), [("checkpointFormatVersion", 1), ("checkpointFormatVersion", "1"), ("providerClass", HDFS_BACKED)]
)
def test_what_breaks_the_guarantee_is_refused(key: str, value: object) -> None:
    with pytest.raises(UnsafeSession, match=f"{STATE}.{key}={value}, and not"):
        session_config(config={f"{STATE}.{key}": value})


def test_options_of_java_with_an_odd_quote_are_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.driver\.extraJavaOptions: No closing quotation"):
        session_config(config={"spark.driver.extraJavaOptions": "-Dname='x"})


def test_the_safe_values_may_be_named() -> None:
    settings = session_config(config={f"{STATE}.checkpointFormatVersion": 2, "spark.ui.enabled": True})
    assert settings["spark.ui.enabled"] == "true"


def test_lists_are_joined_and_not_replaced() -> None:
    settings = session_config(
        config={"spark.driver.extraClassPath": "/mine.jar", "spark.driver.extraJavaOptions": "-Dmine=1"}
    )
    assert settings["spark.driver.extraClassPath"].endswith(f".jar{os.pathsep}/mine.jar")
    assert settings["spark.driver.extraJavaOptions"].endswith("-Donceflow.log.level=error -Dmine=1")


def test_a_cluster_is_given_the_jars_and_its_own_addresses() -> None:
    settings = session_config("spark://cluster:7077")
    assert "spark-sql-kafka" in settings["spark.jars"]
    assert not {"spark.driver.extraClassPath", "spark.driver.host", "spark.sql.shuffle.partitions"} & settings.keys()
    assert settings["spark.locality.wait"] == "1s"
    assert session_config("spark://cluster:7077", {"spark.locality.wait": "3s"})["spark.locality.wait"] == "3s"


@pytest.mark.parametrize(("master", "partitions"), [("local", "1"), ("local[3]", "3"), ("local[64]", "8")])
def test_a_local_session_has_few_partitions(master: str, partitions: str) -> None:
    assert session_config(master)["spark.sql.shuffle.partitions"] == partitions


SOCKETS = "spark.python.unix.domain.socket"
LONG = f"/{'long' * 20}"


@pytest.mark.parametrize(
    ("config", "enabled"),
    [
        ({}, "true"),
        ({f"{SOCKETS}.dir": "/short"}, "true"),
        ({f"{SOCKETS}.dir": LONG}, "false"),
        ({"spark.driver.extraJavaOptions": f"-Xmx1g '-Djava.io.tmpdir={LONG}'"}, "false"),
        ({"spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={LONG}", f"{SOCKETS}.dir": "/short"}, "true"),
        ({f"{SOCKETS}.dir": LONG, f"{SOCKETS}.enabled": True}, "true"),
    ],
)
def test_sockets_whose_paths_would_be_too_long_are_not_used(config: dict[str, object], enabled: str) -> None:
    assert session_config(config=config)[f"{SOCKETS}.enabled"] == enabled


LONG_DIRECTORY = """
import sys
from onceflow.session import spark_session

spark = spark_session(config={"spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={sys.argv[1]}"})
print(spark.range(3, numPartitions=1).mapInArrow(lambda batches: batches, "id long").toArrow().num_rows)
spark.stop()
"""


@pytest.mark.slow
def test_python_runs_with_a_long_temporary_directory(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 20)
    directory.mkdir()
    told = subprocess.run(
        [sys.executable, "-c", LONG_DIRECTORY, str(directory)],
        capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert told.stdout == "3\n", told.stderr


FOREIGN = """
from pyspark.sql import SparkSession
from onceflow.errors import SetupError
from onceflow.session import spark_session

foreign = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    spark_session()
except SetupError as error:
    print(error)
foreign.stop()
"""


@pytest.mark.slow
def test_a_spark_without_the_connector_is_told(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FOREIGN], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=tmp_path
    )
    assert "was started without the Kafka connector" in told.stdout, told.stderr
    assert "call onceflow.spark_session() first" in told.stdout
