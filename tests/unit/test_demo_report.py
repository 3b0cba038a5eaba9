"""What ``onceflow demo`` prints, and the exit code it ends with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceflow.cli.main import app
from onceflow.demo import story
from onceflow.demo.assignment import Pipeline
from onceflow.demo.drive import Run
from onceflow.demo.events import DATA
from onceflow.demo.expected import expected_sales
from onceflow.demo.faults import PLANS, Injected, Target
from onceflow.demo.look_around import Kept
from onceflow.demo.place import place
from onceflow.demo.progress import Progress
from onceflow.demo.proof import Findings, prove
from onceflow.demo.story import Outcome
from onceflow.errors import ConfigurationError

NOTHING_CAME = prove(expected_sales(DATA), [], [], 0)
# What the report shows is all that counts here; that such findings are right is the business of the proof's own tests.
ALL_CAME = Findings(
    dataclasses.replace(
        NOTHING_CAME.sales,
        read=NOTHING_CAME.sales.expected,
        missing=(),
        wrong_countries=(),
        amount_read=NOTHING_CAME.sales.amount_expected,
    ),
    dataclasses.replace(NOTHING_CAME.revenue, wrong_totals=()),
    0,
)
TWICE = dataclasses.replace(ALL_CAME, sales=dataclasses.replace(ALL_CAME.sales, duplicated=(2, 3), read=3084))
KEPT = Kept("/demo", "127.0.0.1:1", "/demo/read-topic sales", "onceflow broker stop --directory /demo/broker")


def outcome(ours: Findings, kept: Kept | None = None) -> Outcome:
    runs = {}
    for pipeline, plan in PLANS.items():
        injected = [Injected(pipeline, f, 7, -9 if f.target is Target.DRIVER else None, 31) for f in plan]
        runs[pipeline] = Run(pipeline, injected, set(range(16)))
    return Outcome(3108, runs, {Pipeline.ONCEFLOW: ours, Pipeline.BUILT_IN: TWICE}, 88.8, kept)


@pytest.fixture
def tells(monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """The outcome that the story has."""
    outcomes: list[Outcome] = []

    def tell(progress: Progress, directory: Path | None, *, keep: bool) -> Outcome:
        progress.step("once upon a time")
        return outcomes[0]

    monkeypatch.setattr(story, "tell", tell)
    return outcomes


def test_exit_code_0_and_the_table_if_the_proof_holds(tells: list[Outcome]) -> None:
    tells.append(outcome(ALL_CAME))

    result = CliRunner().invoke(app, ["demo"])

    assert result.exit_code == 0
    assert "once upon a time" in result.stdout
    assert "\nPROVED" in result.stdout
    assert "duplicated                                                       0                 2" in result.stdout
    assert "SIGKILL to the driver                                              5                 5" in result.stdout


@pytest.mark.parametrize("wrong", [NOTHING_CAME, TWICE, dataclasses.replace(ALL_CAME, uncommitted=1)])
def test_exit_code_1_if_the_proof_does_not_hold(tells: list[Outcome], wrong: Findings) -> None:
    tells.append(outcome(wrong))

    result = CliRunner().invoke(app, ["demo"])

    assert result.exit_code == 1
    assert "NOT PROVED" in result.stdout


@pytest.mark.parametrize(("findings", "code"), [(ALL_CAME, 0), (TWICE, 1)])
def test_json_is_all_that_stands_on_the_standard_output(tells: list[Outcome], findings: Findings, code: int) -> None:
    tells.append(outcome(findings))

    result = CliRunner().invoke(app, ["demo", "--json"])

    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document["proved"] is (code == 0)
    assert document["pipelines"]["built-in"]["proof"]["sales"]["duplicated"] == [2, 3]
    assert document["pipelines"]["onceflow"]["proof"]["sales"]["amount_expected"] == "58960.79"
    assert "once upon a time" in result.stderr


def test_what_was_kept_is_told(tells: list[Outcome]) -> None:
    tells.append(outcome(ALL_CAME, KEPT))

    printed = CliRunner().invoke(app, ["demo", "--keep"]).stdout
    document = json.loads(CliRunner().invoke(app, ["demo", "--keep", "--json"]).stdout)

    assert all(text in printed for text in dataclasses.asdict(KEPT).values())
    assert document["kept"] == dataclasses.asdict(KEPT)


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    result = CliRunner().invoke(app, ["demo", "--directory", str(tmp_path)])

    assert result.exit_code == 2
    assert f"--directory {tmp_path}: it is not empty" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(ConfigurationError, match="File exists"), place(file, keep=False):
        pass
    assert file.exists()


@pytest.mark.parametrize("keep", [False, True])
def test_the_directory_stays_only_if_it_is_kept(tmp_path: Path, keep: bool) -> None:
    directory = tmp_path / "new" / "demo"

    with place(directory, keep=keep) as at:
        (at.broker / "data").mkdir(parents=True)
        scratch = at.scratch

    assert directory.exists() is keep
    assert not scratch.exists()


def test_the_temporary_directory_goes_after_an_error() -> None:
    with pytest.raises(RuntimeError), place(None, keep=False) as at:
        raise RuntimeError

    assert not at.directory.exists()
    assert not at.scratch.exists()
