"""A file in a checkpoint: half of one says nothing, and one that cannot be read must not be taken for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from onceflow.transaction.checkpoint_file import CheckpointFile


class JavaError:
    """What the Java side of py4j gives of an exception."""

    _target_id = "o1"

    def __init__(self, name: str) -> None:
        self._name = name

    def getClass(self) -> Any:  # noqa: N802  Java's
        return SimpleNamespace(getName=lambda: self._name)


class Closing:
    closed = False

    def close(self) -> None:
        self.closed = True


def a_file(raised: str, stream: Closing) -> CheckpointFile:
    """One whose reading ends with a Java exception."""

    def fail(*_: object) -> str:
        raise Py4JJavaError("reading", JavaError(raised))

    found = object.__new__(CheckpointFile)
    found._path = "path"
    found._files = SimpleNamespace(exists=lambda _: True, open=lambda _: stream)
    found._io = SimpleNamespace(toString=fail)
    return found


@pytest.mark.parametrize("raised", ["org.apache.hadoop.fs.ChecksumException", "java.io.EOFException"])
def test_half_a_file_is_empty(raised: str) -> None:
    stream = Closing()
    assert a_file(raised, stream).read() == ""
    assert stream.closed


@pytest.mark.parametrize("raised", ["org.apache.hadoop.security.AccessControlException", "java.io.IOException"])
def test_a_file_that_cannot_be_read_is_not_taken_for_half_a_file(raised: str) -> None:
    """Nothing would be known of the topics that were read, nothing refused, and what stands in the file replaced."""
    stream = Closing()
    with pytest.raises(Py4JJavaError):
        a_file(raised, stream).read()
    assert stream.closed
