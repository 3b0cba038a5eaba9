"""The oracle in a process of its own, so that its JVM ends with it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from onceflow.errors import OracleFailed
from onceflow.verify.oracle.expected import Expected
from onceflow.verify.oracle.how_far import OnBatch, noted, progress_beside
from onceflow.verify.private import private_environment

STANDS_STILL_S = 1800.0  # all that was consumed may be one batch
_LOOK_EVERY_S = 1.0
_LOG_LINES = 15
_LINE_CHARACTERS = 400
_REASONS = 8
_REASON = re.compile(r"\w(Error|Exception)\b")
_END_S = 30


def expected_output(
    plan: Path,
    checkpoint: Path,
    bootstrap_servers: str,
    scratch: Path,
    *,
    committed: Mapping[tuple[str, int], int] | None = None,
    on_batch: OnBatch = lambda done, total: None,
    stands_still_s: float = STANDS_STILL_S,
) -> Expected:
    """What the run of ``plan`` with ``checkpoint`` (a local directory) must have written to this cluster.

    To be called when the pipeline has ended. The plan's own cluster and checkpoint are not looked at. ``scratch`` is a
    directory that exists; what is put into it may be thrown away afterwards, ``oracle.log`` there holds what Spark said.
    ``committed`` are the source offsets that the pipeline's group has committed (``Observed.committed.offsets``): where a
    stateless plan ends whose batch ends are not known. ``on_batch`` is told now and then how far the replay is, which takes about
    as long as the run took. Raises OracleFailed when the replay cannot be made, or has done no batch for ``stands_still_s``; a
    plan whose output cannot be foretold is no error, but an Expected with ``refused``.
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
            code = _wait(process, progress_beside(result), on_batch, stands_still_s)
        except TimeoutError:
            raise _failed(f"the replay has done no batch for {stands_still_s:.0f} s", log) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_END_S)
            assert process.stdin is not None
            process.stdin.close()
    if code != 0:
        raise _failed(f"the replay ended with exit status {code}", log)
    return Expected.load(result)


def _wait(process: subprocess.Popen[bytes], progress: Path, on_batch: OnBatch, stands_still_s: float) -> int:
    """The exit status. Raises TimeoutError where the replay stands still."""
    code, before, moved_at = None, (0, 0), time.monotonic()
    while code is None and time.monotonic() - moved_at < stands_still_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_LOOK_EVERY_S)
        how_far = noted(progress)
        if how_far != before:
            before, moved_at = how_far, time.monotonic()
            on_batch(*how_far)
    if code is None:
        raise TimeoutError
    return code


def _failed(what: str, log: Path) -> OracleFailed:
    """Spark puts the whole plan behind its reason, so that the log's end says what was run and not what became of it.

    Its causes come first there, and behind them the same failure again as each caller saw it: of these fewer are shown.
    """
    lines = [line[:_LINE_CHARACTERS] for line in log.read_text(errors="replace").splitlines()]
    before, tail = lines[:-_LOG_LINES], lines[-_LOG_LINES:]
    reasons = list(dict.fromkeys(line.strip() for line in before if _REASON.search(line)))
    reasons = sorted(reasons, key=lambda line: line.startswith("Caused by: "))[-_REASONS:]
    shown = [*reasons, "..."] if reasons else []
    return OracleFailed(
        what + ". Its log:" + "".join(f"\n  {line}" for line in [*shown, *tail]),
        action="see the log; without the replay the output cannot be judged",
    )
