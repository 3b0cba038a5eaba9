"""Every branch of the production code that the simulator drives is taken by some run, or listed with the reason why none can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.verify.simulator.branches.probes import PROBE, ROOT, probed

LISTED = "tests/verify/simulator/branches/unreached.toml"


def branches(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.verify.simulator.branches", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_branch_of_production_is_taken_or_listed_with_a_reason() -> None:
    run = branches()
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_branch_that_no_run_takes_is_named() -> None:
    run = branches("--first", "1", "--processes", "1")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "never reached: progress.py _new_query: is called" in run.stdout
    assert "talk.py Pace.real" not in run.stdout  # listed


def test_a_branch_that_is_listed_and_taken_is_named(tmp_path: Path) -> None:
    listed = tmp_path / "listed.toml"
    more = '[[unreached]]\nreason = "None."\nbranches = ["protocol.py _fence"]\n'
    listed.write_text((ROOT / LISTED).read_text() + more)
    run = branches("--first", "1", "--processes", "1", "--listed", str(listed))
    assert run.returncode == 1, run.stdout + run.stderr
    assert "is listed in listed.toml, and reached: protocol.py _fence: is called" in run.stdout


def test_an_entry_without_a_branch_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "listed.toml"
    listed.write_text('[[unreached]]\nreason = "It is gone."\nbranches = ["protocol.py _gone"]\n')
    run = branches("--first", "1", "--listed", str(listed))
    assert run.returncode == 1
    assert "no such branch, correct listed.toml: protocol.py _gone" in run.stderr


SOURCE = '''
def first(values, limit):
    """Some of each kind."""
    found = [value for value in values if value and not value > limit]
    for value in found:
        match value:
            case 1:
                return "one"
    try:
        return found[0] if found else values[9]
    except IndexError:
        return (lambda: None)() or limit
'''


def test_probes_see_each_outcome_and_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(SOURCE)
    found, seen = probed(str(path)), set[int]()

    def probe(number: int, value: object) -> object:
        seen.add(2 * number + (not value))
        return value

    plain: dict[str, object] = {}
    probing: dict[str, object] = {PROBE: probe}
    exec(SOURCE, plain)
    exec(compile(found.tree, str(path), "exec"), probing)

    def taken(*arguments: object) -> set[str]:
        seen.clear()
        assert probing["first"](*arguments) == plain["first"](*arguments)  # type: ignore[operator]
        return {found.branches[each].removeprefix("some.py first: ") for each in seen}

    entered = {"is called", "value is false", "found is false", "except IndexError is entered"}
    assert taken([0], 5) == {*entered, "lambda: None is called", "(lambda: None)() is false"}
    assert taken([1, 7], 5) == {
        "is called",
        *("value is true", "value > limit is true", "value > limit is false"),
        *("for value in found runs", "match value, case 1 is taken"),
    }
    assert {"found is true", "match value, no case is taken"} <= taken([3], 5)
