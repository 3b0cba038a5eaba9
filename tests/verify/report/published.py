"""The tables of ``docs/verification/README.md``, from the pages beside it: ``python -m tests.verify.report.published`` writes them.

So that nobody copies a figure by hand, and none goes on standing there whose page is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.verify.report.pages import Page

from onceflow.verify.faults.catalog import ALL, FAULTS, MIXES

PUBLISHED = Path(__file__).parents[3] / "docs" / "verification"
README = PUBLISHED / "README.md"
_PLAIN = re.compile(r"[^|\n]")
_NOTHING = {"0", "–"}


@dataclass(frozen=True)
class Told:
    """What a page says of the run of ours; figures are as they stand there."""

    name: str
    began: str
    version: str
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
        counts = dict(row for table in page.tables for row in table if len(row) == 2 and row[0] == "batches")
        anomalies = next(table for table in page.tables if table[0][0] == "anomaly")
        return cls(
            path.stem,
            _one(r"It began at (\d+-\d+-\d+)", page.text),
            _one(r"transaction version (\d)", page.text),
            int(_one(r"([\d,]+) rows? of history", page.text).replace(",", "")),
            counts["batches"],
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


def _int(cell: str) -> int:
    return int(cell.replace(",", ""))


def _found(anomalies: list[list[str]], column: int) -> list[str]:
    judged = [row for row in anomalies[1:] if "(not judged)" not in row[0]]
    return [f"{row[column]} {row[0]}" for row in judged if row[column] not in _NOTHING]


@cache
def runs() -> list[Told]:
    return sorted((Told.by(path) for path in PUBLISHED.glob("version-*.html")), key=lambda told: told.name)


@cache
def cells() -> list[Told]:
    """Of Kafka's transaction matrix."""
    return sorted((Told.by(path) for path in PUBLISHED.glob("matrix-*.html")), key=lambda told: told.name)


def tables() -> dict[str, str]:
    """``{name: Markdown}``; each stands in the page on runs behind a line that names it."""
    return {"sums": _sums(), "runs": _runs(), "matrix": _matrix(), "kinds": _kinds()}


def _sums() -> str:
    found = sum(len(told.found) for told in [*runs(), *cells()])
    return (
        f"{len(runs())} runs under {sum(told.injected for told in runs()):,} faults, {sum(told.met for told in runs()):,} of which met work, "
        f"{sum(told.rows for told in runs()) / 1e6:.1f} million rows of history; {len(cells())} cells of the matrix with "
        f"{sum(told.rows for told in cells()) / 1e6:.1f} million rows: {found or 'no'} anomalies."
    )


def _runs() -> str:
    head = ["run", "of", "version", "faults (met work)", "batches", "rows", "found", "Spark's own sink"]
    head += ["new output after a lost driver: median, longest", "the same, from one fault alone", "last stable offset held"]
    return _table(head, [_run(told) for told in runs()])


def _run(told: Told) -> list[str]:
    return [
        f"[{told.name}]({told.name}.html)",
        told.began,
        told.version,
        f"{told.injected} ({told.met})",
        told.batches,
        f"{told.rows:,}",
        ", ".join(told.found) or "nothing",
        "" if told.control is None else ", ".join(told.control) or "nothing",
        _recovery(told, ""),
        _recovery(told, " from one fault"),
        told.goals["last stable offset held"][0],
    ]


def _recovery(told: Told, of: str) -> str:
    median, samples, _ = told.goals[f"recovery{of} p50"]
    longest, _, _ = told.goals[f"recovery{of} p99"]
    missed = "missed" in {told.goals[f"recovery{of} {which}"][2] for which in ("p50", "p99")}
    return "–" if samples == "0" else f"{median}, {longest} of {samples}{': missed' if missed else ''}"


def _matrix() -> str:
    lines = [[f"[{told.name}]({told.name}.html)", told.began, _met(told), told.batches, ", ".join(told.found) or "nothing"] for told in cells()]
    return _table(["cell", "of", "bounces (met work)", "transactions", "found"], lines)


def _met(told: Told) -> str:
    return f"{told.injected} ({told.met})"


def _kinds() -> str:
    return _table(["fault", "version 1", "version 2"], [[kind, *(_times(kind, version) for version in "12")] for kind in drawn()])


def _times(kind: str, version: str) -> str:
    injected, met = times(kind, version)
    return f"{met} of {injected}" if injected else "–"


def times(kind: str, version: str) -> tuple[int, int]:
    """How often it was injected, and how often that met work, over all runs."""
    found = [told.faults.get(kind, (0, 0)) for told in runs() if told.version == version]
    return sum(injected for injected, _ in found), sum(met for _, met in found)


def drawn() -> list[str]:
    """The kinds of faults that a mix may have; those of the matrix alone stand in its table."""
    return [name for name in FAULTS if any(name in mix for mix in MIXES.values()) or name in ALL]


def _table(head: list[str], lines: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


def between(name: str) -> re.Pattern[str]:
    """What stands in the page between the two lines that name it."""
    return re.compile(rf"(?<=<!-- {name}: made of the pages -->\n\n).*?(?=\n\n<!-- end of {name} -->)", re.DOTALL)


def written(page: str) -> str:
    """The page, with its tables made anew."""
    for name, table in tables().items():
        page, places = between(name).subn(lambda _, table=table: table, page)
        assert places == 1, f"the page has {places} places for {name}"
    return page


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
