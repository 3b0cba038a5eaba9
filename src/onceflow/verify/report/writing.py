"""The report as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceflow.verify.report.document import as_document
from onceflow.verify.report.junit import as_junit
from onceflow.verify.report.page import as_page
from onceflow.verify.report.smallest import keep_smallest, places
from onceflow.verify.result import RunResult

_FILES = ("report.html", "report.json", "junit.xml")
_EARLIER = (*_FILES, "matrix.html", "matrix.json", "history.parquet")


@dataclass(frozen=True, slots=True)
class Report:
    """Where the report is. ``histories`` are the smallest ones, one a violation of a run."""

    page: Path
    document: Path
    junit: Path
    histories: tuple[Path, ...]


def clear(directory: Path) -> None:
    """Makes a directory for a report, without an earlier one: nobody may take that for the report of a run that broke off.

    Nor one of the matrix for that of a run, or the other way round. What the cells of a matrix have shown stays, each in its own.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path in [*(directory / name for name in _EARLIER), *directory.glob("history-[0-9]*.parquet")]:
        path.unlink(missing_ok=True)


def write_report(results: Sequence[RunResult], directory: Path, title: str = "onceflow verify") -> Report:
    """Writes ``report.html``, ``report.json``, ``junit.xml``, and for each violation ``history-<run>-<anomaly>.parquet``.

    The directory is made if need be. The same results give the same bytes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    kept = places(results, directory)
    paths = [directory / name for name in _FILES]
    document = json.dumps(as_document(results, title, kept), indent=1, allow_nan=False)
    paths[0].write_text(as_page(results, title, kept), encoding="utf-8")
    paths[1].write_text(document + "\n", encoding="utf-8")
    paths[2].write_bytes(as_junit(results, title))
    # Last, for it takes its time: whoever ends it has a report.
    keep_smallest(results, kept)
    return Report(paths[0], paths[1], paths[2], tuple(kept.values()))
