"""A report names the commit that ran, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import onceflow
from onceflow.verify.running import revision as module
from onceflow.verify.running.revision import revision, revision_since

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
SOMEBODY = ("-c", "user.name=onceflow", "-c", "user.email=onceflow@localhost")


def git(place: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(place), *SOMEBODY, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package in it, and nothing else."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "src" / "onceflow").mkdir(parents=True)
    (tmp_path / "src" / "onceflow" / "__init__.py").touch()
    monkeypatch.setattr(module, "_SOURCES", tmp_path / "src")
    return tmp_path / "src"


def test_the_commit_of_a_checkout_is_named_and_whether_it_was_changed(sources: Path) -> None:
    git(sources, "add", ".")
    git(sources, "commit", "--quiet", "-m", "all")
    commit = git(sources, "rev-parse", "--short=10", "HEAD")
    assert revision() == f"{onceflow.__version__}, commit {commit}"
    (sources.parent / "beside.txt").touch()
    assert revision() == f"{onceflow.__version__}, commit {commit}"
    git(sources.parent, "add", "beside.txt")
    git(sources.parent, "commit", "--quiet", "-m", "what is no source")
    assert revision() == f"{onceflow.__version__}, commit {commit}"
    (sources / "onceflow" / "new.py").touch()
    assert revision() == f"{onceflow.__version__}, commit {commit}, changed since"


def test_what_is_installed_has_its_version_alone(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources.parent / "users.txt").touch()
    git(sources.parent, "add", "users.txt")
    git(sources, "commit", "--quiet", "-m", "a user's project, with an environment inside of it")
    assert revision() == onceflow.__version__
    monkeypatch.setattr(module, "_SOURCES", tmp_path / "nowhere")
    assert revision() == onceflow.__version__


def test_a_commit_during_a_run_is_told(sources: Path) -> None:
    git(sources, "add", ".")
    git(sources, "commit", "--quiet", "-m", "all")
    began = revision()
    assert revision_since(began) == began
    (sources / "onceflow" / "new.py").touch()
    git(sources, "add", ".")
    git(sources, "commit", "--quiet", "-m", "more")
    assert revision_since(began) == f"{began}; changed while it ran, to {revision()}"
    assert revision() != began
