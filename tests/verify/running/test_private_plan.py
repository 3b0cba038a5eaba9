"""The private plan: nothing of the user's places is left in it, and nothing else is changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from onceflow.config import Plan, load
from onceflow.java import find_java
from onceflow.verify.cluster.spark import _environment as environment_of_workers
from onceflow.verify.private import private_environment
from onceflow.verify.running.private_plan import private_plan, write_plan
from onceflow.verify.running.process import _environment as environment_of_engines
from onceflow.verify.workload import builtin_plan

USERS = r'''
name = "orders"
checkpoint = "s3a://company/checkpoints/orders"
[trigger]
available_now = true
[kafka]
bootstrap_servers = "broker.company.example:9093"
create_topics = true
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "orders"
"sasl.password" = "${ORDERS_PASSWORD}"
[[source]]
name = "orders"
topics = ["orders", "returns"]
schema = "id STRING, name STRING, amount DECIMAL(12, 2)"
starting_offsets = {orders = {0 = 120}, returns = {0 = 7}}
max_offsets_per_trigger = 100
watermark = {column = "_timestamp", delay = "10 minutes"}
options = {"kafka.fetch.max.wait.ms" = "30", minOffsetsPerTrigger = "1000", maxTriggerDelay = "15m"}
[[transform]]
name = "odd"
sql = """SELECT *, '${not.a.variable}' AS v, "quoted \u00e9 \U0001F600 \u007f" AS w FROM orders
WHERE name != 'a\\b'"""
[[sink]]
from = "odd"
topic = "out"
key = "id"
value = "to_json(struct(*))"
headers = {"trace.id" = "concat('${x}', id)"}
[output]
mode = "append"
transaction_timeout = "15 minutes"
[spark]
master = "spark://company.example:7077"
sql.shuffle.partitions = 3
driver.extraJavaOptions = "-Dcompany=$${literal}"
hadoop.fs.defaultFS = "hdfs://company.example"
"spark.eventLog.dir" = "hdfs://company.example/logs"
extraListeners = "example.company.Lineage"
"kafka.clusters.one.auth.bootstrap.servers" = "broker.company.example:9093"
'''


@pytest.fixture
def users(tmp_path: Path) -> Plan:
    file = tmp_path / "users.toml"
    file.write_text(USERS, encoding="utf-8")
    return load(file, {"ORDERS_PASSWORD": "secret-of-the-company"}).plan


def private(plan: Plan, directory: Path) -> Plan:
    spark = {"spark.master": "local[2]"}
    checkpoint = directory / "checkpoint"
    return private_plan(plan, bootstrap_servers="127.0.0.1:1", checkpoint=checkpoint, spark=spark, trigger_ms=250)


def test_nothing_of_the_users_places_is_left(users: Plan, tmp_path: Path) -> None:
    path = tmp_path / "private.toml"
    write_plan(private(users, tmp_path), path)
    text = path.read_text(encoding="utf-8")
    assert not [
        word
        for word in ("company.example", "s3a:", "secret-of-the-company", "SASL", "spark:", "hdfs:", "example.company")
        if word in text
    ]
    assert path.stat().st_mode & 0o077 == 0


def test_files_are_local_whatever_hadoop_takes_for_its_default(users: Plan, tmp_path: Path) -> None:
    """Hadoop takes a URI's path as it is: nothing in it may be quoted."""
    chosen = private(users, tmp_path / "my 100% own")
    assert chosen.checkpoint == f"file://{tmp_path}/my 100% own/checkpoint"
    assert chosen.spark["spark.hadoop.fs.defaultFS"] == "file:///"


def test_the_environment_does_not_lead_to_the_users_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"):
        monkeypatch.setenv(name, "company")
    monkeypatch.setenv("ONCEFLOW_CHECKPOINT", "company")
    monkeypatch.setenv("HTTP_PROXY_OF_MY_OWN", "kept")
    for environment in (environment_of_engines(tmp_path), environment_of_workers(tmp_path)):
        assert "company" not in environment.values()
        assert environment["SPARK_CONF_DIR"] == str(tmp_path)
        assert environment["HTTP_PROXY_OF_MY_OWN"] == "kept"


def test_what_python_imports_from_is_the_same_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "src:/elsewhere")
    for environment in (environment_of_engines(tmp_path), private_environment(tmp_path)):  # drivers, the oracle
        assert environment["PYTHONPATH"] == f"{tmp_path}/src:/elsewhere"


def test_the_directory_of_an_engine_may_be_called_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dusers.own=1")
    place = tmp_path / "of the 2nd run"
    command = [str(find_java()), "-XshowSettings:properties", "-version"]
    done = subprocess.run(command, env=environment_of_engines(place), capture_output=True, text=True, check=True)
    properties = [line.strip() for line in done.stderr.splitlines()]
    assert {f"java.io.tmpdir = {place}", "users.own = 1"} <= set(properties)


def test_what_is_written_is_read_as_the_same_plan_in_any_environment(
    users: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS", "elsewhere:9092")
    chosen = private(users, tmp_path)
    assert write_plan(chosen, tmp_path / "private.toml").plan == chosen


def test_what_the_pipeline_computes_is_untouched(users: Plan, tmp_path: Path) -> None:
    chosen = private(users, tmp_path)
    assert chosen.transform == users.transform
    assert chosen.sink == users.sink
    assert chosen.output.mode == users.output.mode
    assert [source.schema_ for source in chosen.source] == [source.schema_ for source in users.source]
    assert [source.watermark for source in chosen.source] == [source.watermark for source in users.source]
    assert chosen.spark["spark.sql.shuffle.partitions"] == "3"
    assert chosen.spark["spark.driver.extraJavaOptions"].startswith("-Dcompany=${literal} ")


FILES = """
[spark]
jars = "lib/udf.jar, hdfs://shop/udf.jar,/opt/udf.jar,lib/*.jar"
files = "prices.json#today.json"
archives = "env.tar.gz#environment"
submit.pyFiles = "prices.py"
driver.extraClassPath = "conf:/opt/conf:lib/*"
executor.extraClassPath = "udf.jar"
"jars.packages" = "example:udf:1.0"
"""


def test_files_of_the_users_are_found_from_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From where the command was given, as onceflow run takes them; wherever the plan stands."""
    (place := tmp_path / "elsewhere").mkdir()
    (tmp_path / "users.toml").write_text(USERS.partition("[spark]")[0] + FILES)
    plan = load(tmp_path / "users.toml", {"ORDERS_PASSWORD": "secret"}).plan
    monkeypatch.chdir(place)
    chosen = write_plan(private(plan, tmp_path), tmp_path / "private.toml").plan.spark
    files = {name: chosen[f"spark.{name}"] for name in ("jars", "files", "archives", "submit.pyFiles")}
    assert files == {
        "jars": f"{place}/lib/udf.jar, hdfs://shop/udf.jar,/opt/udf.jar,{place}/lib/*.jar",
        "files": f"{place}/prices.json#today.json",
        "archives": f"{place}/env.tar.gz#environment",
        "submit.pyFiles": f"{place}/prices.py",
    }
    assert chosen["spark.driver.extraClassPath"] == f"{place}/conf:/opt/conf:{place}/lib/*"
    assert chosen["spark.executor.extraClassPath"] == "udf.jar"  # from where an executor works
    assert chosen["spark.jars.packages"] == "example:udf:1.0"


def test_sources_begin_at_the_beginning_of_the_private_topics(users: Plan, tmp_path: Path) -> None:
    chosen = private(users, tmp_path)
    assert [source.starting_offsets for source in chosen.source] == ["earliest"]
    assert [source.options for source in chosen.source] == [{"kafka.fetch.max.wait.ms": "30"}], (
        "none waits for more input"
    )
    assert chosen.trigger.processing_time is not None
    assert not chosen.trigger.available_now
    assert chosen.output.transaction_timeout.ms == 10_000


def test_the_built_in_workload_can_be_made_private(tmp_path: Path) -> None:
    chosen = private(load(builtin_plan(), {}).plan, tmp_path)
    assert write_plan(chosen, tmp_path / "private.toml").plan == chosen
