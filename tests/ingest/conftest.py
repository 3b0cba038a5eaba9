"""What the tests of the ingest share: a real PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of this directory share

from tests.postgresql import running_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a server for these tests alone."""
    with running_postgresql() as address:
        yield address
