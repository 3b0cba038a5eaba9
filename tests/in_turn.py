"""Tests of many variants: `make test` takes some, `make verify` the others (``@pytest.mark.in_turn(3)``: every third).

Each variant (a store, a protocol, a transaction version, a step) holds by itself; each takes a broker or a process that is
killed, so seconds. Which ones are taken depends on the test's name alone: not always the same store, and the same in each run.
"""

from __future__ import annotations

from collections import defaultdict
from zlib import crc32

import pytest


@pytest.hookimpl(tryfirst=True)  # before those that are marked `long` are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    variants: dict[tuple[object, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("in_turn"):
            variants[item.path, item.originalname].append(item)
    for (_, name), found in variants.items():
        mark = found[0].get_closest_marker("in_turn")
        assert mark is not None
        (every,) = mark.args
        first = crc32(name.encode()) % min(every, len(found))
        for number, item in enumerate(found):
            if number % every != first:
                item.add_marker("long")
