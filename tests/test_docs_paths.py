"""What the pages on faults, controls and verification name is there: files, tests, faults, kinds and variants."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from onceflow.verify.faults.catalog import FAULTS
from onceflow.verify.simulator.scenario import KINDS
from onceflow.verify.simulator.variants import VARIANTS

ROOT = Path(__file__).parents[1]
FAULTS_PAGE = ROOT / "docs/faults.md"
CONTROLS_PAGE = ROOT / "docs/controls.md"
VERIFICATION_PAGE = ROOT / "docs/verification/README.md"
FOUND_PAGE = ROOT / "docs/verification/found.md"
PAGES = [FAULTS_PAGE, CONTROLS_PAGE, VERIFICATION_PAGE, FOUND_PAGE]
PATH = re.compile(r"([\w./-]+\.py|(?:src|tests|docs|benchmarks)/[\w./-]+)(?:::(\w+))?")
KINDS_OF_FAULTS = 24


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@cache
def functions(file: Path) -> frozenset[str]:
    found = ast.parse(file.read_text()).body
    return frozenset(each.name for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def missing_paths(text: str) -> list[str]:
    """Of the paths from the project's root, with or without a test in them, those that are of nothing."""
    named = [(word, match) for word in quoted(text) if (match := PATH.fullmatch(word))]
    return [word for word, match in named if not is_there(ROOT / match[1], match[2])]


def is_there(path: Path, function: str | None) -> bool:
    return path.exists() and (function is None or (path.is_file() and function in functions(path)))


def rows() -> list[list[str]]:
    """The cells of the table of faults: number, fault, verify, simulator, real parts, control."""
    lines = [line for line in FAULTS_PAGE.read_text().splitlines() if re.match(r"\| F\d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def controlled() -> list[str]:
    """The faults of verify for which the page on controls says what each breaks; others than those stand there in plain words."""
    _, _, section = CONTROLS_PAGE.read_text().partition("## Each fault breaks something")
    table, _, _ = section.partition("What `onceflow verify` does not bring about")
    lines = [line for line in table.splitlines() if re.match(r"\| (?!fault \||-)", line)]
    return [name for line in lines for name in quoted(line.split("|")[1])]


def bugs() -> list[str]:
    """What verification has found in onceflow: one text a bug."""
    _, _, section = FOUND_PAGE.read_text().partition("## In onceflow itself\n")
    section, _, _ = section.partition("\n## ")
    found = [bug for group in section.split("\n### ") for bug in re.split(r"\n- ", group)[1:]]
    return [" ".join(bug.split()) for bug in found]


def names_a_test(bug: str) -> bool:
    return any((match := PATH.fullmatch(word)) and match[1].startswith("tests/") for word in quoted(bug))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    assert missing_paths(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_what_is_of_nothing_is_found() -> None:
    nothing = ["test_docs_paths.py", "tests/nothing.py", "docs/nothing", "tests/test_docs_paths.py::test_nothing"]
    text = "`" + "` `".join([*nothing, "tests/test_docs_paths.py::test_links_lead_somewhere", "docs", "a | b"]) + "`"
    assert missing_paths(text) == nothing


def test_each_kind_of_fault_has_its_line_and_a_test_with_real_parts() -> None:
    assert [cells[0] for cells in rows()] == [f"F{number}" for number in range(1, KINDS_OF_FAULTS + 1)]
    assert [cells[0] for cells in rows() if not PATH.search(cells[4])] == []


def test_each_fault_of_verify_is_in_the_table_and_no_other() -> None:
    named = {word for cells in rows() for word in quoted(cells[2]) if not word.startswith("--")}
    assert named == set(FAULTS)


def test_each_fault_of_verify_has_one_row_of_what_it_breaks_and_no_other() -> None:
    assert sorted(controlled()) == sorted(FAULTS)


def test_kinds_and_variants_of_the_simulator_that_are_named_exist() -> None:
    kinds = {word for cells in rows() for word in quoted(cells[3]) if not PATH.fullmatch(word)}
    assert kinds <= set(KINDS)
    variants = re.findall(r'variants? ("[^|`(;]+)', FAULTS_PAGE.read_text())
    assert set(re.findall(r'"([^"]+)"', " ".join(variants))) <= set(VARIANTS)


def test_so_many_bugs_are_told_as_are_said_to_be() -> None:
    _, _, section = FOUND_PAGE.read_text().partition("## In onceflow itself\n\n")
    assert section.startswith(f"{len(bugs())} of them")


def test_each_bug_that_was_found_names_its_test_or_says_why_it_has_none() -> None:
    assert bugs()
    assert [bug for bug in bugs() if not names_a_test(bug) and "no test: " not in bug] == []
