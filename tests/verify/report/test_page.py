from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.verify.report.pages import Page
from tests.verify.report.results import control, run, series

from onceflow.verify.checker import CHECKS, check_history
from onceflow.verify.history import read_history
from onceflow.verify.report import Report, write_report
from onceflow.verify.report.page import as_page
from onceflow.verify.report.summary import ExitStatus, exit_status
from onceflow.verify.report.svg import Ink
from onceflow.verify.result import Encounter, Happening, Lane, Recovery, RunResult
from onceflow.verify.running import run as running

HOSTILE = '</code></svg><script>alert("1")</script>&amp;$x^$\x00\ud800'


def mixed() -> list[RunResult]:
    return [run(), control(), run("tear_a_transaction", seed=3), run(seed=4, failures=("the driver did not end",))]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return write_report(mixed(), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page.at(report.page)


def test_the_verdict_comes_first(page: Page) -> None:
    assert exit_status(mixed()) is ExitStatus.VIOLATED
    text = page.text
    assert "Exactly once was violated Run 3 (onceflow) shows 1 torn_transaction." in text
    assert "Run 4 (onceflow) could not be judged: the driver did not end." in text
    assert "The control, Spark's Kafka sink, showed 1 duplicated." in text
    assert text.index("Exactly once was violated") < text.index("anomaly")


def test_the_overview_counts_engines_beside_each_other(page: Page) -> None:
    rows = page.rows(0)
    assert rows["anomaly"][:2] == ["onceflow 2 of 3 runs", "Spark's Kafka sink control, 1 of 1 run"]
    found = {name: cells[:2] for name, cells in rows.items() if name != "anomaly"}
    assert found.pop("torn_transaction") == ["1", "0"]
    assert found.pop("duplicated") == ["0", "1"]
    assert found.pop("int_send_skip (not judged)") is not None, "which is legal, however often"
    assert len(found) == len(CHECKS) - 3
    assert {name: cells for name, cells in found.items() if cells != ["0", "0"]} == {}


def test_goals_and_recovery_times_are_shown(page: Page) -> None:
    goals = page.rows(1)
    assert goals["recovery p50"][0] == "5.0 s"
    assert goals["recovery p99"][1:4] == ["never", "15", "missed"]
    assert goals["last stable offset held"][:4] == ["10.0 s", "2.5 s", "3", "met"]
    assert "a frozen process too: 17.5 s at most" in page.text
    recoveries = next(rows for rows in map(page.rows, range(len(page.tables))) if "recoveries" in rows.get("fault", ()))
    assert recoveries["kill-driver"][0] == "3"
    assert recoveries["all"][0] == "5"


def test_a_violation_is_shown_with_its_rows_and_its_smallest_history(page: Page, report: Report) -> None:
    assert [path.name for path in report.histories] == [
        "history-2-duplicated.parquet",
        "history-3-torn_transaction.parquet",
    ]
    links = [each["href"] for each in page.named("a")]
    for path, anomaly in zip(report.histories, ("duplicated", "torn_transaction"), strict=True):
        assert path.name in links
        smallest = read_history(path)
        assert len(smallest) <= 5
        assert anomaly in check_history(smallest).violations
    evidence = next(table for table in page.tables if table[0][:3] == ["row", "op", "process"] and "txn" in table[0])
    rows = [[row[table_column(evidence, name)] for name in ("kind", "key", "value", "offset")] for row in evidence[1:]]
    assert {kind for kind, *_ in rows} <= {"send", "poll"}
    assert len({(key, value) for _, key, value, _ in rows}) == 1 < len({offset for *_, offset in rows})


def table_column(table: list[list[str]], name: str) -> int:
    return table[0].index(name)


def test_each_run_says_what_it_was_and_how_to_run_it_again(page: Page) -> None:
    text = page.text
    for seed in (1, 2, 3, 4):
        assert f"retail, seed {seed}" in text
        assert f"onceflow verify --for 60s --faults all --seed {seed}" in text
    assert "Why this run proves nothing the driver did not end" in text
    assert text.count("input committed 12,345") == 4
    assert text.count("Spark 4.1.0") == 4
    assert "2026-11-18 11:06:40 UTC" in text


def test_each_fault_says_whether_it_met_work(page: Page) -> None:
    assert "6 faults, 5 of which met work." in page.text
    kinds = next(rows for rows in map(page.rows, range(len(page.tables))) if rows.get("fault", [""])[0] == "injected")
    assert kinds["kill-driver"] == ["3", "2", "1", "1", "6"]
    assert kinds["all"] == ["6", "5", "2", "2", "15"]
    each = next(table for table in page.tables if table[0][0] == "at")
    assert [row[2] for row in each[1:]] == ["no", "yes", "yes", "yes", "yes", "yes"]
    assert each[2][4] == "batch 7 right before COMMIT"


def test_the_timeline_shows_faults_lives_and_series(page: Page) -> None:
    drawn = page.named("svg")
    assert len(drawn) == 8  # a timeline and a plot of recovery times a run
    assert drawn[0]["aria-label"].startswith("Timeline of 60 seconds: 6 faults, 6 driver lives, 9")
    for name in ("kill-driver", "roll-brokers", "driver", "broker", "batch committed", "visible output (records)"):
        assert f">{name}</text>" in page.source, name


def test_the_page_needs_nothing_from_elsewhere(page: Page) -> None:
    forbidden = {"script", "link", "img", "iframe", "object", "embed"}
    assert not forbidden & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("href", "xlink:href", "src"):
            assert ":" not in attributes.get(name, "")
    assert not re.search(r"url\((?!#)|@import", page.source)


def test_ids_are_unique_and_every_reference_leads_somewhere(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    referred = re.findall(r'(?:href="|url\()#([^")]+)', page.source)
    assert len(referred) > 100
    assert set(referred) <= set(ids)


def test_colours_are_the_style_sheets_light_and_dark(page: Page) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", page.source, re.DOTALL))
    assert re.findall(r"(?:fill|stroke): #\w+", drawings) == []
    assert {ink.variable for ink in Ink} >= set(re.findall(r"var\(--\w+\)", drawings))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_its_ground(page: Page, theme: int) -> None:
    """WCAG 2.1, 1.4.3: 4.5 for text; 1.4.11: 3 for what is drawn."""
    colours = dict(re.findall(r"--(\w+): (#\w{6});", page.source.split(":root {")[theme + 1]))
    assert {ink.name.lower() for ink in Ink} <= set(colours)
    for name in ("text", "muted", "good", "bad", "unsure", "driver"):
        assert min(contrast(colours[name], colours[ground]) for ground in ("paper", "soft")) >= 4.5, name
    for name in ("fault", "reader", "broker"):
        assert contrast(colours[name], colours["paper"]) >= 3, name


def contrast(one: str, other: str) -> float:
    dark, light = sorted(luminance(each) for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_what_users_named_cannot_become_markup(tmp_path: Path) -> None:
    faults = (Happening(Lane.FAULT, HOSTILE, 1, 2, HOSTILE), Happening(Lane.NOTE, HOSTILE, 3, 3, HOSTILE))
    hostile = run(
        "tear_a_transaction",
        seed=3,
        engine=HOSTILE,
        pipeline=HOSTILE,
        faults=(HOSTILE,),
        happenings=faults,
        recoveries=(Recovery(HOSTILE, 1, 2.5),),
        series=(series(HOSTILE, HOSTILE, [0, 1], [0, 1]),),
        counts={HOSTILE: 1},
        versions={HOSTILE: HOSTILE},
        command=HOSTILE,
    )
    hostile = replace(hostile, encounters=(Encounter(HOSTILE, 1, False, HOSTILE),))
    page = Page.at(write_report([hostile, run(failures=(HOSTILE,))], tmp_path, HOSTILE).page)
    assert not page.named("script")
    assert 'alert("1")' in page.text
    assert "&amp;$x^$\ufffd\ufffd" in page.text
    assert any('alert("1")' in each["aria-label"] or "faults" in each["aria-label"] for each in page.named("svg"))


def test_equal_results_give_equal_bytes(report: Report, tmp_path: Path) -> None:
    """In another process too, whose sets and dictionaries of strings have another order."""
    program = (
        "import sys; from pathlib import Path; from tests.verify.report.test_page import mixed;"
        "from onceflow.verify.report import write_report; write_report(mixed(), Path(sys.argv[1]))"
    )
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONHASHSEED": "4", "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=300, cwd=root, env=environment)
    names = sorted(path.name for path in report.page.parent.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 5
    for name in names:
        assert (tmp_path / name).read_bytes() == (report.page.parent / name).read_bytes(), name


def test_each_lane_has_somebody_whose_run_draws_on_it() -> None:
    """A page would have a list, and a timeline a colour, of what no run has."""
    source = "".join(path.read_text() for path in sorted(Path(running.__file__).parent.glob("*.py")))
    assert set(re.findall(r"\bLane\.([A-Z]+)", source)) == {lane.name for lane in Lane}


def huge(number: int, points: int = 1_000_000) -> RunResult:
    """10,000 batches, series of so many points, thousands of faults of many kinds."""
    at = np.linspace(0, 7200, points)
    batches = [Happening(Lane.BATCH, f"batch {n}", n * 0.72, n * 0.72 + 0.5, "x" * 300) for n in range(10_000)]
    faults = [Happening(Lane.FAULT, f"fault {n % 40}", n * 3.0, n * 3.0 + 2, "y" * 300) for n in range(2_400)]
    lives = [Happening(Lane.READER, f"reader {n}", n * 3.0, n * 3.0 + 20) for n in range(2_000)]
    recoveries = tuple(Recovery(f"fault {n % 40}", n * 3.0, (n * 37 % 1000) / 100) for n in range(2_400))
    noise = np.random.default_rng(number).normal(size=len(at))
    return run(
        seed=number,
        seconds=7200,
        happenings=(*batches, *faults, *lives),
        recoveries=recoveries,
        series=tuple(series(name, "records", at, noise) for name in ("visible", "LSO", "lag")),
    )


def test_a_large_run_is_thinned(tmp_path: Path) -> None:
    written = write_report([huge(1)], tmp_path)
    page = Page.at(written.page)
    assert written.page.stat().st_size < 1_000_000
    assert "Drawn thinner than recorded" in page.text
    assert "commits of batches: 10,000" in page.text
    assert "lines more, all of them in report.json" in page.text
    assert ">other faults</text>" in page.source
    assert "20 kinds more in the table alone" in page.source


def test_a_run_without_faults_has_a_timeline(tmp_path: Path) -> None:
    quiet = tuple(each for each in run().happenings if each.lane is not Lane.FAULT)
    written = write_report([run(happenings=quiet, recoveries=(), encounters=())], tmp_path)
    page = Page.at(written.page)
    assert len(page.named("svg")) == 1
    assert "with no fault, and" in page.text


def test_a_page_of_many_large_runs_stays_below_3_mb(tmp_path: Path) -> None:
    assert len(as_page([huge(1, 10_000)] * 25, "", {}).encode()) < 3_000_000


def test_a_report_of_no_run_proves_nothing(tmp_path: Path) -> None:
    written = write_report([], tmp_path / "new" / "directory")
    assert exit_status([]) == 2
    assert "Nothing is proved There was no run to be judged." in Page.at(written.page).text


def test_a_bare_result_makes_a_page(tmp_path: Path) -> None:
    bare = run(happenings=(), recoveries=(), series=(), counts={}, versions={}, command="", faults=())
    bare = replace(bare, lso_held_s=None, lso_stood_s=None)
    written = write_report([bare], tmp_path)
    page = Page.at(written.page)
    assert exit_status([bare]) == 0
    assert not page.named("svg")
    assert page.rows(1)["recovery p99"][1:4] == ["–", "0", "not measured"]
    assert "Faults in the mix: none." in page.text


@pytest.mark.parametrize("points", [[], [1.0], [float("nan")] * 3, [0.0, float("inf"), 1.0]])
def test_odd_series_are_drawn(points: list[float], tmp_path: Path) -> None:
    odd = series("odd", "things", range(len(points)), points)
    assert len(Page.at(write_report([run(series=(odd,))], tmp_path).page).named("svg")) == 2
