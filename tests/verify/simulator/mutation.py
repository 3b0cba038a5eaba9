"""Long part, outside of CI: every mutant of the commit protocol against the simulator, and what it misses against the unit tests.

``python -m tests.verify.simulator.mutation`` prints the survivors and exits with 1 when fewer than 95 % are killed. As a pytest
plugin (``-p``) the same module puts one mutant in the place of the protocol.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

from onceflow import transaction
from onceflow.verify.simulator.mutants import Mutant, killed_by, mutants

SEEDS = range(600)
LEAST_KILLED = 0.95
UNIT_TESTS = ("tests/unit/test_protocol.py", "tests/unit/test_protocol_model.py")
PLUGIN = "tests.verify.simulator.mutation"
SOURCE = "ONCEFLOW_MUTANT"
ROOT = Path(__file__).parents[3]
PROCESSES = 2


def pytest_configure() -> None:
    """Puts the mutant in place before the tests import the protocol."""
    if SOURCE in os.environ:
        module = Mutant("the one under test", Path(os.environ[SOURCE]).read_text()).load()
        sys.modules["onceflow.transaction.protocol"] = module
        transaction.protocol = module


def simulated(mutant: Mutant) -> bool:
    """Whether the simulator kills the mutant."""
    return killed_by(mutant, SEEDS) is not None


def tested(mutant: Mutant) -> bool:
    """Whether the unit tests of the protocol kill it."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(mutant.source)
        file.flush()
        env = {**os.environ, SOURCE: file.name, "PYTHONPATH": str(ROOT)}
        return any(fails(path, env) for path in UNIT_TESTS)


def fails(path: str, env: dict[str, str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "not slow", "-p", PLUGIN, path]
    return subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=False).returncode == 1


def survivors(every: list[Mutant]) -> list[Mutant]:
    """The mutants that nothing kills."""
    with get_context("spawn").Pool(PROCESSES) as pool:
        seen = pool.map(simulated, every, chunksize=4)
        left = [mutant for mutant, killed in zip(every, seen, strict=True) if not killed]
        print(f"the simulator kills {len(every) - len(left)} of {len(every)}; not:", flush=True)
        print("\n".join(f"  {mutant.name}" for mutant in left), flush=True)
        killed = pool.map(tested, left, chunksize=1)
    return [mutant for mutant, dead in zip(left, killed, strict=True) if not dead]


def main() -> None:
    every = mutants()
    left = survivors(every)
    for mutant in left:
        print(f"survives: {mutant.name}")
    killed = len(every) - len(left)
    print(f"{killed} of {len(every)} mutants killed, {killed / len(every):.1%}")
    sys.exit(killed / len(every) < LEAST_KILLED)


if __name__ == "__main__":
    main()
