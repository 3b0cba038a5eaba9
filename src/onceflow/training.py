"""``python -m onceflow.training``: one run of a broker and of a small pipeline, to make the archives of their classes.

The run is a real one: topics, transactions, a stateful query, two sinks. What both JVMs have loaded by its end is what the next
ones will ask for; each writes its archive as it ends. Takes half a minute once for each JDK and version; does nothing where the
archives are there. See ``class_archive.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from onceflow import class_archive, jars
from onceflow.broker import EmbeddedBroker
from onceflow.class_archive import ClassArchive
from onceflow.config.near import PREFIX
from onceflow.errors import OnceflowError, SetupError
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings
from onceflow.session import environment
from onceflow.writer.writer import Writer

_JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
_RUN_S = 300.0
_STOP_S = 60.0  # with writing the archive
_SCRATCH = ".training-"
_ABANDONED_S = 3600.0
_EVENTS = 200
_LOG_LINES = 15
_PLAN = """\
name = "training"
checkpoint = "checkpoint"
trigger.available_now = true
kafka.create_topics = true

[[source]]
name = "orders"
topics = ["orders"]
format = "json"
schema = "country STRING, amount DECIMAL(12, 2)"

[[transform]]
name = "paid"
sql = "SELECT * FROM orders WHERE amount > 0"

[[transform]]
name = "revenue"
sql = "SELECT country, sum(amount) AS revenue FROM paid GROUP BY country"

[[sink]]
from = "paid"
topic = "paid"
key = "country"
value = "to_json(struct(country, amount))"
headers = {origin = "concat(_topic, '-', _partition, '-', _offset)"}

[[sink]]
from = "revenue"
topic = "revenue"
key = "country"
value = "to_json(struct(country, revenue))"

[output]
mode = "update"
"""


def missing() -> dict[str, ClassArchive]:
    """The archives that there are not yet, by kind. Raises JavaError, SetupError."""
    archives = (
        class_archive.broker_archive(jars.class_path("broker")),
        class_archive.spark_archive(jars.class_path("spark")),
    )
    return {archive.kind: archive for archive in archives if archive.find() is None}


def train(archives: dict[str, ClassArchive]) -> None:
    """Makes these archives. Raises OnceflowError with what a program said that failed, and makes none then."""
    class_archive.directory().mkdir(parents=True, exist_ok=True)
    _clear_away()
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=class_archive.directory()) as name:
        scratch = Path(name)
        made = {kind: scratch / f"{kind}.jsa" for kind in archives}
        _run(scratch, made)
        for kind, file in made.items():
            if not file.exists():
                raise SetupError(f"the Java of this machine has made no archive of the {kind}'s classes")
        for kind, file in made.items():
            archives[kind].keep(file)


def _clear_away() -> None:
    """What a training has left that was killed; one that runs now is not so old."""
    for scratch in class_archive.directory().glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):  # another training clears it away at this moment
            if time.time() - scratch.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(scratch, ignore_errors=True)


def _run(scratch: Path, made: dict[str, Path]) -> None:
    broker = EmbeddedBroker(scratch / "broker")
    # The variable alone reaches the broker's JVM; the storage tool's archive, made first, is replaced by the broker's.
    java_options = f"{os.environ.get(_JAVA_OPTIONS, '')} {_at_exit(made.get('broker'))}".strip()
    with environment({_JAVA_OPTIONS: java_options}):
        broker.start()
    try:
        _fill(broker.bootstrap_servers)
        _run_pipeline(scratch, broker.bootstrap_servers, _at_exit(made.get("spark")))
    finally:
        broker.stop(_STOP_S)


def _fill(servers: str) -> None:
    ClusterAdmin(ClusterSettings.of(servers)).create_topics(["orders"], partitions=2)
    with (
        Writer(bootstrap_servers=servers, source="/training", transactional_id="training") as writer,
        writer.transaction(),
    ):
        for number in range(_EVENTS):
            value = f'{{"country": "C{number % 7}", "amount": {number}.50}}'
            writer.send("orders", value.encode(), key=f"C{number % 7}", id=str(number))


def _run_pipeline(scratch: Path, servers: str, java_options: str) -> None:
    plan = scratch / "pipeline.toml"
    plan.write_text(_PLAN)
    if java_options:
        plan.write_text(f"{_PLAN}\n[spark]\ndriver.extraJavaOptions = '{java_options}'\n")
    # The JVM outlives its Python, and writes the archive then; it holds the same output, whose end is the end of both.
    with subprocess.Popen(
        [sys.executable, "-m", "onceflow.cli", "run", str(plan)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=scratch,
        env=_environment(os.environ, scratch, servers),
        text=True,
        start_new_session=True,
    ) as run:
        try:
            said, _ = run.communicate(timeout=_RUN_S)
        except BaseException as error:
            with suppress(ProcessLookupError):  # all have ended meanwhile
                os.killpg(run.pid, signal.SIGKILL)  # its JVM as well
            if isinstance(error, subprocess.TimeoutExpired):
                raise SetupError(f"the pipeline of the training did not end within {_RUN_S:.0f} s") from None
            raise
    if run.returncode:
        tail = "\n".join(said.splitlines()[-_LOG_LINES:])
        raise SetupError(f"the pipeline of the training ended with exit status {run.returncode}:\n{tail}")


def _environment(of_the_user: Mapping[str, str], scratch: Path, servers: str) -> dict[str, str]:
    """None of the user's settings (``ONCEFLOW_CHECKPOINT``, …): they are those of another pipeline, which runs in earnest."""
    kept = {name: value for name, value in of_the_user.items() if not name.startswith(PREFIX)}
    return {**kept, f"{PREFIX}KAFKA__BOOTSTRAP_SERVERS": servers, "TMPDIR": str(scratch)}


def _at_exit(file: Path | None) -> str:
    return "" if file is None else f'"-XX:ArchiveClassesAtExit={file}" {" ".join(class_archive.QUIET)}'


def main() -> int:
    """Tells what it did. A machine whose Java makes no archives is no failure: everything runs without, and starts later."""
    try:
        archives = missing()
        if archives:
            print(f"classes: archives of {' and '.join(archives)} are made, once (about half a minute)", flush=True)
            train(archives)
    except (OnceflowError, OSError) as error:
        print(f"classes: no archives, starts take longer: {error}", file=sys.stderr)
        return 0
    print(f"classes: archives in {class_archive.directory()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
