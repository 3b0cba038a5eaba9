"""The suite's own strength: a sample of the mutants of the commit protocol, of which none may live."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import SystemRandom

import pytest
from tests.verify.simulator.mutation import judged
from tests.verify.simulator.mutation.__main__ import Verdicts, equivalents, figures
from tests.verify.simulator.mutation.judged import Figures, recorded, write
from tests.verify.simulator.mutation.judges import (
    ENCODER,
    JUDGES,
    LOOP_S,
    SPARK,
    UNIT,
    WITH_SPARK,
    _interrupt,
    interrupted_when_it_loops,
    may_judge,
)
from tests.verify.simulator.mutation.mutants import ROOT, SPARK_JUDGES, Mutant, Target, mutants
from tests.verify.simulator.mutation.running import Answer, _judge_each, digest, parts_of_the_suite
from tests.verify.simulator.mutation.targets import TARGETS

SAMPLE = 75
PAGE = ROOT / "docs/simulator.md"
IMPORTED = re.compile(r"\btests(?:\.\w+)+")


def test_no_mutant_of_a_sample_lives(tmp_path: Path) -> None:
    """Another sample each time: a suite that was weakened where one looked is found out where the next one looks."""
    seed = SystemRandom().randrange(10**6)
    command = [sys.executable, "-m", "tests.verify.simulator.mutation"]
    options = [
        "--judge",
        "unit tests",
        "--judge",
        "encoder's tests",
        "--sample",
        str(SAMPLE),
        "--seed",
        str(seed),
        "--least",
        "1",
        "--state",
        str(tmp_path / "verdicts.jsonl"),
    ]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"seed {seed}\n{run.stdout}{run.stderr}"
    assert f"{SAMPLE} of {SAMPLE} mutants that differ from production are killed: 100.00%" in run.stdout


def test_a_suite_that_looks_at_nothing_kills_nothing(tmp_path: Path) -> None:
    """Were mutants killed by whatever runs them, the figures above would mean nothing."""
    command = [sys.executable, "-m", "tests.verify.simulator.mutation", "--judge", "nobody", "--sample", "10"]
    run = subprocess.run(
        [*command, "--state", str(tmp_path / "verdicts.jsonl")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "0 of 10 mutants that differ from production are killed: 0.00%" in run.stdout


def test_who_is_interrupted_has_seen_nothing_also_where_a_test_catches_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow machine would be said to have killed a mutant that lives, or what is not changed."""
    monkeypatch.setitem(LOOP_S, "unit tests", 0.05)
    caught = []
    before = signal.signal(signal.SIGPROF, _interrupt)

    def judging() -> None:
        with interrupted_when_it_loops("unit tests"):
            try:
                while True:
                    pass
            except TimeoutError as error:
                caught.append(error)

    try:
        with pytest.raises(TimeoutError, match="too much processor time"):
            judging()
    finally:
        signal.signal(signal.SIGPROF, before)
    assert len(caught) == 1


def all_mutants() -> list[Mutant]:
    return [mutant for target in TARGETS for mutant in mutants(target)]


def test_names_of_mutants_are_their_own() -> None:
    every = all_mutants()
    assert len({mutant.key for mutant in every}) == len(every) > 1500
    assert equivalents(every)


def documented() -> tuple[str, list[str]]:
    """What the page says of mutants: all of it, and the rows of its table."""
    _, _, section = PAGE.read_text().partition("## Mutants")
    section, _, _ = section.partition("\n## ")
    return section, re.findall(r"^\| (?:\w+\.py|all) \|.*$", section, re.MULTILINE)


def test_the_documented_figures_are_those_of_today() -> None:
    """Those of the last judgement, of the sources that there are."""
    known = recorded()
    every = Counter(mutant.target.file for mutant in all_mutants())
    assert {file: each.mutants for file, each in known.items()} == every, AGAIN
    section, rows = documented()
    rows_of = [(file, known[file].mutants, known[file].equivalent, known[file].killed) for file in every]
    totals = [sum(column) for column in zip(*(numbers for _, *numbers in rows_of), strict=True)]
    assert rows == [
        f"| {name} | {made} | {same} | {killed} |" for name, made, same, killed in [*rows_of, ("all", *totals)]
    ]
    made, same, killed = totals
    assert f"{killed} of the {made - same} that differ from production are killed" in " ".join(section.split())


AGAIN = (
    "judge it again: python -m tests.verify.simulator.mutation "
    '--judge "unit tests" --judge "encoder\'s tests" --judge "with Spark" --only "<its name> " --record'
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.file)
def test_each_file_was_judged_as_it_is(target: Target) -> None:
    """Whoever changes one has its mutants judged, all of them, and records what came of it."""
    assert recorded()[target.file].source == digest([ROOT / target.path]), AGAIN


def test_what_is_recorded_is_what_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of which a mutant has no verdict is not recorded, and one that lives is not among the killed."""
    whole, partly = TARGETS[0], TARGETS[1]
    every = [*mutants(whole), *mutants(partly)]
    verdicts = Verdicts(tmp_path / "verdicts.jsonl", trust_kills=False)
    for number, mutant in enumerate(every[:-1]):
        verdicts.add(mutant, "" if number == 0 else "unit tests", "")
    found = figures(every, verdicts, {every[0].key: "a reason"})
    count = len(mutants(whole))
    assert found == {whole.file: Figures(digest([ROOT / whole.path]), count, 1, count - 1)}
    monkeypatch.setattr(judged, "JUDGED", tmp_path / "judged.toml")
    write(found)
    assert recorded() == found


def test_verdicts_are_forgotten_when_any_file_changes_that_judges() -> None:
    """A judge that was weakened would go on to count by what it killed before."""
    parts = {path.relative_to(ROOT).as_posix() for path in parts_of_the_suite()}
    judges = [f"tests/unit/{name}" for name in (*UNIT, *ENCODER)] + ["tests/verify/simulator/mutation/judges.py"]
    judges += [f"tests/{name}" for name in WITH_SPARK.values()]
    used = {f"{name.replace('.', '/')}.py" for path in judges for name in IMPORTED.findall((ROOT / path).read_text())}
    assert {*judges, *used} - parts == set()
    assert {"tests/unit/test_protocol_model.py", "tests/held_batch.py"} <= used


def test_what_takes_spark_has_its_tests_and_no_other_judge_and_so_has_the_encoder() -> None:
    assert {target.file for target in TARGETS if target.with_spark} == WITH_SPARK.keys()
    for target in TARGETS:
        encoder = ["encoder's tests"] if target.file == "varint.py" else []
        assert [name for name in JUDGES if may_judge(name, target)] == (
            [SPARK] if target.with_spark else encoder or ["unit tests", "model", "simulator"]
        )


@pytest.mark.parametrize("processes", [1, 3])
def test_behind_a_process_that_ends_too_early_the_rest_is_judged(processes: int) -> None:
    """What it had answered counts. Who ends one alone is killed by that."""
    found: dict[str, tuple[str, str]] = {}
    every = {target.file: mutants(target)[:4] for target in TARGETS[:3]}
    light = every[TARGETS[0].file]
    heavy = [replace(each, target=replace(each.target, judges=SPARK_JUDGES)) for each in every[TARGETS[1].file]]
    both = [light, heavy, every[TARGETS[2].file]]
    ends = {light[1].key, heavy[0].key, heavy[2].key}

    def work(batch: Sequence[Mutant], answer: Answer) -> None:
        for mutant in batch:
            if mutant.key in ends:
                os._exit(1)
            answer(("nobody", mutant.key))

    def heard(mutant: Mutant, judge: str, saw: str) -> None:
        assert mutant.key not in found
        found[mutant.key] = (judge, saw)

    _judge_each(both, processes, heard, work)
    keys = [mutant.key for batch in both for mutant in batch]
    assert found == {key: ("limits", "it ended the process") if key in ends else ("nobody", key) for key in keys}
