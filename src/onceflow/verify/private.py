"""What keeps the processes of a verification on its own files, whatever the user's environment and Spark settings say.

A path without a scheme is no local path: Hadoop asks its configuration which file system is meant::

    core-site.xml of HADOOP_CONF_DIR      fs.defaultFS = hdfs://company
    engine                                checkpoint = /tmp/onceflow-v-1/checkpoint: written to the company's HDFS
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_VARIABLES = frozenset({"HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"})

_SETTINGS = (
    "spark.driver.log.",
    "spark.eventLog.",
    "spark.extraListeners",
    "spark.hadoop.",
    "spark.history.",
    "spark.kafka.clusters.",
    "spark.kerberos.",
    "spark.kubernetes.",
    "spark.local.dir",
    "spark.metrics.",
    "spark.plugins",
    "spark.remote",
    "spark.security.credentials.",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.warehouse.dir",
    "spark.yarn.",
)
"""Spark settings, by how they begin, that name systems of the user or code that reports to them."""

LOCAL_FILES: Mapping[str, str] = {"spark.hadoop.fs.defaultFS": "file:///"}


def local_uri(path: Path) -> str:
    """An absolute path for Hadoop's file systems. They take what stands in a URI as it is, so nothing may be quoted in it."""
    return f"file://{path}"


def private_environment(directory: Path) -> dict[str, str]:
    """Ours, without what would change the plan. Spark and Hadoop look for their configuration in ``directory`` alone."""
    kept = {name: value for name, value in os.environ.items() if not (name in _VARIABLES or _is_ours(name))}
    paths = [path for path in kept.get("PYTHONPATH", "").split(os.pathsep) if path]
    if paths:  # as they are meant here, whatever directory the process is started in
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths)
    return {**kept, "SPARK_CONF_DIR": str(directory)}


def without_users_places(settings: Mapping[str, str]) -> dict[str, str]:
    """Spark settings by their full names, those left out that lead to the user's systems."""
    return {name: value for name, value in settings.items() if not name.startswith(_SETTINGS)}


def _is_ours(name: str) -> bool:
    return name.startswith("ONCEFLOW_")
