"""What a Java program's log says to a person: its last lines, and before these what it complained of."""

from __future__ import annotations

import re

# An entry begins with its time and its level (the pattern of our log4j2.properties); the lines of an exception follow it.
_ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ (?P<level>[A-Z]+) ")
_COMPLAINTS = frozenset({"ERROR", "FATAL"})
# Less than the settings that each start prints: no complaint of an earlier life is shown.
_WINDOW = 200


def without_stack(text: str) -> list[str]:
    """The lines of what a Java program said, without empty ones and stack frames."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]


def end_of_log(text: str, lines: int) -> list[str]:
    """The last ``lines`` lines without stack frames, behind at most as many of the complaints that come before these.

    A broker that cannot start says why, and then a line for each part that it ends: how many come behind the reason is
    a race of its threads, so that the last lines alone may be without it.
    """
    said = without_stack(text)[-_WINDOW:]
    return _complaints(said[:-lines])[:lines] + said[-lines:]


def _complaints(said: list[str]) -> list[str]:
    complaining = False
    kept = []
    for line in said:
        if entry := _ENTRY.match(line):
            complaining = entry["level"] in _COMPLAINTS
        if complaining:
            kept.append(line)
    return kept
