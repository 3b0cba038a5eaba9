"""What all cells say together: rows, verdict, files, exit status."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from tests.verify.report.pages import Page
from tests.verify.report.results import control, run
from typer.testing import CliRunner, Result

from onceflow.cli.main import app
from onceflow.verify.engines import ABORTING, ABORTING_EXECUTORS, Engine
from onceflow.verify.matrix import report, running
from onceflow.verify.matrix.cells import CELLS
from onceflow.verify.matrix.results import Row, complete, status_of
from onceflow.verify.matrix.running import run_matrix
from onceflow.verify.matrix.settings import Matrix, MatrixOptions, matrix_of
from onceflow.verify.matrix.terminal import show
from onceflow.verify.report.summary import ExitStatus
from onceflow.verify.result import RunResult
from onceflow.verify.running import verification
from onceflow.verify.running.progress import Progress
from onceflow.verify.running.settings import Settings

QUIET = Progress(Console(quiet=True))
MESSAGES = 1000
COUNTS = {
    "input records committed": MESSAGES,
    "input records aborted": 300,
    "input records visible": MESSAGES,
    "output records": MESSAGES,
    "batches": 20,
    "attempts aborted": 6,
    "faults": 3,
}
GOOD = run(counts=COUNTS)
TWICE = run("append_a_record_again", seed=3, counts=COUNTS)
LOST = run("drop_a_committed_record", seed=3, counts=COUNTS)
FEW = run(counts={**COUNTS, "faults": 2}, failures=("2 of 3 bounces came before the input was through",))


def row(result: RunResult | None, number: int = 0) -> Row:
    return Row(CELLS[number], MESSAGES, 3, result)


def matrix(*cells: str, engine: str = "onceflow", spark_workers: int = 2) -> Matrix:
    return matrix_of(MatrixOptions(MESSAGES, cells, engine, spark_workers, seed=7, arguments=("--matrix",)))


def giving(*results: RunResult | BaseException) -> Callable[[Settings, Progress], list[RunResult]]:
    """Runs of which each gives the next result."""
    left = iter(results)

    def give(settings: Settings, progress: Progress) -> list[RunResult]:
        result = next(left)
        if isinstance(result, BaseException):
            raise result
        return [result]

    return give


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([GOOD, GOOD], 0),
        ([GOOD, control(counts=COUNTS)], 0),
        ([GOOD, TWICE], 1),
        ([TWICE, FEW], 1),
        ([GOOD, FEW], 2),
        ([GOOD, None], 2),
        ([TWICE, None], 1),
        ([control()], 2),
        ([], 2),
    ],
)
def test_exit_status(results: list[RunResult | None], status: int) -> None:
    assert status_of([row(each) for each in results]) == status


def test_what_is_found_is_sorted_into_duplicates_missing_and_order() -> None:
    assert (row(GOOD).duplicates, row(GOOD).missing, row(GOOD).out_of_order) == (0, 0, 0)
    assert (row(TWICE).duplicates, row(TWICE).missing) == (1, 0)
    assert row(LOST).missing == 1
    assert row(None).duplicates is None


def test_a_run_that_proves_nothing_has_no_zeros_and_keeps_what_is_certain() -> None:
    assert (row(FEW).duplicates, row(FEW).missing) == (None, None)
    broken = row(replace(TWICE, failures=("stuck",)))
    assert (broken.duplicates, broken.missing, broken.standing) == (1, None, "violated")
    unclear = row(replace(LOST, failures=("stuck",)))  # what is missing may come yet
    assert (unclear.missing, unclear.standing) == (None, "not judged")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"input records committed": 999}, "999 messages of 1,000 were committed"),
        ({"output records": 999}, "1,000 messages were there to be copied, and there are 999 copies"),
        ({"output records": 1001}, "1,000 messages were there to be copied, and there are 1,001 copies"),
    ],
)
def test_numbers_that_do_not_agree_prove_nothing_though_no_check_found_it(changed: dict[str, int], reason: str) -> None:
    told = complete(row(replace(GOOD, counts={**COUNTS, **changed})))
    assert (told.standing, told.reasons) == ("not judged", (reason,))
    assert complete(row(GOOD)) == row(GOOD)
    violated = row(replace(TWICE, counts={**COUNTS, **changed}))
    assert complete(violated) == violated


def test_the_report_says_after_each_cell_how_far_it_is(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run_matrix(
            matrix("hard-brokers-1", "clean-brokers-1", "clean-clients-2"),
            tmp_path,
            QUIET,
            giving(GOOD, TWICE, SystemExit(130)),
        )
    document = json.loads((tmp_path / "matrix.json").read_text())
    assert [(cell["cell"], cell["standing"]) for cell in document["cells"]] == [
        ("hard-brokers-1", "good"), ("clean-brokers-1", "violated"), ("clean-clients-2", "not run")
    ]  # fmt: skip
    assert document["exit_status"] == 1
    root = ET.parse(tmp_path / "junit.xml").getroot()
    assert [root.attrib[name] for name in ("failures", "errors")] == ["1", "1"]
    assert [suite.attrib["name"] for suite in root if suite.find("testcase/error") is not None] == ["clean-clients-2"]
    assert document["cells"][0] == {
        "cell": "hard-brokers-1", "how": "hard", "who": "brokers", "transaction_version": 1, "engine": "onceflow",
        "judged": True, "standing": "good", "messages": 1000, "messages_aborted": 300, "copies": 1000, "transactions": 20,
        "attempts_aborted": 6, "bounces": 3, "bounces_wanted": 3, "bounces_met": None,
        "duplicates": 0, "missing": 0, "out_of_order": 0,
        "anomalies": {}, "seconds": 60.0, "reasons": [], "command": GOOD.command, "report": "hard-brokers-1/report.html",
    }  # fmt: skip
    page = (tmp_path / "matrix.html").read_text()
    assert 'href="hard-brokers-1/report.html"' in page
    assert 'href="clean-clients-2' not in page
    assert "1 duplicated" in page
    for name in ("report.html", "report.json", "junit.xml"):
        assert (tmp_path / "clean-brokers-1" / name).exists()
    assert list((tmp_path / "clean-brokers-1").glob("history*.parquet"))


@pytest.mark.parametrize(
    ("engine", "spark_workers", "engines", "spark"),
    [
        ("executors", 2, ["onceflow, executors write"], "a Spark cluster of 2 workers"),
        ("both", 0, ["onceflow", "Spark's Kafka sink"], "Spark in the driver's process"),
    ],
)
def test_the_report_says_on_what_the_cells_have_run(
    engine: str, spark_workers: int, engines: list[str], spark: str, tmp_path: Path
) -> None:
    run_matrix(matrix("hard-brokers-1", engine=engine, spark_workers=spark_workers), tmp_path, QUIET, giving(GOOD))
    document = json.loads((tmp_path / "matrix.json").read_text())
    told = [document[key] for key in ("brokers", "spark_workers", "engines", "messages", "seed")]
    assert told == [3, spark_workers, engines, MESSAGES, 7]
    about = f"Engine: {'; '.join(engines)}. 3 brokers, {spark}. Input of 1,000 messages in each cell, seed 7."
    assert about in Page.at(tmp_path / "matrix.html").text


NO_REPORT = pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), ValueError("of our own making")], ids=["full", "mistake"]
)


@NO_REPORT
def test_a_cell_whose_report_cannot_be_written_does_not_end_the_others(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "write_report", Mock(side_effect=error))
    rows = run_matrix(matrix("hard-brokers-1", "hard-brokers-2"), tmp_path, QUIET, giving(GOOD, LOST))
    assert [each.standing for each in rows] == ["not judged", "violated"]
    assert str(error) in rows[0].reasons[0]


@NO_REPORT
def test_what_was_found_stays_found_where_the_report_of_all_cells_cannot_be_written(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(told: report.Told, directory: Path) -> None:
        (directory / report.DOCUMENT).touch()
        raise error

    monkeypatch.setattr(report, "write", full)
    rows = run_matrix(matrix("hard-brokers-1", "hard-brokers-2"), tmp_path, QUIET, giving(TWICE, GOOD))
    assert [each.standing for each in rows] == ["violated", "not judged"]
    assert status_of(rows) is ExitStatus.VIOLATED
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [], "nobody takes half of it for all of it"


def test_an_earlier_report_does_not_stay(tmp_path: Path) -> None:
    """Nor does that of a run without the matrix; that of a cell that is not run now does."""
    run_matrix(matrix("hard-brokers-1", "hard-brokers-2"), tmp_path, QUIET, giving(TWICE, TWICE))
    (tmp_path / "report.html").write_text("of an earlier run")
    report.clear(tmp_path, matrix("hard-brokers-1").settings)
    rows = run_matrix(matrix("hard-brokers-1"), tmp_path, QUIET, giving(GOOD))
    assert status_of(rows) is ExitStatus.GOOD
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"matrix.html", "matrix.json", "junit.xml"}
    assert {path.name for path in (tmp_path / "hard-brokers-1").iterdir()} == {
        "report.html", "report.json", "junit.xml"
    }  # fmt: skip
    assert (tmp_path / "hard-brokers-2" / "history.parquet").exists()


def test_the_terminal_shows_a_line_a_cell_and_the_verdict_last() -> None:
    stream = StringIO()
    show([row(GOOD), row(FEW, 1), row(None, 2)], Console(file=stream, width=200))
    lines = stream.getvalue().splitlines()
    assert any("hard-brokers-1" in line and "3 of 3" in line and "good" in line for line in lines)
    assert any("clean-brokers-1" in line and "2 of 3" in line and "not judged" in line for line in lines)
    assert "clean-brokers-1 proves nothing: 2 of 3 bounces came before the input was through" in lines
    assert lines[-1].startswith("Nothing is proved. hard-brokers-1 is good; clean-brokers-1 is not judged; ")


# The command


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command with ``results`` instead of real runs; without the matrix it runs nothing at all."""

    def no_run(*_: object) -> None:
        raise AssertionError("this was to be refused")

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(verification, "verify_all", no_run)

    def invoke(results: list[RunResult], *arguments: str) -> Result:
        monkeypatch.setattr(running, "run_matrix", partial(run_matrix, run=giving(*results)))
        return CliRunner().invoke(app, ["verify", "--out", str(tmp_path), *arguments])

    return invoke


def test_the_exit_status_of_the_command_is_the_verdict(command: Callable[..., Result], tmp_path: Path) -> None:
    for result, status in ((GOOD, 0), (TWICE, 1), (FEW, 2)):
        given = ("--matrix", "--messages", str(MESSAGES), "--cells", "hard-clients-2", "--json")
        done = command([result], *given)
        assert done.exit_code == status, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert document == json.loads((tmp_path / report.DOCUMENT).read_text())
        assert (document["exit_status"], len(document["cells"])) == (status, 1)


@pytest.mark.parametrize(
    ("given", "workers", "engine"),
    [
        ((), 2, ABORTING),
        (("--spark-workers", "0"), 0, ABORTING),
        (("--engine", "executors"), 2, ABORTING_EXECUTORS),
    ],
)
def test_a_cell_runs_on_the_workers_and_with_the_engine_that_are_asked_for_and_its_command_says_so(
    given: tuple[str, ...], workers: int, engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Settings] = []

    def run_settings(settings: Settings, progress: Progress) -> list[RunResult]:
        asked.append(settings)
        return [GOOD]

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(running, "run_matrix", partial(run_matrix, run=run_settings))
    where = ("--out", str(tmp_path), "--seed", "7")
    done = CliRunner().invoke(
        app, ["verify", "--matrix", "--messages", "1000", "--cells", "hard-clients-2", *given, *where]
    )
    assert done.exit_code == 0, done.stderr
    (settings,) = asked
    assert (settings.spark_workers, settings.engines) == (workers, (engine,))
    chosen = " --engine executors" if engine is ABORTING_EXECUTORS else ""
    again = (
        f"onceflow verify --matrix --messages 1000 --spark-workers {workers}{chosen} --cells hard-clients-2 --seed 7"
    )
    assert settings.command == again


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--matrix", "--spark-workers", "1"), "--spark-workers 1: 0 or 2"),
        (("--matrix", "--brokers", "3"), "--brokers: the matrix has its own"),
        (("--matrix", "--standbys", "4"), "--standbys: the matrix has its own"),
        (("--matrix", "--rate", "300"), "--rate: the matrix has its own"),
        (("--matrix", "pipeline.toml"), "PIPELINE: the matrix has its own"),
        (("--matrix", "--goals"), "--goals: the matrix measures no recovery"),
        (("--cells", "hard-clients-2"), "--cells: only with --matrix"),
        (("--messages", "100000"), "--messages: only with --matrix"),
        (("--matrix", "--cells", "x"), "--cells x: one of"),
        (("--matrix", "--messages", "10"), "--messages 10: from 1000 to"),
    ],
)
def test_arguments_that_do_not_go_together_are_a_mistake_also_with_their_default(
    command: Callable[..., Result], arguments: tuple[str, ...], told: str
) -> None:
    done = command([], *arguments)
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_file_where_a_cell_s_report_goes_is_a_mistake(command: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "hard-clients-2").touch()
    done = command([], "--matrix", "--cells", "hard-clients-2")
    assert done.exit_code == 2
    assert "hard-clients-2 is a file, not a directory" in done.stderr.replace("\n", " ")
