"""How far a replay is, told by its process to the one that waits for it: a file with two numbers, done and total."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

OnBatch = Callable[[int, int], None]
"""Is told how many batches are done, and of how many."""


def progress_beside(result: Path) -> Path:
    """The file that belongs to the result at this path."""
    return result.with_name(f"{result.name}.progress")


def note(file: Path, done: int, total: int) -> None:
    """So many batches are done. Whoever reads meanwhile finds the numbers before, or these."""
    written = file.with_name(f"{file.name}.new")
    written.write_text(f"{done} {total}")
    written.replace(file)


def noted(file: Path) -> tuple[int, int]:
    """The numbers noted last; two zeros before the first."""
    if not file.exists():
        return 0, 0
    done, total = file.read_text().split()
    return int(done), int(total)
