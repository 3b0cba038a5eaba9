"""What stands at a path that somebody named: a file, or a directory for results, asked before the work that leads to them."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether a file stands there. What looks like a name may be longer than any is: Python before 3.14 raises then."""
    try:
        return path.is_file()
    except OSError:
        return False


def unusable(directory: Path) -> str:
    """Why nothing can be written to the directory, which is made if need be; empty if it can."""
    if _is_too_long(directory):
        return f"{directory} is longer than a name can be: name another place"
    there = next(each for each in (directory, *directory.absolute().parents) if os.path.lexists(each))
    if not there.is_dir():
        return f"{there} is a file, not a directory: name another place"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written to: name another place"
    return ""


def _is_too_long(path: Path) -> bool:
    try:
        path.lstat()
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False
