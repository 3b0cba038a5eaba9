"""The suite's own strength: a sample of the mutants of the commit protocol, of which none may live."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.verify.simulator.mutation.__main__ import equivalents
from tests.verify.simulator.mutation.mutants import ROOT, mutants
from tests.verify.simulator.mutation.targets import TARGETS

SAMPLE = 150
SEED = 1


def test_no_mutant_of_a_sample_lives(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.verify.simulator.mutation", "--judge", "unit tests"]
    options = [
        "--sample",
        str(SAMPLE),
        "--seed",
        str(SEED),
        "--least",
        "1",
        "--state",
        str(tmp_path / "verdicts.jsonl"),
    ]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{SAMPLE} of {SAMPLE} mutants that differ from production are killed: 100.00%" in run.stdout


def test_a_suite_that_looks_at_nothing_kills_nothing(tmp_path: Path) -> None:
    """Were mutants killed by whatever runs them, the figures above would mean nothing."""
    command = [sys.executable, "-m", "tests.verify.simulator.mutation", "--judge", "nobody", "--sample", "10"]
    run = subprocess.run(
        [*command, "--state", str(tmp_path / "verdicts.jsonl")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "0 of 10 mutants that differ from production are killed: 0.00%" in run.stdout


def test_names_of_mutants_are_their_own() -> None:
    every = [mutant for target in TARGETS for mutant in mutants(target)]
    assert len({mutant.key for mutant in every}) == len(every) > 1500
    assert equivalents(every)
