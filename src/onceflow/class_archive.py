"""Archives of loaded classes (application class-data sharing, JEP 350): a JVM that maps one begins in less time.

Starting a broker or Spark is mostly loading, verifying and linking thousands of classes, the same ones each time. An archive has
them as they lie in memory.

An archive belongs to one JDK and one class path; its name says which. ``python -m onceflow.training`` makes them, under
``$XDG_CACHE_HOME/onceflow/classes`` (``~/.cache`` by default), about 240 MB (broker 54, Spark 183); the newest three of each
kind stay. Deleting them costs time, nothing else.

What it survives::

    the archive is cut short: a copy, a full disk, a crash of the machine
    a JVM would die of it with SIGBUS. Its name says its size too, and it is on disk before it has that name

    another JDK, another version of a jar, another Spark
    has another name; the JVM compares them once more for itself
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onceflow.java import find_java, java_home

_FORMAT = "1"  # of the name; raise it when the training covers more
_KEPT = 3  # archives of one kind: of other JDKs and versions
QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # a class path that goes on otherwise is no warning
_PLACES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")  # on Spark's class path
_OF_THE_USER = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare:")


def directory() -> Path:
    """Where archives lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onceflow" / "classes"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one kind of program; ``key`` stands for all that the JVM compares before it maps one."""

    kind: str
    key: str

    def find(self) -> Path | None:
        """The file, if there is one and it is whole."""
        for file in directory().glob(f"{self.kind}-{self.key}-*.jsa"):
            if file.stem.rpartition("-")[2] == str(file.stat().st_size):
                return file
        return None

    def keep(self, made: Path) -> Path:
        """Moves a file that a JVM has made to its place, for later starts to find; ``made`` is on the same file system."""
        size = _flushed(made)
        made = made.replace(directory() / f"{self.kind}-{self.key}-{size}.jsa")
        others = sorted(directory().glob(f"{self.kind}-*.jsa"), key=lambda file: file.stat().st_mtime)
        for old in others[:-_KEPT]:
            old.unlink(missing_ok=True)
        return made

    def options(self) -> tuple[str, ...]:
        """What a JVM is told so that it maps the archive; nothing where there is none."""
        file = self.find()
        # A colon would be read as the border of two archives.
        return () if file is None or os.pathsep in str(file) else (f"-XX:SharedArchiveFile={file}", *QUIET)


def broker_archive(class_path: Sequence[Path]) -> ClassArchive:
    """That of the embedded broker and its tools. Raises JavaError."""
    return _archive("broker", class_path)


def spark_archive(connector: Sequence[Path]) -> ClassArchive:
    """That of a Spark driver with the ``connector``'s jars in front of its class path. Raises JavaError."""
    from pyspark.find_spark_home import _find_spark_home

    places = [os.environ.get(name, "") for name in _PLACES]
    return _archive("spark", [*connector, *sorted(Path(_find_spark_home(), "jars").glob("*.jar"))], places)


def driver_options(connector: Sequence[Path], own: str) -> str:
    """The options for ``spark.driver.extraJavaOptions``; nothing where the user's ``own`` choose archives themselves."""
    if any(word in own for word in _OF_THE_USER):
        return ""
    return shlex.join(spark_archive(connector).options())


def _archive(kind: str, class_path: Iterable[Path], places: Iterable[str] = ()) -> ClassArchive:
    home = java_home(find_java())
    seen = [_FORMAT, str(home), *places, *map(_stamp, [home / "lib" / "modules", *class_path])]
    return ClassArchive(kind, hashlib.sha256("\0".join(seen).encode()).hexdigest()[:16])


def _stamp(file: Path) -> str:
    try:
        found = file.stat()
    except OSError:
        return f"{file} -"
    return f"{file} {found.st_size} {found.st_mtime_ns}"


def _flushed(file: Path) -> int:
    """Its size, once all of it is on disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        return os.fstat(opened.fileno()).st_size
