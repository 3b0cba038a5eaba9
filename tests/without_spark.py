"""Programs on a machine that has no Spark: whoever imports it there fails."""

from __future__ import annotations

import subprocess
import sys

_WITHOUT = "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
_PATIENCE_S = 120


def run_without_spark(code: str, *arguments: str) -> str:
    """What the program prints; it must end without an error."""
    command = [sys.executable, "-c", _WITHOUT + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_command_without_spark(*arguments: str) -> str:
    """The same of the command ``onceflow``."""
    return run_without_spark("from onceflow.cli.main import app; app()", *arguments)
