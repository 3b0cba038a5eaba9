"""What goes wrong in a run is what is told of it, whatever became of the threads beside it."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from tests.verify.recording.test_sampler import PATIENCE_S, Held

from onceflow.errors import SetupError
from onceflow.verify.recording import ReadCommittedRecorder, beside, reader
from onceflow.verify.recording.beside import Beside
from onceflow.verify.workload import InputWriter


class SamplerThatFails(Held):
    def watch(self) -> None:
        raise IndexError("its own reason")


class WriterThatFails(InputWriter):
    def _write(self) -> None:
        raise IndexError("its own reason")


def no_client(servers: str) -> None:
    raise IndexError("its own reason")


@pytest.mark.parametrize(
    "make",
    [
        SamplerThatFails,
        lambda: WriterThatFails("127.0.0.1:1", [], seed=1),
        lambda: ReadCommittedRecorder("127.0.0.1:1", ["out"]),
    ],
    ids=["sampler", "writer", "reader"],
)
def test_what_ended_a_thread_does_not_take_the_place_of_what_went_wrong_in_the_run(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Beside]
) -> None:
    monkeypatch.setattr(reader, "committed_reader", no_client)

    def run(error: Exception | None = None) -> None:
        with make() as made:
            made._thread.join(PATIENCE_S)
            if error is not None:
                raise error

    with pytest.raises(SetupError, match="Spark's own words"):
        run(SetupError("Spark's own words"))
    with pytest.raises(IndexError, match="its own reason"):
        run()


def test_a_thread_that_does_not_end_does_not_keep_who_leaves_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_LEAVES_S", 0.01)
    held = Held()

    def interrupted() -> None:
        with held:
            assert held.looks.wait(PATIENCE_S)
            raise SystemExit(130)

    with (
        patch.object(held._thread, "join", wraps=held._thread.join) as join,
        pytest.raises(SystemExit, match="130"),
    ):
        interrupted()
    assert held.ending.is_set()
    assert [call.args for call in join.call_args_list] == [(0.01,)]
    held.let_go.set()
    held._thread.join(PATIENCE_S)
