"""Text that fits: into XML, into a line, into a table."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

# What XML 1.0 cannot hold, not even escaped. Names of pipelines and values of records may have it.
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def writable(text: str) -> str:
    """The text with U+FFFD in place of every character that XML or UTF-8 cannot hold."""
    return _UNWRITABLE.sub("\ufffd", text)


def cut(text: object, length: int = 400) -> str:
    """At most so many characters, and a sign of it where something was left out."""
    whole = str(text)
    return whole if len(whole) <= length else whole[: length - 1] + "…"


def seconds(value: float | None) -> str:
    """Such as ``3.2 s``; ``never`` for what did not happen, ``–`` for what was not measured."""
    if value is None:
        return "–"
    return "never" if math.isinf(value) else f"{value:,.1f} s"


def moment(epoch_s: float) -> str:
    """A time in UTC, to the second."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(number: int, one: str, many: str = "") -> str:
    """Such as ``1 run``, ``1,000 runs``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(counts: dict[str, int]) -> str:
    """Such as ``3 duplicated, 1 lost``, or ``nothing``."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing"
