"""An error that names a log of the run is of use when the run's files are gone."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from tests.verify.running.test_broken_off import QUIET
from tests.verify.running.test_options import GOOD

from onceflow.errors import SetupError
from onceflow.verify.engines import ENGINES
from onceflow.verify.running import run as running
from onceflow.verify.running.logs import with_ends
from onceflow.verify.running.options import settings_of
from onceflow.verify.running.place import Place

LAST = "ERROR Exiting Kafka: no space left on device"


def a_world_without_brokers(settings: object, engine: object, files: Place, timeline: object) -> NoReturn:
    """As one whose second broker does not start."""
    log = files.kafka / "node-2" / "broker.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{LAST}\n")
    raise SetupError(f"the Kafka cluster in {files.kafka} is not healthy", action=f"see {log}, and ask")


def test_the_error_ends_with_what_the_logs_said_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(running, "_world", a_world_without_brokers)
    (told,) = running.run(settings_of(GOOD), ENGINES["onceflow"], QUIET).failures
    assert told.splitlines() == [
        "[SETUP] the Kafka cluster in kafka is not healthy",
        "  What to do: see kafka/node-2/broker.log, and ask",
        "The run's files are removed with it, unless --keep is given.",
        "The end of kafka/node-2/broker.log:",
        f"  {LAST}",
    ]
    assert not list(tmp_path.iterdir())


def test_logs_that_stay_are_named_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(running, "_world", a_world_without_brokers)
    settings = replace(settings_of(GOOD), directory=tmp_path)
    (told,) = running.run(settings, ENGINES["onceflow"], QUIET).failures
    (named,) = re.findall(rf"see ({tmp_path}[^,]*),", told)
    assert LAST in Path(named).read_text()
    assert LAST not in told


def test_a_place_that_cannot_be_made_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    (told,) = running.run(settings_of(GOOD), ENGINES["onceflow"], QUIET).failures
    assert "FileNotFoundError" in told


def test_what_is_said_already_is_not_said_again(tmp_path: Path) -> None:
    log = tmp_path / "oracle.log"
    log.write_text("first\nlast\n")
    assert with_ends(f"it failed. The end of its log:\n  last\n  What to do: see {log}.", tmp_path) == (
        "it failed. The end of its log:\n  last\n  What to do: see oracle.log.\n"
        "The run's files are removed with it, unless --keep is given."
    )


def test_other_files_and_long_logs(tmp_path: Path) -> None:
    home = tmp_path / "run"
    home.mkdir()
    (home / "long.log").write_text("".join(f"line {number}\n" for number in range(100_000)))
    other = f"see {tmp_path}/other.log and {home}"
    assert with_ends(other, home) == other
    too_long = f"{home}/{'long' * 100}"
    assert with_ends(f"see {too_long}", home) == f"see {'long' * 100}"
    lines = with_ends(f"see ({home}/long.log): {home}/none.log", home).splitlines()
    assert lines[0] == "see (long.log): none.log"
    assert lines[3:] == [f"  line {number}" for number in range(99_985, 100_000)]
