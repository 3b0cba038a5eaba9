"""A watcher's thread that does not end."""

from __future__ import annotations

import threading
from unittest.mock import patch

import pyarrow as pa
import pytest

from onceflow.errors import VerificationError
from onceflow.verify.recording import beside, sampler
from onceflow.verify.recording.sampler import Sampler

PATIENCE_S = 60.0


class Held(Sampler):
    """Looks once, for as long as it is held."""

    def __init__(self) -> None:
        super().__init__(pa.schema([("at_s", pa.float64())]), "something", 0.01)
        self.looks, self.let_go = threading.Event(), threading.Event()

    def watch(self) -> None:
        self.looks.set()
        assert self.let_go.wait(PATIENCE_S)


def test_a_watcher_that_does_not_end_is_waited_for_once_and_told_of_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_END_S", 0.01)
    held = Held().start()
    assert held.looks.wait(PATIENCE_S)
    with patch.object(held._thread, "join", wraps=held._thread.join) as join:
        for _ in range(2):
            with pytest.raises(VerificationError, match="the watcher of something did not end"):
                held.stop()
    assert [call.args for call in join.call_args_list] == [(0.01,), (0.0,)]
    held.let_go.set()
    held._thread.join(PATIENCE_S)
    assert held.stop() == held.table()


def test_who_has_been_told_of_it_hears_nothing_more_on_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on to judge what there is, and must not lose that where its block ends."""
    monkeypatch.setattr(sampler, "_END_S", 0.01)
    monkeypatch.setattr(beside, "_LEAVES_S", 0.01)
    with Held() as held:
        assert held.looks.wait(PATIENCE_S)
        with pytest.raises(VerificationError, match="did not end"):
            held.stop()
    held.let_go.set()
    held._thread.join(PATIENCE_S)
