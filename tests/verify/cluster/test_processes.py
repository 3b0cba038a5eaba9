"""A signal that is obeyed when the call returns, by processes that take their time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.faults.support import eventually

from onceflow.errors import VerificationError
from onceflow.verify.cluster import processes

_MEMORY_MB = 400  # which its end has to give back


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One whose end takes a while."""
    program = f"memory = bytearray({_MEMORY_MB << 20}); memory[::4096] = b'1' * len(memory[::4096]); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


@pytest.mark.parametrize("frozen", [False, True])
def test_who_is_killed_has_ended_when_the_call_returns(process: subprocess.Popen[bytes], frozen: bool) -> None:
    if frozen:
        assert processes.freeze(process.pid)
    assert processes.kill(process.pid)
    assert process.poll() is not None


def test_who_is_gone_is_neither_killed_nor_frozen(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
    assert (processes.kill(process.pid), processes.freeze(process.pid)) == (False, False)


def test_who_has_ended_and_is_not_waited_for_is_neither_killed_nor_frozen(process: subprocess.Popen[bytes]) -> None:
    assert processes.kill(process.pid)
    assert (processes.kill(process.pid), processes.freeze(process.pid)) == (False, False)


def test_who_does_not_obey_is_told(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    eventually(lambda: processes._states(process.pid), {"S"}.__eq__, "it waits for its input")
    monkeypatch.setattr(processes, "_OBEYS_WITHIN_S", 0.0)
    monkeypatch.setattr(processes, "send", lambda pid, number: True)  # what waits for a disk hears no signal
    with pytest.raises(
        VerificationError, match=rf"process {process.pid} did not obey a signal within .*: its state is S"
    ):
        processes.freeze(process.pid)
