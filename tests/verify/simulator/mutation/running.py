"""Judges mutants, each in a process of its own, forked before anything of onceflow is imported."""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.verify.simulator.mutation.judges import (
    CONTROL,
    JUDGES,
    UNIT,
    CannotBeLoaded,
    install,
    interrupted_when_it_loops,
    limit,
    with_tests_collected,
)
from tests.verify.simulator.mutation.mutants import ROOT, Mutant

HARNESS_BROKE = 99
BATCH = 50  # mutants judged in one process
PARTS_OF_THE_SUITE = (
    *(f"tests/unit/{name}" for name in UNIT),
    "tests/unit/test_protocol_model.py",
    "tests/verify/simulator/**/*.py",
    "src/onceflow/verify/simulator/*.py",
    "src/onceflow/kafka/*.py",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who killed a mutant, by what; ``judge`` is empty for one that lives."""

    key: str
    source: str  # digest of the file that it is a mutant of
    suite: str  # digest of all that judged it
    judge: str = ""
    saw: str = ""

    @property
    def killed(self) -> bool:
        return bool(self.judge)


def digest(paths: Iterable[Path]) -> str:
    """Of some files together."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()


def suite() -> str:
    """The digest of all that judges."""
    return digest(parts_of_the_suite())


def parts_of_the_suite() -> Iterator[Path]:
    """Every file of what judges."""
    return (path for pattern in PARTS_OF_THE_SUITE for path in ROOT.glob(pattern))


def preload() -> None:
    """Imports what others wrote and the judges need, once and before the forks."""
    import kafka.net.manager
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import pyarrow as pa
    import pyspark.sql
    from hypothesis import strategies

    assert kafka.net.manager, (strategies, pa, pyspark.sql)
    assert not [name for name in sys.modules if name.split(".")[0] == "onceflow"]


Heard = Callable[[Mutant, str, str], None]
"""Told of each mutant who killed it, and what that saw."""


def judge_all(mutants: Sequence[Mutant], judges: Sequence[str], processes: int, heard: Heard) -> None:
    """First those that change a class, each with all loaded anew; then those that can be put in place, all loaded once."""
    preload()
    alone = [[mutant] for mutant in mutants if not mutant.in_place]
    in_place = [mutant for mutant in mutants if mutant.in_place]
    _judge_each(alone, processes, heard, lambda mutant: _from_the_start(mutant, judges))
    if in_place:
        batches = [in_place[i : i + BATCH] for i in range(0, len(in_place), BATCH)]
        with_tests_collected(lambda: _judge_each(batches, processes, heard, lambda mutant: _asked(mutant, judges)))


Judged = tuple[str, str]


def _from_the_start(mutant: Mutant, judges: Sequence[str]) -> Judged:
    found: list[Judged] = []
    with_tests_collected(lambda: found.append(_asked(mutant, judges)))
    return found[0]


def _asked(mutant: Mutant, judges: Sequence[str]) -> Judged:
    for name in judges:
        try:
            with interrupted_when_it_loops(name):
                saw = (JUDGES | CONTROL)[name](mutant.target.file)
        except TimeoutError as error:
            return "limits", str(error)
        if saw:
            return name, saw[:200]
    return "", ""


def _judge_each(
    batches: Sequence[Sequence[Mutant]], processes: int, heard: Heard, judge: Callable[[Mutant], Judged]
) -> None:
    """Each batch in a process of its own. Where that ends too early, its mutants are judged one by one."""
    waiting = list(reversed(batches))
    running: dict[int, tuple[int, Sequence[Mutant]]] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            batch = waiting.pop()
            pipe, pid = _fork(batch, judge)
            running[pipe] = (pid, batch)
        for pipe in select.select(list(running), [], [])[0]:
            pid, batch = running.pop(pipe)
            verdicts = _ended(pipe, pid, alone=len(batch) == 1)
            if verdicts is None and len(batch) > 1:
                waiting += [[mutant] for mutant in reversed(batch)]
                continue
            for mutant, verdict in zip(batch, verdicts or [("limits", "it ended the process")], strict=True):
                heard(mutant, *verdict)


def _fork(batch: Sequence[Mutant], judge: Callable[[Mutant], Judged]) -> tuple[int, int]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = HARNESS_BROKE
        try:
            with os.fdopen(writing, "w") as answer:
                json.dump(_judge_batch(batch, judge), answer)
            status = 0
        except BaseException:  # noqa: BLE001  nothing may leave this process but by its end
            traceback.print_exc()
        os._exit(status)
    os.close(writing)
    return reading, pid


def _judge_batch(batch: Sequence[Mutant], judge: Callable[[Mutant], Judged]) -> list[Judged]:
    limit()
    found = []
    for mutant in batch:
        try:
            restore = install(mutant)
        except CannotBeLoaded as error:
            found.append(("unit tests", f"it cannot be loaded: {error}"))
            continue
        with silence():
            found.append(judge(mutant))
        restore()
    if len(batch) > 1:
        with silence():
            left = judge(batch[0])
        assert not left[0], f"a mutant leaves something behind: {left}"
    return found


@contextmanager
def silence() -> Iterator[None]:
    """What mutants print is of no interest."""
    kept = [os.dup(1), os.dup(2)]
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _ended(pipe: int, pid: int, *, alone: bool) -> list[Judged] | None:
    """The verdicts; None if a mutant ended the process."""
    with os.fdopen(pipe) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    assert not (alone and os.waitstatus_to_exitcode(status) == HARNESS_BROKE), "a mutant could not be judged"
    return [(judge, saw) for judge, saw in json.loads(text)] if text and status == 0 else None
