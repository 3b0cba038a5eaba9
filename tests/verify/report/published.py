"""The tables of ``docs/verification/README.md``, from its pages. To put a report among them, and make the tables anew::

    python -m tests.verify.report.published version-2-all-kinds=onceflow-verify/version-2/report.html

So that nobody copies a figure by hand, and none goes on standing there whose page is gone.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.verify.report.pages import Page

from onceflow.verify.faults.catalog import FAULTS, MIXES

PUBLISHED = Path(__file__).parents[3] / "docs" / "verification"
README = PUBLISHED / "README.md"
_NOTHING = {"0", "–"}
LAST = {
    "version-2": "version-2-all-kinds",
    "version-1": "version-1-all-kinds",
    "version-2-one-by-one": "version-2-one-by-one-cluster",
    "version-1-one-by-one": "version-1-one-by-one-cluster",
    "version-2-supervised": "version-2-supervised",
    "version-1-supervised": "version-1-supervised",
    "version-2-joined": "version-2-joined",
    "beside-spark": "version-2-beside-spark",
    "version-2-executors": "version-2-executors-brokers-and-driver",
    "version-1-executors": "version-1-executors-brokers-and-driver",
    "version-2-executors-others": "version-2-executors-others",
    "version-1-executors-others": "version-1-executors-others",
    "python-processes": "version-2-python-processes",
    "version-1-python-processes": "version-1-python-processes",
    "version-2-checkpoint": "version-2-checkpoint",
    "version-1-checkpoint": "version-1-checkpoint",
    "version-2-seldom": "version-2-seldom",
    "version-1-seldom": "version-1-seldom",
}
"""The pages of the newest runs of ``make verify-runs``, by the directory that it writes each into."""


@dataclass(frozen=True)
class Told:
    """What a page says of the run of ours; figures are as they stand there."""

    name: str
    began: str
    commit: str
    """That ran; a page of before 2026-11-26 does not tell it."""
    kafka: str
    """The release of the brokers."""
    version: str
    one_by_one: tuple[int, float, float] | None
    """Where each fault waited until the standbys were warm again: how many drivers were lost, and when new output came, in
    seconds after the kill: median, longest."""
    rows: int
    batches: str
    faults: dict[str, tuple[int, int]]
    """``{kind: (injected, met work)}``"""
    found: list[str]
    control: list[str] | None
    """What was found in the run of Spark's own sink, where there was one."""
    goals: dict[str, tuple[str, str, str]]
    """``{goal: (measured, samples, met or missed)}``"""

    @classmethod
    def by(cls, path: Path) -> Told:
        page = Page.at(path)
        by_head = {tuple(table[0][:2]): table[1:] for table in reversed(page.tables) if table}
        batches = [row[1] for table in page.tables for row in table if row[0] == "batches"]
        anomalies = next(table for table in page.tables if table[0][0] == "anomaly")
        return cls(
            path.stem,
            _one(r"It began at (\d+-\d+-\d+)", page.text),
            _commit(page),
            _row(page, "Kafka").partition(",")[0],
            _one(r"transaction version (\d)", page.text),
            _lost(by_head["fault", "recoveries"]) if "--one-by-one" in page.text else None,
            int(_one(r"([\d,]+) rows? of history", page.text).replace(",", "")),
            batches[0],
            {row[0]: (_int(row[1]), _int(row[2])) for row in by_head["fault", "injected"] if row[0] != "all"},
            _found(anomalies, 1),
            _found(anomalies, 2) if "control" in anomalies[0][2] else None,
            {row[0]: (row[2], row[3], row[4]) for row in by_head["goal", "at most"]},
        )

    @property
    def injected(self) -> int:
        return sum(injected for injected, _ in self.faults.values())

    @property
    def met(self) -> int:
        return sum(met for _, met in self.faults.values())


def _one(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, pattern
    return match[1]


def _commit(page: Page) -> str:
    match = re.search(r"commit ([0-9a-f]{7})", _row(page, "onceflow"))
    return match[1] if match else "–"


def _lost(recoveries: list[list[str]]) -> tuple[int, float, float]:
    """The last line is of all kinds, or of the only one."""
    _, drivers, median, _, longest = recoveries[-1]
    return _int(drivers), _seconds(median), _seconds(longest)


def _seconds(cell: str) -> float:
    return math.inf if cell == "never" else float(cell.removesuffix(" s").replace(",", ""))


def _row(page: Page, name: str) -> str:
    """Of the table of what ran."""
    return next(row[1] for table in page.tables for row in table if row[0] == name and len(row) == 2)


def _int(cell: str) -> int:
    return int(cell.replace(",", ""))


def _found(anomalies: list[list[str]], column: int) -> list[str]:
    judged = [row for row in anomalies[1:] if "(not judged)" not in row[0]]
    return [f"{row[column]} {row[0]}" for row in judged if row[column] not in _NOTHING]


@cache
def _all(kind: str) -> list[Told]:
    return sorted(map(Told.by, PUBLISHED.glob(f"{kind}-*.html")), key=lambda told: told.name)


def runs() -> list[Told]:
    return _all("version")


def cells() -> list[Told]:
    """Of Kafka's transaction matrix."""
    return _all("matrix")


def tables() -> dict[str, str]:
    """``{name: Markdown}``; each stands in the page on runs behind a line that names it."""
    last = [told for name in LAST.values() for told in runs() if told.name == name]
    others = [told for told in runs() if told not in last]
    return {
        "sums": _sums(),
        "last": _runs(last),
        "others": _runs(others),
        "one by one": _one_by_one(),
        "matrix": _matrix(),
        "kinds": _kinds(),
    }


def _sums() -> str:
    injected, met = sum(told.injected for told in runs()), sum(told.met for told in runs())
    found = sum(len(told.found) for told in [*runs(), *cells()])
    return (
        f"{len(runs())} runs under {injected} faults, {met} of which met work, and {_millions(runs())} rows of history; "
        f"{len(cells())} cells of Kafka's transaction matrix, {_millions(cells())} rows: **{found or 'no'} anomalies**."
    )


def _millions(of: list[Told]) -> str:
    return f"{sum(told.rows for told in of) / 1e6:.1f} million"


def _runs(of: list[Told]) -> str:
    head = [
        "run",
        "of",
        "commit",
        "Kafka",
        "version",
        "faults (met work)",
        "batches",
        "rows",
        "found",
        "Spark's own sink",
    ]
    head += [
        "new output after a lost driver: median, longest",
        "the same, from one fault alone",
        "after another process",
        "last stable offset held",
    ]
    return _table(head, [_run(told) for told in of])


def _run(told: Told) -> list[str]:
    return [
        _linked(told),
        told.began,
        told.commit,
        told.kafka,
        told.version,
        _met(told),
        told.batches,
        f"{told.rows:,}",
        _told(told.found),
        "" if told.control is None else _told(told.control),
        _recovery(told, ""),
        _recovery(told, " from one fault"),
        _recovery(told, " from the loss of another"),
        told.goals["last stable offset held"][0],
    ]


def _recovery(told: Told, of: str) -> str:
    if f"recovery{of} p50" not in told.goals:
        return ""  # a page of before it was measured
    median, samples, _ = told.goals[f"recovery{of} p50"]
    longest, _, _ = told.goals[f"recovery{of} p99"]
    missed = "missed" in {told.goals[f"recovery{of} {which}"][2] for which in ("p50", "p99")}
    return "–" if samples == "0" else f"{median}, {longest} of {samples}{': missed' if missed else ''}"


def _one_by_one() -> str:
    of = [told.one_by_one for told in runs() if told.one_by_one]
    drivers, medians, longest = zip(*of, strict=True)
    return (
        f"{sum(drivers)} drivers were lost one by one, in {len(of)} runs: **new output came {max(longest)} s after the loss at "
        f"the latest**, and in the median of each run after {min(medians)} to {max(medians)} s."
    )


def _matrix() -> str:
    lines = [
        [_linked(told), told.began, told.commit, told.kafka, _met(told), told.batches, _told(told.found)]
        for told in cells()
    ]
    return _table(["cell", "of", "commit", "Kafka", "bounces (met work)", "transactions", "found"], lines)


def _linked(told: Told) -> str:
    return f"[{told.name}]({told.name}.html)"


def _told(found: list[str]) -> str:
    return ", ".join(found) or "nothing"


def _met(told: Told) -> str:
    return f"{told.injected} ({told.met})"


def _kinds() -> str:
    return _table(
        ["fault", "version 1", "version 2"], [[kind, *(_times(kind, version) for version in "12")] for kind in drawn()]
    )


def _times(kind: str, version: str) -> str:
    injected, met = times(kind, version)
    return f"{met} of {injected}" if injected else "–"


def times(kind: str, version: str) -> tuple[int, int]:
    """How often it was injected, and how often that met work, over all runs."""
    found = [told.faults.get(kind, (0, 0)) for told in runs() if told.version == version]
    return sum(injected for injected, _ in found), sum(met for _, met in found)


def drawn() -> list[str]:
    """The kinds of faults that a mix may have; those of the matrix alone stand in its table."""
    return [name for name in FAULTS if any(name in mix for mix in MIXES.values())]


def _table(head: list[str], lines: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


def written(page: str) -> str:
    """The page, with its tables made anew."""
    for name, table in tables().items():
        before, _, rest = page.partition(f"<!-- {name}: made of the pages -->")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert end, f"the page has no place for {name}"
        page = f"{before}<!-- {name}: made of the pages -->\n\n{table}\n\n{end}{after}"
    return page


def publish(name: str, report: Path) -> None:
    """Puts a report among the pages, without what is not published with it: where it was written, and the kept histories."""
    page = re.sub(r" --out [^\s<&]+", "", report.read_text(encoding="utf-8"))
    page = re.sub(r'<a href="history-[^"]*">(.*?)</a>', r"\1", page)
    (PUBLISHED / f"{name}.html").write_text(page, encoding="utf-8")


def mistake(argument: str) -> str:
    """Why nothing can be published so; empty if it can. What has another name than these stands in no table."""
    name, _, report = argument.partition("=")
    if not report or not re.fullmatch(r"(version|matrix)-[\w.-]+", name):
        return f"{argument}: give it as NAME=…/report.html, NAME being version-… or matrix-…"
    try:
        Told.by(Path(report))
    except OSError as error:
        return f"{argument}: {report} cannot be read: {error.strerror}"
    except (AssertionError, LookupError, StopIteration, ValueError):
        return f"{argument}: {report} is no page of a run: give the report.html that onceflow verify has written"
    return ""


def main(arguments: list[str]) -> int:
    """Publishes all of them, or none, and makes the tables anew."""
    if mistakes := [told for argument in arguments if (told := mistake(argument))]:
        print(*mistakes, sep="\n", file=sys.stderr)
        return 2
    for name, _, report in (argument.partition("=") for argument in arguments):
        publish(name, Path(report))
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
