"""Where Java is: the first ``java`` of version 17 or later in ``JAVA_HOME`` and then on ``PATH``.

``python -m onceflow.java`` tells it, or what is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from onceflow.errors import JavaError

MINIMUM_VERSION = 17
_PROBE_TIMEOUT_S = 30
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)


def find_java(minimum: int = MINIMUM_VERSION) -> Path:
    """The path of a ``java`` command of at least the major version ``minimum``.

    ``JAVA_HOME`` is looked at first, then ``PATH``; one that is too old is passed over.
    Raises JavaError, which tells every place looked at and what was found there. Runs on the driver.
    """
    seen: list[str] = []
    for place, command in _candidates():
        version = java_version(command) if command else None
        if command and version and version >= minimum:
            return command
        seen.append(f"{place}: {_finding(command, version)}")
    raise JavaError(
        f"No Java {minimum} or later. Looked at:" + "".join(f"\n  - {line}" for line in seen),
        action=f"install a JDK or JRE of version {minimum} or later, or set JAVA_HOME to one",
        looked_at=tuple(seen),
        minimum=minimum,
    )


def java_home(java: Path) -> Path:
    """The JAVA_HOME that belongs to the command ``java``: as it says itself, for it may be a script that starts another."""
    found = _HOME.search(_said(java))
    return Path(found[1].strip()) if found else java.resolve().parent.parent


def java_version(java: Path) -> int | None:
    """The major version that ``java -version`` tells; None if it does not run or tells none."""
    found = _VERSION.search(_said(java))
    if not found:
        return None
    first, second = int(found[1]), found[2]
    # Java 8 and earlier call themselves 1.8.
    return int(second) if first == 1 and second else first


@cache
def _said(java: Path) -> str:
    """What it tells of itself; nothing if it does not run."""
    try:
        asked = [str(java), "-XshowSettings:properties", "-version"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr


def _candidates() -> list[tuple[str, Path | None]]:
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    at_home = Path(home, "bin", "java") if home else None
    return [
        (f"JAVA_HOME={home}" if home else "JAVA_HOME (not set)", at_home if at_home and at_home.exists() else None),
        ("PATH", Path(on_path) if on_path else None),
    ]


def _finding(command: Path | None, version: int | None) -> str:
    if command is None:
        return "no java command"
    return f"{command} is version {version}" if version else f"{command} does not tell its version"


def _main() -> int:
    try:
        java = find_java()
    except JavaError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"java: {java}, version {java_version(java)}")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
