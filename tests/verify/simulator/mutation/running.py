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
    ENCODER,
    JUDGES,
    SPARK,
    UNIT,
    WITH_SPARK,
    CannotBeLoaded,
    Hangs,
    Restore,
    install,
    interrupted_when_it_loops,
    limit,
    may_judge,
    passes_now,
    why,
    with_spark_tests_collected,
    with_tests_collected,
)
from tests.verify.simulator.mutation.mutants import ENCODER_JUDGES, PROTOCOL_JUDGES, ROOT, Mutant, unchanged

HARNESS_BROKE, GIVEN_UP = 99, 98
BATCH = {PROTOCOL_JUDGES: 50, ENCODER_JUDGES: 8}
"""How many mutants are judged in one process, which may use up so much processor time only: the encoder's tests take longer."""
PARTS_OF_THE_SUITE = (
    *(f"tests/unit/{name}" for name in (*UNIT, *ENCODER)),
    "tests/unit/test_protocol_model.py",
    *(f"tests/{name}" for name in WITH_SPARK.values()),
    *(f"tests/{name}.py" for name in ("conftest", "held_batch", "log_ends", "new_topics", "faults/support")),
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
    """First those that change a class, each with all loaded anew; then those that can be put in place, all loaded once.

    At last those that take Spark: each process starts it once.
    """
    preload()
    light = [mutant for mutant in mutants if not mutant.target.with_spark]
    alone = [[mutant] for mutant in light if not mutant.in_place]
    _judge_each(alone, processes, heard, lambda batch, answer: _from_the_start(batch[0], judges, answer))
    in_place = [
        batch
        for who in sorted({mutant.target.judges for mutant in light if mutant.in_place})
        for batch in _cut([mutant for mutant in light if mutant.in_place and mutant.target.judges == who], BATCH[who])
    ]
    if in_place:
        with_tests_collected(
            lambda: _judge_each(in_place, processes, heard, lambda batch, answer: _judge_batch(batch, judges, answer))
        )
    heavy = [mutant for mutant in mutants if mutant.target.with_spark]
    assert all(mutant.in_place for mutant in heavy), "Spark would have to be started for each of them"
    shares = [share for number in range(processes) if (share := heavy[number::processes])]
    _judge_each(shares, processes, heard, lambda batch, answer: _with_spark(batch, judges, answer))


Judged = tuple[str, str]
Answer = Callable[[Judged], None]
Work = Callable[[Sequence[Mutant], Answer], None]
"""Judges mutants, and answers with a verdict on each, in their order."""


def _cut(mutants: Sequence[Mutant], size: int) -> list[Sequence[Mutant]]:
    return [mutants[i : i + size] for i in range(0, len(mutants), size)]


def _from_the_start(mutant: Mutant, judges: Sequence[str], answer: Answer) -> None:
    """The mutant is there before whatever is loaded."""
    limit()
    if not _installed(mutant, answer):
        return
    with silence():
        with_tests_collected(lambda: answer(_asked(mutant, judges)))


def _judge_batch(batch: Sequence[Mutant], judges: Sequence[str], answer: Answer) -> None:
    """One after the other in one process, where the tests are loaded."""
    limit()
    found: list[Judged] = []
    for mutant in batch:
        restore = _installed(mutant, found.append)
        if restore:
            with silence():
                found.append(_asked(mutant, judges))
            restore()
    if len(batch) > 1:
        with silence():
            left = _asked(batch[0], judges)
        assert not left[0], f"a mutant leaves something behind: {left}"
    for verdict in found:
        answer(verdict)


def _with_spark(batch: Sequence[Mutant], judges: Sequence[str], answer: Answer) -> None:
    """As ``_judge_batch``, but each verdict counts at once.

    A process in which a test hangs is given up, and the mutant judged anew, alone in the end: it may have been the machine that
    stood still. So the first that is judged is production itself, for which brokers and Spark start.
    """
    itself = unchanged(batch[-1].target, in_place=True)

    def judge() -> None:
        for mutant in [itself, *batch, itself]:
            restore = _installed(mutant, answer)
            if not restore:
                continue
            try:
                verdict = _asked(mutant, judges)
            except Hangs:
                if mutant is itself:
                    raise
                os._exit(GIVEN_UP)
            restore()
            is_killed = verdict[0] == SPARK
            assert not (is_killed and (mutant is itself or not passes_now(verdict[1]))), (
                f"{mutant.key} has left something behind, or {verdict[1]} fails by itself: {why()}"
            )
            if mutant is not itself:
                answer(verdict)

    with silence():
        with_spark_tests_collected(judge)


def _installed(mutant: Mutant, answer: Answer) -> Restore | None:
    """What takes it out again; none where it is killed by that alone."""
    try:
        return install(mutant)
    except CannotBeLoaded as error:
        answer((mutant.target.judges[0], f"it cannot be loaded: {error}"))
        return None


def _asked(mutant: Mutant, judges: Sequence[str]) -> Judged:
    for name in judges:
        if not may_judge(name, mutant.target):
            continue
        try:
            with interrupted_when_it_loops(name):
                saw = (JUDGES | CONTROL)[name](mutant.target.file)
        except TimeoutError as error:
            return "limits", str(error)
        if saw:
            return name, saw[:200]
    return "", ""


@dataclass(slots=True)
class _Running:
    """A process, and what it has said so far."""

    pid: int
    batch: Sequence[Mutant]
    verdicts: int = 0
    text: bytes = b""


def _judge_each(batches: Sequence[Sequence[Mutant]], processes: int, heard: Heard, work: Work) -> None:
    """Each batch in a process of its own. Where that ends too early, those that are left are judged anew."""
    waiting = list(reversed(batches))
    running: dict[int, _Running] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            batch = waiting.pop()
            pipe, pid = _fork(batch, work)
            running[pipe] = _Running(pid, batch)
        for pipe in select.select(list(running), [], [])[0]:
            told = os.read(pipe, 1 << 16)
            if told:
                _listen(running[pipe], told, heard)
            else:
                os.close(pipe)
                waiting += reversed(_left(running.pop(pipe), heard))


def _listen(process: _Running, told: bytes, heard: Heard) -> None:
    *lines, process.text = (process.text + told).split(b"\n")
    for line in lines:
        heard(process.batch[process.verdicts], *json.loads(line))
        process.verdicts += 1


def _left(process: _Running, heard: Heard) -> list[Sequence[Mutant]]:
    """What is to be judged anew behind the end of a process: one by one, so that it is known who ended it."""
    _, status = os.waitpid(process.pid, 0)
    rest = process.batch[process.verdicts :]
    broke = os.waitstatus_to_exitcode(status) == HARNESS_BROKE
    assert not (broke and (len(process.batch) == 1 or process.verdicts)), "a mutant could not be judged"
    if process.verdicts and rest:
        return [rest]
    if len(rest) > 1 and rest[0].target.with_spark:
        return [rest[:1], rest[1:]]
    if len(rest) > 1:
        return _cut(rest, 1)
    for mutant in rest:
        heard(mutant, "limits", "it ended the process")
    return []


def _fork(batch: Sequence[Mutant], work: Work) -> tuple[int, int]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = HARNESS_BROKE
        try:
            work(batch, lambda verdict: _write_all(writing, json.dumps(verdict).encode() + b"\n"))
            status = 0
        except BaseException:  # noqa: BLE001  nothing may leave this process but by its end
            traceback.print_exc()
        os._exit(status)
    os.close(writing)
    return reading, pid


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


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
