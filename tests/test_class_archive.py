"""Archives of loaded classes: made by ``make setup``, mapped by every broker and local Spark, never when they are not whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.support import eventually

from onceflow import class_archive, jars, training
from onceflow.broker import EmbeddedBroker, run_java_tool
from onceflow.broker.java_tool import java_command
from onceflow.class_archive import ClassArchive
from onceflow.errors import SetupError
from onceflow.session import session_config
from onceflow.verify.cluster import processes

ON_LINUX = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what a process maps is looked up in /proc")
_SPARK = """
from onceflow.session import spark_session
spark = spark_session()
print(spark.sparkContext._gateway.proc.pid, flush=True)
input()
"""


def _archives() -> dict[str, ClassArchive]:
    return {
        "broker": class_archive.broker_archive(jars.class_path("broker")),
        "spark": class_archive.spark_archive(jars.class_path("spark")),
    }


def _found(kind: str) -> Path:
    file = _archives()[kind].find()
    assert file is not None, "make setup has made none"
    return file


def _maps(pid: int | None) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    class_archive.directory().mkdir(parents=True)
    return class_archive.directory()


@ON_LINUX
def test_a_broker_maps_the_archive_that_the_setup_has_made(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        assert str(_found("broker")) in _maps(broker.pid)


@ON_LINUX
def test_a_spark_driver_maps_the_archive_that_the_setup_has_made() -> None:
    # An answer on the standard input lets it end: its JVM with it.
    with subprocess.Popen(
        [sys.executable, "-c", _SPARK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert str(_found("spark")) in _maps(pid)
        driver.communicate("\n", timeout=60)


def test_the_training_is_done_once() -> None:
    assert training.missing() == {}


def test_an_archive_that_is_cut_short_is_not_mapped(cache: Path) -> None:
    """A JVM that maps one dies with SIGBUS."""
    archive = _archives()["broker"]
    with pytest.MonkeyPatch.context() as outside:
        outside.delenv("XDG_CACHE_HOME")
        whole = _found("broker")
    file = cache / whole.name
    shutil.copyfile(whole, file)
    assert archive.find() == file
    os.truncate(file, file.stat().st_size * 2 // 3)
    assert run_java_tool("kafka.tools.StorageTool", ["random-uuid"]).returncode == 0
    assert archive.find() is None


def test_without_an_archive_a_java_is_told_nothing_of_it(cache: Path) -> None:
    assert "broker" in training.missing()
    assert not any("SharedArchiveFile" in each for each in java_command("any.Class", []))
    assert "SharedArchiveFile" not in session_config()["spark.driver.extraJavaOptions"]
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("master", "own"),
    [
        ("spark://127.0.0.1:1", {}),
        ("local[2]", {"spark.driver.extraClassPath": "/mine.jar"}),
        ("local[2]", {"spark.driver.extraJavaOptions": "-Xshare:off"}),
        ("local[2]", {"spark.driver.extraJavaOptions": "-XX:SharedArchiveFile=/mine.jsa"}),
    ],
)
def test_a_driver_with_another_class_path_or_choice_is_told_nothing_of_ours(master: str, own: dict[str, str]) -> None:
    assert "SharedArchiveFile=" in session_config()["spark.driver.extraJavaOptions"]
    options = session_config(master, own)["spark.driver.extraJavaOptions"]
    assert str(_found("spark")) not in options


def test_another_version_of_a_jar_has_another_archive(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"one")
    before = class_archive.spark_archive([jar])
    jar.write_bytes(b"other")
    assert class_archive.spark_archive([jar]) != before


def test_a_few_archives_of_other_versions_are_kept(cache: Path) -> None:
    for number in range(5):
        made = cache / "made"
        made.write_bytes(bytes(number))
        os.utime(made, (number, number))
        kept = ClassArchive("broker", f"key{number}").keep(made)
        assert ClassArchive("broker", f"key{number}").find() == kept
    other = ClassArchive("spark", "key")
    (cache / "made").write_bytes(b"s")
    other.keep(cache / "made")
    assert other.find() is not None
    assert [ClassArchive("broker", f"key{number}").find() is not None for number in range(5)] == [False] * 2 + [
        True
    ] * 3


def test_a_training_that_fails_is_told_and_stops_nobody(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "_PLAN", training._PLAN.replace("available_now", "available_never"))
    assert training.main() == 0
    said = capsys.readouterr().err
    assert "no archives, starts take longer" in said
    assert "available_never" in said
    assert list(cache.iterdir()) == []


def test_what_a_killed_training_has_left_is_cleared_away(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, running = cache / ".training-left", cache / ".training-running"
    for scratch in (left, running):
        scratch.mkdir()
        (scratch / "broker.jsa").write_bytes(b"half of it")
    os.utime(left, (0, 0))

    def no_disk(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(training, "_run", no_disk)
    assert training.main() == 0
    assert list(cache.iterdir()) == [running]


def test_the_training_runs_without_the_users_settings(tmp_path: Path) -> None:
    """Its batches would be in the checkpoint of the user's own pipeline."""
    of_the_user = {
        "ONCEFLOW_CHECKPOINT": "/var/lib/retail",
        "ONCEFLOW_SOURCE__LINES__TOPICS": "invoices",
        "ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS": "kafka:9092",
        "PATH": "/bin",
    }
    expected = {"ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "PATH": "/bin", "TMPDIR": str(tmp_path)}
    assert training._environment(of_the_user, tmp_path, "127.0.0.1:1") == expected


def test_the_archive_is_the_same_wherever_one_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _archives()
    monkeypatch.chdir(tmp_path)
    assert _archives() == before


def test_another_configuration_of_spark_has_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _archives()["spark"]
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert _archives()["spark"] != before


ENDLESS = """#!/bin/sh
sleep 1000 &
echo $! > {file}
wait
"""


def test_a_training_that_does_not_end_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has started, Spark's JVM, holds its output: who ends its Python alone waits for that, or leaves it there."""
    program, file = tmp_path / "endless", tmp_path / "pid"
    program.write_text(ENDLESS.format(file=file))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(training, "_RUN_S", 10.0)
    with pytest.raises(SetupError, match="did not end within 10 s"):
        training._run_pipeline(tmp_path, "127.0.0.1:9", "")
    pid = int(file.read_text())
    eventually(lambda: processes.is_there(pid), (False).__eq__, "the end of what it has started")


def test_an_interrupt_of_a_training_that_has_just_ended_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing left to end then; the error of that must not take the interrupt's place."""
    communicate = subprocess.Popen.communicate

    def interrupted(run: subprocess.Popen[str], **_: object) -> None:
        communicate(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "executable", "/bin/true")
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training._run_pipeline(tmp_path, "127.0.0.1:9", "")
