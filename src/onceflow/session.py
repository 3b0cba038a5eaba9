"""A Spark session with the Kafka connector and with settings under which exactly-once holds."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from onceflow import class_archive, jars
from onceflow.errors import ConfigurationError, SetupError, UnsafeSession
from onceflow.java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATE = "spark.sql.streaming.stateStore"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_LOG4J = Path(__file__).with_name("spark-log4j2.properties")
_MOST_LOCAL_PARTITIONS = 8
_SOCKETS = "spark.python.unix.domain.socket"
_SOCKET_DIRECTORY_BYTES = (
    60  # a socket's path is limited to 103 bytes (macOS; 107 on Linux), Spark's names take 43 of them
)
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA_TMPDIR = "-Djava.io.tmpdir="

DEFAULTS: Mapping[str, str] = {
    # Format 1 names state files by version alone, so that a zombie task's late file can replace committed state. Only
    # RocksDB has format 2; with the changelog a commit writes what changed instead of a whole snapshot.
    f"{_STATE}.checkpointFormatVersion": "2",
    f"{_STATE}.providerClass": _ROCKSDB,
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    # Snapshots are stored by a task of its own, every 60 s by default; a changelog names all those behind the last snapshot::
    #
    #     drivers are killed one after the other, each within a minute: none of them has stored a snapshot
    #     each start reads all changelogs since: 2.3 s to new output behind the first kill, 6.4 s behind the fifteenth
    #     about 860 batches without a snapshot: their names are longer than 65,535 bytes, which Java cannot write at once,
    #     and no batch can be committed any more, whoever starts (UTFDataFormatException, Spark 4.2)
    f"{_STATE}.maintenanceInterval": "10s",
    # The loopback costs a delayed acknowledgement of 40 ms per exchange with a Python worker.
    f"{_SOCKETS}.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""What ``spark_session`` sets everywhere; ``config`` overrides it."""

NO_CHANGELOGS: Mapping[str, str] = {
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "false",
    f"{_STATE}.maintenanceInterval": "1s",  # old states are removed beside the batches, and not at the end
}
"""For queries of a batch or a few, one after the other: each batch stores a snapshot of the state itself, before it ends.

A changelog names all those before it, back to a snapshot that this query has stored, or has loaded as the newest state, in
65,535 bytes at most; and snapshots are stored beside the batches (Spark 4.2, ``RocksDB.loadWithCheckpointId``)::

    a query loads what the one before has left: from changelog N, unless N happens to be stored as a snapshot as well by then
    it writes changelog N + 1, which names all that N names, and N, and ends before a snapshot of its own is stored
    so does the next one: batch 864 fails, and every other try at it

Costs the new files of the state with each batch, stored before it ends; those that have not changed are not stored again.
"""

WORKER_DAEMON: Mapping[str, str] = {"spark.python.daemon.module": "onceflow.transaction.worker_daemon"}
"""For executors whose Python has onceflow when it starts (installed, or on PYTHONPATH); those need it that write large batches.
Where it comes by ``spark.submit.pyFiles`` alone, a ``spark.python.daemon.module`` of ``pyspark.daemon`` is right."""

SOURCE_DEFAULTS: Mapping[str, str] = {
    # Kafka's own default shows records of open and of aborted transactions.
    "kafka.isolation.level": "read_committed",
    # The reader waits that long at the transaction marker on the end of each partition: 1.10 s a batch with the default
    # of 500 ms on 4 partitions, 0.14 s with 20 ms.
    "kafka.fetch.max.wait.ms": "20",
}
"""Options for ``readStream.format("kafka")`` that every exactly-once source needs or gains from."""

_BREAKS_THE_GUARANTEE: Mapping[str, tuple[str, str]] = {
    f"{_STATE}.checkpointFormatVersion": ("2", "with another format a zombie task can replace committed state"),
    f"{_STATE}.providerClass": (_ROCKSDB, "only the RocksDB state store has checkpoint format 2"),
}


def spark_session(
    app_name: str = "onceflow",
    *,
    master: str = "local[2]",
    config: Mapping[str, object] | None = None,
    log_level: str = "error",
) -> SparkSession:
    """A Spark session that can read from Kafka and keeps state as exactly-once needs it.

    ``config`` are Spark's settings, over ``DEFAULTS``. ``log_level`` (``error``, ``warn``, ``info``) is that of the
    driver's log on the standard error. A session that runs already is returned with the changeable settings applied.
    Raises UnsafeSession if ``config`` would break the guarantee, JavaError, and SetupError if a jar cannot be had or
    the session that runs already lacks the connector. Runs on the driver.
    """
    own = session_config(master, config, log_level=log_level)
    settings = {**_python_workers(master, own), **own}
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with environment(_launch_environment(master, settings.get("spark.pyspark.python"))):
        session = builder.getOrCreate()
    _check_connector(session)
    return session


def full_names(settings: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings as a plan gives them, with or without ``spark.`` before the name, by the names that Spark knows."""
    return {name if name.startswith("spark.") else f"spark.{name}": value for name, value in settings.items()}


def session_config(
    master: str = "local[2]", config: Mapping[str, object] | None = None, *, log_level: str = "error"
) -> dict[str, str]:
    """The settings of ``spark_session``, for who builds the session otherwise. Raises as ``spark_session`` does.

    But for the daemon of Python workers (``WORKER_DAEMON``), for ``spark_session`` also sees to which Python those are.
    """
    own = {key: _as_text(value) for key, value in (config or {}).items()}
    _refuse_unsafe(own)
    connector = jars.class_path("spark")
    java_options = " ".join(filter(None, (_logging(log_level), _class_archive(master, connector, own))))
    return _combined(own, DEFAULTS, _sockets(own), _placed(master, connector), {_JAVA_OPTIONS: java_options})


def _refuse_unsafe(config: Mapping[str, str]) -> None:
    mistakes = [
        f"{key}={config[key]}, and not {safe}: {why}"
        for key, (safe, why) in _BREAKS_THE_GUARANTEE.items()
        if config.get(key, safe) != safe
    ]
    if mistakes:
        raise UnsafeSession(
            "the Spark session would break exactly-once: " + "; ".join(mistakes),
            action="leave these settings out",
            mistakes=tuple(mistakes),
        )


_JOINED = {_JAVA_OPTIONS: " ", "spark.driver.extraClassPath": os.pathsep, "spark.jars": ","}


def _combined(own: Mapping[str, str], *defaults: Mapping[str, str]) -> dict[str, str]:
    """``own`` over ``defaults``, except for what is a list: there ours comes first and the user's stays."""
    merged: dict[str, str] = {}
    for settings in defaults:
        merged.update(settings)
    for key, value in own.items():
        merged[key] = f"{merged[key]}{_JOINED[key]}{value}" if key in _JOINED and key in merged else value
    return merged


def _sockets(config: Mapping[str, str]) -> dict[str, str]:
    """The loopback instead of Unix sockets where their path would be too long for the system to take.

    Spark makes them in a directory of their own setting, else in Java's temporary one.
    """
    given = {_JAVA_OPTIONS: config.get(_JAVA_OPTIONS, ""), "JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", "")}
    words = [word for name, options in given.items() for word in _words(name, options)]
    temporary = next((word.removeprefix(_JAVA_TMPDIR) for word in words if word.startswith(_JAVA_TMPDIR)), "")
    directory = config.get(f"{_SOCKETS}.dir", temporary)
    return {} if len(os.fsencode(directory)) <= _SOCKET_DIRECTORY_BYTES else {f"{_SOCKETS}.enabled": "false"}


def _words(name: str, options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:  # a quote without its other
        raise ConfigurationError.of("the options of Java", [f"{name}: {error}"]) from None


def _placed(master: str, connector: Sequence[Path]) -> dict[str, str]:
    """What depends on where executors run: the way to the connector's jars, addresses, the number of partitions."""
    if not _in_one_process(master):
        return {
            "spark.jars": ",".join(map(str, connector)),
            # Spark waits for a lost executor before its tasks go to another, 3 s by default at each level of locality (4.2,
            # TaskSetManager.moreTasksToRunIn, which counts what is pending for it without asking whether it lives)::
            #
            #     a task reads its state, which executor 2 holds; executor 2 is killed
            #     executor 1 is idle, and is given the task when 3 s are over, or when another executor has started
            "spark.locality.wait": "1s",
        }
    return {
        # Driver and executor are one process: the class path spares 3 s of copying and serving the jars.
        "spark.driver.extraClassPath": os.pathsep.join(map(str, connector)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Without Hadoop's native library the default manager starts 20 processes per micro-batch (16 readlink, 4 chmod), about
        # 80 ms on two cores; this one starts the 4 chmod. Both write a temporary file and rename it.
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
        # A task's result above 1 MB (the default) is stored as a block and fetched over the loopback by the process that holds
        # it: a quarter of Spark's processor time for batches of 1 KB records. Up to the largest message it is handed over.
        "spark.task.maxDirectResultSize": "127m",
        "spark.sql.shuffle.partitions": str(min(_local_cores(master), _MOST_LOCAL_PARTITIONS)),
    }


def _python_workers(master: str, own: Mapping[str, str]) -> dict[str, str]:
    """Our daemon, where Spark surely finds it: in workers that are this very Python."""
    is_ours = _in_one_process(master) and "PYSPARK_PYTHON" not in os.environ and "spark.pyspark.python" not in own
    return dict(WORKER_DAEMON) if is_ours else {}


def _in_one_process(master: str) -> bool:
    """Whether executors run in the driver's process; ``local-cluster[…]`` starts real ones."""
    return master == "local" or master.startswith("local[")


def _local_cores(master: str) -> int:
    if master == "local":
        return 1
    number = re.match(r"local\[(\d+)", master)
    return int(number[1]) if number else os.cpu_count() or 1


def _class_archive(master: str, connector: Sequence[Path], own: Mapping[str, str]) -> str:
    """An archive is of one class path: where the user's goes on from ours, or the connector is not on it, there is none."""
    if not _in_one_process(master) or "spark.driver.extraClassPath" in own:
        return ""
    return class_archive.driver_options(connector, own.get(_JAVA_OPTIONS, ""))


def _logging(level: str) -> str:
    return f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Donceflow.log.level={level}"


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _launch_environment(master: str, python: str | None) -> dict[str, str]:
    """What Spark's launcher reads from the environment alone.

    It takes JAVA_HOME first, whatever its version, and for Python workers the ``python3`` on PATH, which outside of an
    activated virtual environment is another Python without our packages. PySpark itself does not look at the setting
    ``spark.pyspark.python``, only ``spark-submit`` does.
    """
    environment = {"JAVA_HOME": str(java_home(find_java()))}
    if python or (_in_one_process(master) and "PYSPARK_PYTHON" not in os.environ):
        environment["PYSPARK_PYTHON"] = python or sys.executable
    return environment


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside of it these variables are this process's own too, and those of what it starts; behind it all is as before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _check_connector(session: SparkSession) -> None:
    """A Spark that was started before us keeps its class path, which may lack the connector."""
    from pyspark.errors import AnalysisException

    try:
        session.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:0").option("subscribe", "any").load()
    except AnalysisException as error:
        raise SetupError(
            "the Spark that runs in this process already was started without the Kafka connector",
            action="call onceflow.spark_session() first, or start Spark with the settings of "
            "onceflow.session.session_config()",
        ) from error
