"""Whether a directory for results can be used, asked before the work that leads to them."""

from __future__ import annotations

import os
from pathlib import Path


def unusable(directory: Path) -> str:
    """Why nothing can be written to the directory, which is made if need be; empty if it can."""
    there = next(each for each in (directory, *directory.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        return f"{there} is a file, not a directory: name another place"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written to: name another place"
    return ""
