"""What a driver says of the private copy of the plan, said of the user's own file."""

from __future__ import annotations

import re
from pathlib import Path


def in_the_users_words(text: str, private: Path, pipeline: str) -> str:
    """``private`` is replaced wherever it is named; a line's number in it tells the user nothing, the setting's name stays."""
    named = rf"(?:{re.escape(str(private.parent))}/)?\b{re.escape(private.name)}\b(?::\d+)?"
    return re.sub(named, lambda _: pipeline, text)
