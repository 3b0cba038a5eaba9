"""A small file of ours in a query's checkpoint, over Hadoop's file systems as Spark's own. Runs on the driver."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame

from onceflow.transaction.streaming_query import checkpoint_root

_HALF = ("org.apache.hadoop.fs.ChecksumException", "java.io.EOFException")
"""What half a file gives: it has another checksum than the one beside it, or too few of them."""


class CheckpointFile:
    """The file ``name`` in the checkpoint of the query whose micro-batch ``frame`` is."""

    def __init__(self, frame: DataFrame, name: str) -> None:
        session = frame.sparkSession
        jvm: Any = session._jvm  # noqa: SLF001  Hadoop's file systems have no other way in
        self._io = jvm.org.apache.commons.io.IOUtils
        self._path = jvm.org.apache.hadoop.fs.Path(checkpoint_root(frame), name)
        configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._files = self._path.getFileSystem(configuration)

    def read(self) -> str:
        """Its text; empty where there is none, or a driver was killed while it wrote.

        Whatever else stops the reading is raised: who took that for an empty file would replace what stands in it.
        """
        if not self._files.exists(self._path):
            return ""
        stream = self._files.open(self._path)
        try:
            return str(self._io.toString(stream, "UTF-8"))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() not in _HALF:
                raise
            return ""
        finally:
            stream.close()

    def write(self, text: str) -> None:
        """Replaces it."""
        stream = self._files.create(self._path, True)
        try:
            self._io.write(text, stream, "UTF-8")
        finally:
            stream.close()
