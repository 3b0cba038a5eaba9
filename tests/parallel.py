"""How ``pytest -n 4`` spreads tests over its processes (pytest-xdist): file by file, the long ones first.

Much of their time tests wait: for a broker that starts, a coordinator that moves, a timeout. Meanwhile those of another process
work. Each process has brokers and a Spark session of its own; the files that share clusters of three brokers go to one process,
which has one of each transaction version: more would be much memory.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

from onceflow.broker import settings

THREE_BROKERS = frozenset(
    f"tests/verify/{name}.py"
    for name in (
        "cluster/test_kafka_cluster",
        "faults/test_broker_faults",
        "faults/test_expiry_faults",
        "faults/test_lose_tail",
        "faults/test_undefended",
        "faults/test_undefended_drivers",
        "simulator/test_moves",
        "simulator/test_replicas",
    )
)
_FIRST = ("slow", "faults")  # where nothing is left to be done beside it, a long file makes the others wait for its end


class _Files(LoadFileScheduling):  # type: ignore[misc]
    """What is given to a process at once. xdist's own groups (``loadgroup``) are none under pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return "three brokers" if file in THREE_BROKERS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    config.option.loadscopereorder = False  # our order, not that of the number of tests
    return _Files(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """No two processes draw the same ports.

    A port is chosen when it is free, and taken a second or two later, when the broker listens::

        one process draws 20017 for a broker    another one draws 20017, which is still free
        its broker listens there                the other's broker dies: the address is in use
    """
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        number = int(worker["workerid"].removeprefix("gw"))
        settings._PORTS = settings._PORTS[number :: worker["workercount"]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The queue, in the processes that work. One process alone goes from the first file to the last."""
    if not hasattr(config, "workerinput"):
        return
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(_file(item.nodeid), []).append(item)
    items[:] = [item for inside in sorted(files.values(), key=_place) for item in inside]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "shared_brokers" in getattr(item, "fixturenames", ()):
        assert _file(item.nodeid) in THREE_BROKERS, f"name the file in THREE_BROKERS of {__file__}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logged may hold a lone surrogate, as the texts do that it is about; between processes goes UTF-8 alone."""
    report = yield
    if hasattr(item.config, "workerinput"):
        report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _place(inside: Sequence[pytest.Item]) -> int:
    """Where a file stands in the queue, by its longest tests; otherwise files keep their order."""
    names = _marks(inside)
    return next((number for number, name in enumerate(_FIRST) if name in names), len(_FIRST))


def _marks(items: Iterable[pytest.Item]) -> set[str]:
    return {mark.name for item in items for mark in item.iter_markers()}
