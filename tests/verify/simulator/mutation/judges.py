"""Who may kill a mutant, the quickest first. Each judge runs in a process in which the mutant stands in its module's place."""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from tests.verify.simulator.mutation.mutants import ROOT, Mutant, Target

CPU_LIMIT_S = 300  # of processor time, so that a busy machine kills nothing
HANGS_S = 180  # by the clock, of a test that takes ten seconds on a busy machine: what waits takes no processor time
LOOP_S: dict[str, float] = {
    "unit tests": 40,
    "encoder's tests": 120,
    "model": 60,
    "simulator": 60,
    "with Spark": 240,
}
"""Of processor time, and many times what production takes on a slow machine: a mutant that loops is interrupted, and production
never. Under a limit of six seconds it was, once, where others kept two slow cores busy."""
MEMORY_LIMIT = 6 << 30
MODEL_WAYS = 300
SEEDS = 400
CONTROL_SEEDS = 40

Judge = Callable[[str], str]
"""Says what it saw of a mutant of a file; empty when it did not tell it from production."""

UNIT = (
    "test_protocol.py",
    "test_protocol_contexts.py",
    "test_protocol_coordinator.py",
    "test_progress.py",
    "test_requests.py",
    "test_talk.py",
    "test_enrolling.py",
    "test_lane.py",
    "test_producing.py",
    "test_going_on.py",
    "test_delivery.py",
    "test_resuming.py",
    "test_readings.py",
    "test_renewing.py",
    "test_once_a_batch.py",
    "test_executor_path.py",
    "test_performing.py",
    "test_sink.py",
    "test_resting_sink.py",
)

ENCODER = ("test_varint.py", "test_record_batch.py")
"""What judges the encoder: hundreds of inputs for each property, which takes too long to meet the mutants of all else."""

WITH_SPARK = {"driver.py": "test_driver.py", "streaming_query.py": "test_stage_retries.py"}
"""What judges a file by real brokers and real Spark."""


def unit(file: str) -> str:
    """The unit tests of the mutated files, those of this one first."""
    return _first_failure(UNIT, file)


def encoder(file: str) -> str:
    """The tests of the encoder, those of this file first."""
    return _first_failure(ENCODER, file)


def _first_failure(tests: Collection[str], file: str) -> str:
    session = _session[0]
    if session.testsfailed:
        return "the tests cannot be loaded"
    stem = file.removesuffix(".py")
    judging = [item for item in session.items if item.path.name in tests]
    items = sorted(judging, key=lambda item: (not _is_about(stem, item.path.name), item.path.name))
    for item, following in zip(items, [*items[1:], None], strict=True):
        for report in runtestprotocol(item, nextitem=following, log=False):
            if report.failed:
                session._setupstate.teardown_exact(None)
                return _name(item)
    return ""


def _name(item: pytest.Item) -> str:
    return item.nodeid.rpartition("/")[2]


def with_spark(file: str) -> str:
    """The tests of this file. Brokers, Spark and its queries stay for the next mutant.

    Raises Hangs where a test does not come to its end: something in this process waits for ever then.
    """
    session = _session[0]
    assert not session.testsfailed, "the tests cannot be loaded"
    items = _in_turn.setdefault(file, [item for item in session.items if item.path.name == WITH_SPARK[file]])
    for item, following in zip(items, [*items[1:], items[0]], strict=True):
        if not passes(item, following):
            _in_turn[file] = [item, *(other for other in items if other is not item)]
            return _name(item)
    return ""


_in_turn: dict[str, list[pytest.Item]] = {}
"""The tests of a file. The one that told the last mutant from production is the first for the next, which is changed nearby."""


def passes(item: pytest.Item, following: pytest.Item) -> bool:
    """Whether the test does. What ``following`` needs as well stays. Raises Hangs."""
    signal.signal(signal.SIGALRM, _interrupt)
    signal.alarm(HANGS_S)
    began = time.monotonic()
    try:
        failed = [report for report in runtestprotocol(item, nextitem=following, log=False) if report.failed]
        _why[:] = [report.longreprtext for report in failed]
        return not failed
    finally:
        signal.alarm(0)
        if time.monotonic() - began >= HANGS_S:
            raise Hangs(_name(item))


def passes_now(name: str) -> bool:
    """Whether a test that told a mutant from production passes without it, in this very process: else it tells nothing."""
    items = [item for item in _session[0].items if item.path.name == name.partition("::")[0]]
    item = next(item for item in items if _name(item) == name)
    return passes(item, next(other for other in items if other is not item))  # before itself it would not be taken down


_why: list[str] = []
"""What the last test failed of."""


def why() -> str:
    """The same, for people."""
    return "\n".join(_why)


class Hangs(Exception):
    """A test that does not end. This process is good for nothing any more."""


def _is_about(stem: str, test: str) -> bool:
    """Whether a test file is that of a source file."""
    own = {
        "questions": "requests",
        "codes": "requests",
        "asking": "requests",
        "led": "producing",
        "protocol": "protocol_contexts",
        "messages": "protocol",
        "source_ends": "readings",
        "source_mark": "resuming",
    }
    return test in (f"test_{stem}.py", f"test_protocol_{stem}.py", f"test_{own.get(stem)}.py")


def model(file: str) -> str:
    """Two drivers and one fault, all of it, and random ways with many faults."""
    module = importlib.import_module("tests.unit.test_protocol_model")
    module.RANDOM_WAYS = MODEL_WAYS  # type: ignore[attr-defined]
    try:
        for version in (1, 2):
            module.test_every_batch_exactly_once_whatever_one_fault_does(version)
            module.test_every_batch_exactly_once_on_random_ways_with_many_faults(version)
    except Exception as error:  # noqa: BLE001  whatever breaks in a mutant is what we look for
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def simulator(file: str) -> str:
    """Random seeds, and then those frames in which each undefended variant is broken."""
    from tests.verify.simulator.test_variants import CONTROLS, frame

    from onceflow.verify.simulator import Scenario, run

    frames: list[tuple[int, Scenario | None]] = [(seed, None) for seed in range(SEEDS)]
    for name, version, _, rates in CONTROLS:
        frames += [(seed, frame(name, version, rates, seed)) for seed in range(CONTROL_SEEDS)]
    for seed, scenario in frames:
        try:
            anomalies = list(map(str, run(seed, scenario=scenario).anomalies))
        except Exception as error:  # noqa: BLE001
            anomalies = [f"{type(error).__name__}: {error}"]
        if anomalies:
            return f"seed {seed}: {anomalies[0]}"
    return ""


def nobody(file: str) -> str:
    """A judge that looks at nothing: the control of all others."""
    return ""


SPARK = "with Spark"
JUDGES: dict[str, Judge] = {
    "unit tests": unit,
    "encoder's tests": encoder,
    "model": model,
    "simulator": simulator,
    SPARK: with_spark,
}
CONTROL: dict[str, Judge] = {"nobody": nobody}


def may_judge(judge: str, target: Target) -> bool:
    """Each target names its judges; a control may judge any."""
    return judge in CONTROL or judge in target.judges


# --------------------------------------------------------------------------------------------------- pytest around it all

_QUIETLY = (
    *(
        "-q",
        "--tb=native",
        "--assert=plain",
        "-c",
        os.devnull,
        f"--rootdir={ROOT}",
        "--import-mode=importlib",
        "--noconftest",
        "-W",
        "ignore",
    ),
    *(f"-pno:{plugin}" for plugin in ("xdist", "timeout", "hypothesispytest", "cacheprovider")),
)


class _Inside:
    """Does something else than pytest once the tests are collected."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self.failure: BaseException | None = None  # pytest would keep it for itself

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs instead of pytest's own loop."""
        _session.append(session)
        gc.freeze()
        try:
            self._action()
        except BaseException as failure:  # noqa: BLE001  raised again behind pytest
            self.failure = failure
        return True


_session: list[pytest.Session] = []


def with_tests_collected(action: Callable[[], None]) -> None:
    """Calls ``action`` where ``unit`` and ``encoder`` can run the tests."""
    _collected(action, [ROOT / "tests/unit" / name for name in (*UNIT, *ENCODER)])


def with_spark_tests_collected(action: Callable[[], None]) -> None:
    """Calls ``action`` where ``with_spark`` can; what these have started ends behind it."""

    def act() -> None:
        try:
            action()
        finally:
            _session[0]._setupstate.teardown_exact(None)

    _collected(act, [ROOT / "tests" / name for name in WITH_SPARK.values()], "-ptests.conftest")


def _collected(action: Callable[[], None], paths: Sequence[Path], *options: str) -> None:
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        database=None,
        derandomize=True,
        deadline=None,  # a busy machine kills nothing
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    settings.load_profile("mutants")
    inside = _Inside(action)
    status = pytest.main([*_QUIETLY, *options, *map(str, paths)], plugins=[inside])
    if inside.failure is not None:
        raise inside.failure
    assert _session, f"pytest ends with {status!r}"


# ------------------------------------------------------------------------------------------------- in a mutant's process


@dataclass(frozen=True, slots=True)
class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutant to whoever imports its module."""

    module: str
    path: str
    code: CodeType

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


Restore = Callable[[], None]


class CannotBeLoaded(Exception):
    """A mutant that breaks already when it is imported."""


def install(mutant: Mutant) -> Restore:
    """Puts the mutant in place: of a function, of a module's data, or of a module, which nobody may have imported yet then.

    Gives what takes it out again. Raises CannotBeLoaded.
    """
    name = mutant.target.module
    if mutant.site.function:
        return _change_function(importlib.import_module(name), mutant)
    if mutant.in_place:
        return _change_data(importlib.import_module(name), mutant)
    assert name not in sys.modules, f"{name} was imported before its mutant"
    sys.meta_path.insert(0, _Finder(name, str(ROOT / mutant.target.path), mutant.code()))
    return lambda: None


def _change_function(module: ModuleType, mutant: Mutant) -> Restore:
    found: Any = module
    for part in mutant.site.function.split("."):
        found = inspect.getattr_static(found, part)
    function = inspect.unwrap(getattr(found, "fget", getattr(found, "__func__", found)))
    before = function.__code__
    function.__code__ = mutant.code_of_function(before.co_freevars)
    return lambda: setattr(function, "__code__", before)


def _change_data(module: ModuleType, mutant: Mutant) -> Restore:
    """Tables are changed where they are, for others have imported them."""
    before = dict(vars(module))
    tables = [
        (name, value, dict(value)) for name, value in before.items() if isinstance(value, dict) and name[:2] != "__"
    ]

    def restore() -> None:
        vars(module).update(before)
        for _, table, content in tables:
            table.clear()
            table.update(content)

    try:
        exec(mutant.code_of_data(), vars(module))
    except Exception as error:
        restore()
        raise CannotBeLoaded(repr(error)) from error
    for name, table, _ in tables:
        made = dict(getattr(module, name))
        table.clear()
        table.update(made)
        setattr(module, name, table)
    return restore


def limit() -> None:
    """Bounds what this process may use up."""
    used_s = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used_s + CPU_LIMIT_S, used_s + CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGPROF, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    _interruptions.append(number)
    raise TimeoutError(TOO_LONG)


TOO_LONG = "it takes too much processor time"
_interruptions: list[int] = []


@contextmanager
def interrupted_when_it_loops(judge: str) -> Iterator[None]:
    """Whatever is done then fails by a TimeoutError; and again each second, should the mutant catch it.

    So does all of it in the end: a test that is interrupted takes the error for its own, and would be said to have seen it.
    """
    _interruptions.clear()
    signal.setitimer(signal.ITIMER_PROF, LOOP_S.get(judge, 1), 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if _interruptions:
        raise TimeoutError(TOO_LONG)
