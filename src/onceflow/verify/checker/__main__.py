"""``python -m onceflow.verify.checker FILE``: exit status 0 for a good history, 1 for a violation, 2 for nothing proved.

Nothing is proved by a file that is no history, nor by one in which nobody looked.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from onceflow.errors import HistoryInvalid
from onceflow.verify.checker.report import as_json, first_findings, show
from onceflow.verify.checker.shrink import shrink
from onceflow.verify.checker.verdict import Verdict, check_history
from onceflow.verify.directories import unusable
from onceflow.verify.history import read_history, write_history


def main(arguments: list[str] | None = None) -> int:
    """Checks a history file and prints what was found."""
    parser = argparse.ArgumentParser(prog="python -m onceflow.verify.checker", description="Checks a recorded history.")
    parser.add_argument("file", type=Path, help="a history: .parquet, .arrow or .jsonl")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--keep", type=Path, help="directory for the smallest history that shows each anomaly found")
    chosen = parser.parse_args(arguments)
    if chosen.keep is not None and (reason := unusable(chosen.keep)):
        parser.error(f"--keep {chosen.keep}: {reason}")
    try:
        verdict = check_history(read_history(chosen.file), where=str(chosen.file))
    except HistoryInvalid as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.json:
        print(json.dumps(as_json(verdict), indent=2, ensure_ascii=False))
    else:
        show(verdict, Console())
    if chosen.keep:
        for path in keep_smallest(verdict, chosen.keep):
            print(f"kept {path}", file=sys.stderr)
    if verdict.lack:
        return 2
    return 1 if verdict.violations else 0


def keep_smallest(verdict: Verdict, directory: Path) -> list[Path]:
    """Writes ``<anomaly>.jsonl`` for each violation: the smallest history that shows the first finding of it."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for finding in first_findings(verdict):
        paths.append(directory / f"{finding['anomaly']}.jsonl")
        write_history(shrink(verdict.history, finding), paths[-1])
    return paths


if __name__ == "__main__":
    sys.exit(main())
