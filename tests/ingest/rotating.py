"""A log that is written and rotated, and what an ingest has committed of it; driven by hand, look by look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ingest.support import files, look, take, values

from onceflow.errors import SourceChanged
from onceflow.ingest import file_position, passed_over, watched
from onceflow.ingest.files import FileSource, Format


class Log:
    """A log that is written, and what an ingest has committed of it. One line of rows is ``{"n":5}``."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "app.jsonl"
        self.positions: dict[str, str] = {}
        self.written = 0
        self.taken: list[str] = []
        self.identities: list[tuple[str, str]] = []

    def write(self, count: int, path: Path | None = None) -> None:
        with (path or self.path).open("a") as file:
            for _ in range(count):
                file.write(f'{{"n":{self.written}}}\n')
                self.written += 1

    def take(self, pattern: str = "app.jsonl*", *, accept_new: bool = False) -> None:
        """A run of its own."""
        rows = take(files(self.path.parent / pattern, Format.JSONL, accept_new=accept_new), self.positions)
        self.taken += values(rows)
        self.identities += [(row.identity.source, row.id) for row in rows]

    def refused(self, pattern: str = "app.jsonl*") -> SourceChanged:
        before = dict(self.positions)
        with pytest.raises(SourceChanged) as caught:
            self.take(pattern)
        assert self.positions == before
        return caught.value

    def check(self) -> None:
        """All that was written, once, in order, under names of its own."""
        assert self.taken == [f'{{"n":{number}}}' for number in range(self.written)]
        assert len(set(self.identities)) == self.written


def rotate(log: Log, generations: int = 3) -> None:
    """As logrotate does: each file gets the next number."""
    for number in range(generations, 0, -1):
        older = Path(f"{log.path}.{number}")
        if older.exists():
            older.rename(f"{log.path}.{number + 1}")
    log.path.rename(f"{log.path}.1")


def take_on(source: FileSource) -> list[str]:
    """One look more of a run."""
    return values(look(source, {}))


def until_it_gets_the_inode_of(path: Path, other: Path) -> Iterator[None]:
    """The file is deleted, and what the caller makes then has its inode, sooner or later."""
    inode = path.stat().st_ino
    path.unlink()
    for number in range(100):
        yield
        if other.stat().st_ino == inode:
            return
        other.rename(other.with_name(f"filler-{number}"))
    pytest.skip("this file system does not give an inode again")


def unknown_births(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that does not keep them."""
    for module in (watched, file_position, passed_over):
        monkeypatch.setattr(module, "born_ns", lambda _: 0)
