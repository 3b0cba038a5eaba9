"""Which commit of its sources runs, so that a report can be tied to the code that it judged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import onceflow

_PATIENCE_S = 10.0
_SOURCES = Path(onceflow.__file__).parents[1]


def revision() -> str:
    """The version; in a checkout also the newest commit of its sources, and whether they were changed since.

    Later commits, of documentation and tests, are none of the code that runs: runs before and after one of those tell the same.
    """
    commit = _git("log", "-1", "--format=%h", "--abbrev=10", "--", ".")
    if not commit or not _git("ls-files", "onceflow/__init__.py"):  # installed, in whatever repository that may be
        return onceflow.__version__
    changed = ", changed since" if _git("status", "--porcelain", "--", ".") else ""
    return f"{onceflow.__version__}, commit {commit}{changed}"


def revision_since(began: str) -> str:
    """``began``, and what it has changed to, if it has: drivers that were started later run that, and it does not judge::

    a verification begins on one commit, and has loaded the checker of that
    another one is committed
    the control's drivers start on that; the report names it, also for what judged
    """
    now = revision()
    return began if now == began else f"{began}; changed while it ran, to {now}"


def _git(*words: str) -> str:
    """What it says; nothing where there is no git, or no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_SOURCES), *words], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
