"""Kafka's own Java programs, run from the locked jars: the storage tool, the console consumer and all the others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from onceflow.broker.installation import LOCKED, Installation
from onceflow.class_archive import broker_archive
from onceflow.errors import SetupError
from onceflow.java import find_java

# One machine, short lives: the first compiler and the serial collector start a broker in 1.7 s instead of 2.4 s, and at
# full load it then writes as much with half the processor time.
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def java_command(
    main_class: str,
    arguments: Sequence[str],
    *,
    jvm_options: Sequence[str] = (),
    installation: Installation = LOCKED,
) -> list[str]:
    """The command line of a class of the broker's jars. Raises JavaError, SetupError."""
    class_path = installation.class_path()
    archive = broker_archive(class_path).options()
    joined = os.pathsep.join(map(str, class_path))
    return [str(find_java()), *FAST_START, *archive, *jvm_options, "-cp", joined, main_class, *arguments]


def run_java_tool(
    main_class: str,
    arguments: Sequence[str],
    *,
    timeout_s: float = 60,
    stdin: str | None = None,
    jvm_options: Sequence[str] = (),
    cwd: Path | None = None,
    installation: Installation = LOCKED,
) -> subprocess.CompletedProcess[str]:
    """Run a program of Kafka, such as ``org.apache.kafka.tools.consumer.ConsoleConsumer``, and give what it said.

    ``stdin`` is given to it as text. The exit code is the caller's to judge. Raises SetupError if it is not done after
    ``timeout_s`` seconds (it is killed then), JavaError if there is no Java.
    """
    command = java_command(main_class, arguments, jvm_options=jvm_options, installation=installation)
    try:
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=cwd,
            env=installation.whole_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"{main_class} did not end within {timeout_s:.0f} s", main_class=main_class, timeout_s=timeout_s
        ) from error
