"""``python -m onceflow.verify.checker FILE``: exit status 0 for a good history, 1 for a violation, 2 for nothing proved.

Nothing is proved by a file that is no history, nor by one in which nobody looked; nor where the checker itself fails.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from onceflow.errors import FunctionInvalid, HistoryInvalid
from onceflow.verify.checker.function import Function
from onceflow.verify.checker.memory import keep_freed_memory
from onceflow.verify.checker.report import as_json, first_findings, show
from onceflow.verify.checker.shrink import shrink
from onceflow.verify.checker.streams import NOTHING_PROVED, ReportConsole, carry_anything, guarded, print_json, writing
from onceflow.verify.checker.users_file import load
from onceflow.verify.checker.verdict import Verdict, check_history
from onceflow.verify.directories import unusable
from onceflow.verify.history import Columns, read_history, write_history


def main(arguments: list[str] | None = None) -> int:
    """Checks a history file and prints what was found."""
    carry_anything()
    chosen = _chosen(arguments)
    return guarded(lambda: _checked(chosen))


def _chosen(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m onceflow.verify.checker", description="Checks a recorded history.")
    parser.add_argument("file", type=Path, help="a history: .parquet, .arrow or .jsonl")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--keep", type=Path, help="directory for the smallest history that shows each anomaly found")
    output = parser.add_argument_group("output that must be f(committed input)")
    output.add_argument(
        "--function", metavar="FILE.py:NAME", help="f: of key, offset and value of a record, or columnar"
    )
    output.add_argument(
        "--inputs", metavar="KEYS", type=_names, help="keys of its input, a comma between them: 'sales-*'"
    )
    output.add_argument("--outputs", metavar="KEYS", type=_names, help="keys of its output")
    output.add_argument("--group", help="who consumed the input: its positions say how far")
    chosen = parser.parse_args(arguments)
    if mistakes := _mistakes(chosen):
        parser.error("; ".join(mistakes))
    return chosen


def _checked(chosen: argparse.Namespace) -> int:
    try:
        function = _function(chosen)
        verdict = check_history(Columns.of_valid(read_history(chosen.file)), function=function)
    except (HistoryInvalid, FunctionInvalid) as error:
        print(error, file=sys.stderr)
        return NOTHING_PROVED
    with writing("the report"):
        print_json(as_json(verdict)) if chosen.json else show(verdict, ReportConsole())
    if chosen.keep:
        with writing(f"--keep {chosen.keep}"):
            for path in keep_smallest(verdict, chosen.keep):
                print(f"kept {path}", file=sys.stderr)
    if verdict.lack:
        return NOTHING_PROVED
    return 1 if verdict.violations else 0


def _names(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


def _mistakes(chosen: argparse.Namespace) -> list[str]:
    mistakes = []
    if chosen.keep is not None and (reason := unusable(chosen.keep)):
        mistakes.append(f"--keep {chosen.keep}: {reason}")
    names = ("function", "inputs", "outputs")
    lacking = [name for name in names if not getattr(chosen, name)]
    if lacking and any(getattr(chosen, name) is not None for name in (*names, "group")):
        mistakes.append(f"without {', '.join(f'--{name}' for name in lacking)} output is held against nothing")
    return mistakes


def _function(chosen: argparse.Namespace) -> Function | None:
    if chosen.function is None:
        return None
    return Function(load(chosen.function), chosen.inputs, chosen.outputs, chosen.group)


def keep_smallest(verdict: Verdict, directory: Path) -> list[Path]:
    """Writes ``<anomaly>.jsonl`` for each violation: the smallest history that shows the first finding of it."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for finding in first_findings(verdict):
        paths.append(directory / f"{finding['anomaly']}.jsonl")
        write_history(shrink(verdict.history, finding, verdict.check(finding["anomaly"])), paths[-1])
    return paths


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(main())
