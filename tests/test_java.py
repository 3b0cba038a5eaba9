import shlex
from pathlib import Path

import pytest

from onceflow.errors import JavaError
from onceflow.java import find_java, java_home, java_version

NEWEST_AND_OLDEST_SPELLINGS = [
    ('openjdk version "17.0.15" 2025-04-15', 17),
    ('openjdk version "21" 2023-09-19', 21),
    ('openjdk version "25-ea" 2025-09-16', 25),
    ('java version "1.8.0_292"', 8),
]


def a_java(directory: Path, says: str) -> Path:
    """A command in a JAVA_HOME of its own that answers ``java -version`` like some other Java."""
    command = directory / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    command.chmod(0o755)
    return command


def test_the_java_of_this_machine_is_found_and_runs() -> None:
    version = java_version(find_java())
    assert version is not None
    assert version >= 17


@pytest.mark.parametrize(("says", "version"), NEWEST_AND_OLDEST_SPELLINGS)
def test_every_spelling_of_a_version_is_understood(tmp_path: Path, says: str, version: int) -> None:
    assert java_version(a_java(tmp_path, says)) == version


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = a_java(tmp_path / "home", 'openjdk version "21.0.1"')
    on_path = a_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java() == at_home
    assert java_home(at_home) == tmp_path / "home"


def test_the_home_of_a_java_behind_a_script_is_that_of_the_java(tmp_path: Path) -> None:
    """As asdf, jenv and mise have it: Spark was given the directory above the script, and found no Java there."""
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(str(find_java()))} "$@"\n')
    shim.chmod(0o755)
    assert (java_home(shim) / "bin" / "java").exists()
    assert java_home(shim) == java_home(find_java())


def test_one_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_java(tmp_path / "home", 'java version "1.8.0_292"')
    on_path = a_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_java() == on_path


def test_the_error_tells_what_was_found_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = a_java(tmp_path / "path", 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(old.parent))
    with pytest.raises(JavaError) as raised:
        find_java()
    told = str(raised.value)
    assert f"JAVA_HOME={tmp_path / 'nothing'}: no java command" in told
    assert f"PATH: {old} is version 11" in told
    assert "What to do: install a JDK or JRE of version 17 or later" in told


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match=r"JAVA_HOME \(not set\): no java command"):
        find_java()


def test_a_command_that_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = a_java(tmp_path, "hello")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(JavaError, match=f"{command} does not tell its version"):
        find_java()
