"""What is published under ``docs/verification``: the pages, and what is told of them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.verify.report import published
from tests.verify.report.pages import Page
from tests.verify.report.published import LAST, PUBLISHED, README, cells, drawn, main, runs, times, written

from onceflow.jars import locked

ROOT = PUBLISHED.parents[1]
NEVER_CAME, MET_NOTHING, MET_WORK = "never came", "met nothing", "met work"
OPEN = {
    ("kill-standby", "1"): MET_NOTHING,  # the pipeline's work goes on beside it
    ("kill-standby", "2"): MET_NOTHING,
}
"""The kinds that have not met work in any run of a transaction version. Whichever has is no longer one of them."""
OF_AN_OLDER_KAFKA: set[str] = set()
"""The newest runs that are not yet of the release that is embedded. Whichever is is no longer one of them."""


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.html")), ids=lambda path: path.stem)
def test_a_page_links_only_to_what_stands_beside_it(path: Path) -> None:
    links = [each["href"] for each in Page.at(path).named("a") if not each["href"].startswith("#")]
    assert [link for link in links if not (PUBLISHED / link).exists()] == []


def test_the_tables_say_what_the_pages_say() -> None:
    page = README.read_text(encoding="utf-8")
    assert page == written(page), "make them anew: python -m tests.verify.report.published"


def test_no_run_that_is_published_has_found_anything_in_ours() -> None:
    assert [(told.name, told.found) for told in [*runs(), *cells()] if told.found] == []


def test_each_run_that_the_command_makes_has_a_page() -> None:
    made = set(re.findall(r"--out onceflow-verify/([\w-]+)", (ROOT / "Makefile").read_text())) - {"matrix"}
    assert set(LAST) == made
    assert set(LAST.values()) <= {told.name for told in runs()}


def test_the_newest_runs_are_of_the_kafka_that_is_embedded() -> None:
    """But for those of the list: another release asks for runs of its own."""
    embedded = next(jar.version for jar in locked("broker") if jar.artifact.startswith("kafka_"))
    older = {told.name for told in runs() if told.name in LAST.values() and told.kafka != embedded}
    older |= {"the matrix" for told in cells() if told.kafka != embedded}
    assert older == OF_AN_OLDER_KAFKA


def test_the_pages_are_of_the_commands_that_the_makefile_has_now() -> None:
    """A line that is changed asks for a run of its own."""
    clean = {"PATH": os.environ["PATH"]}  # without what a make that runs this was given
    make = subprocess.run(
        ["make", "-n", "verify-runs"], cwd=ROOT, env=clean, check=True, capture_output=True, text=True
    )
    lines = re.findall(r"run (\S.*) --out onceflow-verify/([\w-]+);", make.stdout)
    assert {name: options(command) for command, name in lines if name != "matrix"} == {
        name: options(command_of(page)) for name, page in LAST.items()
    }


def command_of(page: str) -> str:
    text = (PUBLISHED / f"{page}.html").read_text(encoding="utf-8")
    (command,) = set(re.findall(r"onceflow verify (\S[^<]*) --seed \d+", text))
    return str(command)


def options(command: str) -> dict[str, str]:
    """``{option: value}`` and the plan, in whatever order they were given; the version is 2 if none is."""
    plan = command.partition(" ")[0]
    named = dict(re.findall(r"(--[\w-]+)(?: (?!--)(\S+))?", command))
    return {"plan": "" if plan.startswith("--") else plan, "--transaction-version": "2"} | named


def test_each_kind_of_fault_has_met_work_in_some_run_of_each_version() -> None:
    """But for those of the list, which tells of no kind that has met work meanwhile, or is none any more."""
    became = {(kind, version): what_became_of(kind, version) for kind in drawn() for version in "12"}
    assert {which: what for which, what in became.items() if what != MET_WORK} == OPEN


def what_became_of(kind: str, version: str) -> str:
    injected, met = times(kind, version)
    if not injected:
        return NEVER_CAME
    return MET_WORK if met else MET_NOTHING


def test_what_is_no_report_is_told_and_nothing_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(published, "PUBLISHED", tmp_path)
    good = next(PUBLISHED.glob("version-*.html"))
    (other := tmp_path / "other.html").write_text("<p>It began at 2026-11-26</p>")
    (bytes_alone := tmp_path / "bytes.html").write_bytes(b"\xff")
    paths = [good, tmp_path / "gone.html", tmp_path, other, bytes_alone]
    given = [f"version-2-{number}={path}" for number, path in enumerate(paths)]
    assert main([*given, f"runs={good}", "version-2", "version-2="]) == 2
    no_page, no_name = "is no page of a run", "give it as NAME="
    told = capsys.readouterr().err.splitlines()
    expected = ["No such file or directory", "Is a directory", no_page, no_page, no_name, no_name, no_name]
    assert [why in line for why, line in zip(expected, told, strict=True)] == [True] * 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes.html", "other.html"]
