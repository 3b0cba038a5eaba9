"""Ctrl-C before a command has begun ends it as quietly as later, and with the same status."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from onceflow.cli import entry, main

_INTERRUPTED_AT = """
import runpy, signal, sys
{before}

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["onceflow", "--version"]
runpy.run_module("onceflow.cli", run_name="__main__", alter_sys=True)
"""


_HEARD = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # the tests may run in the background, where it is ignored


def _interrupted_at(module: str, before: str = _HEARD) -> subprocess.CompletedProcess[str]:
    """``onceflow --version`` that gets a SIGINT when it begins to import a module."""
    code = _INTERRUPTED_AT.format(module=module, before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("module", ["onceflow.cli.main", "typer", "rich.console", "onceflow.cli.verify"])
def test_an_interrupt_while_modules_are_imported_is_quiet(module: str) -> None:
    done = _interrupted_at(module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_that_whoever_started_it_ignores_stays_ignored() -> None:
    done = _interrupted_at("typer", "signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("onceflow ")


def test_an_interrupt_before_the_command_has_begun_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupted)
    with pytest.raises(SystemExit, match=r"^130$"):
        entry.main()


def test_the_program_begins_where_the_module_does() -> None:
    (program,) = importlib.metadata.entry_points(group="console_scripts", name="onceflow")
    assert program.load() is entry.main
