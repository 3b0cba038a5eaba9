"""Files of a run that an error names are removed with the run: what they said last stands in the error then.

::

    one of three brokers does not come back; the error says: see /tmp/onceflow-v-x/kafka/node-2/broker.log
    the run ends, and takes that file along
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from onceflow.broker.log_text import end_of_log
from onceflow.verify.directories import is_file
from onceflow.verify.result import RunResult

_LINES = 15
_LAST_BYTES = 1 << 16  # of a log, which may be long


def with_ends_of_logs(result: RunResult, home: Path) -> RunResult:
    """The result of a run whose files lie below ``home``, while they are there."""
    failures, weaknesses = (
        tuple(with_ends(text, home) for text in texts) for texts in (result.failures, result.weaknesses)
    )
    return replace(result, failures=failures, weaknesses=weaknesses)


def with_ends(text: str, home: Path) -> str:
    """The files that ``text`` names are named as they lie below ``home``, and behind it stands what they end with.

    Not once more what the text has said already.
    """
    found = re.findall(rf"{re.escape(str(home))}/[^\s,;:'\"()\[\]]+", text)
    named = [path for path in map(Path, dict.fromkeys(each.rstrip(".") for each in found)) if is_file(path)]
    ends = {path.relative_to(home): _end(path) for path in named}
    told = "".join(
        f"\nThe end of {name}:{_indented(end)}" for name, end in ends.items() if not end or end[-1] not in text
    )
    removed = "\nThe run's files are removed with it, unless --keep is given." if named else ""
    return f"{text.replace(f'{home}/', '')}{removed}{told}"


def _end(path: Path) -> list[str]:
    """What cannot be read must not take along what the run has shown."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LAST_BYTES))
            return end_of_log(log.read().decode(errors="replace"), _LINES)
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"]


def _indented(lines: list[str]) -> str:
    return "".join(f"\n  {line}" for line in lines) or " (nothing)"
