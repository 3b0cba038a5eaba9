"""The oracle in a process of its own, so that its JVM ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from onceflow.errors import OracleFailed
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.private import private_environment

TIMEOUT_S = 1800.0
_LOG_LINES = 15
_END_S = 30


def expected_output(
    plan: Path,
    checkpoint: Path,
    bootstrap_servers: str,
    scratch: Path,
    *,
    committed: Mapping[tuple[str, int], int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Expected:
    """What the run of ``plan`` with ``checkpoint`` (a local directory) must have written to this cluster.

    To be called when the pipeline has ended. The plan's own cluster and checkpoint are not looked at. ``scratch`` is a
    directory that exists; what is put into it may be thrown away afterwards, ``oracle.log`` there holds what Spark said.
    ``committed`` are the source offsets that the pipeline's group has committed (``Observed.committed.offsets``): where a
    stateless plan ends whose batch ends are not known. Raises OracleFailed when the replay cannot be made; a plan whose output
    cannot be foretold is no error, but an Expected with ``refused``.
    """
    result = scratch / "expected"
    ends = ",".join(f"{topic}:{number}:{offset}" for (topic, number), offset in (committed or {}).items())
    command = [
        sys.executable,
        "-m",
        "onceflow.verify.oracle",
        str(plan),
        str(checkpoint),
        bootstrap_servers,
        str(result),
    ]
    log = scratch / "oracle.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--committed", ends],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=scratch,
            env=private_environment(scratch),
            start_new_session=True,  # a group of its own, so that Python and JVM end together
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise _failed(f"the replay did not end within {timeout_s:.0f} s", log) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_END_S)
            assert process.stdin is not None
            process.stdin.close()
    if code != 0:
        raise _failed(f"the replay ended with exit status {code}", log)
    return Expected.load(result)


def _failed(what: str, log: Path) -> OracleFailed:
    tail = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return OracleFailed(
        what + ". The end of its log:" + "".join(f"\n  {line}" for line in tail),
        action="see the log; without the replay the output cannot be judged",
    )
