"""Nothing of a run stays that was not asked for, whatever comes while it is removed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from onceflow.verify.running.place import place


def test_a_signal_while_the_files_are_removed_leaves_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler raises SystemExit in the middle of that, and does so once."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unlink, ended = os.unlink, iter([SystemExit(130)])

    def interrupted(path: str, *, dir_fd: int | None = None) -> None:
        for end in ended:
            raise end
        unlink(path, dir_fd=dir_fd)

    def leaves_files() -> None:
        with place(None, "run") as files:
            for name in ("one", "another"):
                (files.logs / name).touch()
            monkeypatch.setattr(os, "unlink", interrupted)

    with pytest.raises(SystemExit, match="130"):
        leaves_files()
    assert list(tmp_path.iterdir()) == []
