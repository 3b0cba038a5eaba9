"""A pipeline that a timetable starts for some batches, and one that runs on, by turns and killed each time, on one checkpoint.

The first keeps its state in snapshots alone, the second in changelogs with a snapshot now and then, so each takes over state that
the other has left half done::

    runs on      killed at its COMMIT: the state of batch 7 is stored, as a changelog
    timetable    repeats batch 7 from the state of batch 6, a changelog, and stores a snapshot of the same version
    runs on      goes on from there: from one file of that version, and not from both
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from tests.verify.oracle.runs import Run

from onceflow.verify.engines.catalog import ENGINES

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

    from onceflow.broker import EmbeddedBroker

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.usefixtures("spark")]

TIMEOUT_S = 300
BY_TIMETABLE, RUNS_ON = "{available_now = true}", '{processing_time = "100 milliseconds"}'
STEPS = ("INSPECT", "FENCE", "READ", "CONFIRM", *ENGINES["onceflow"].steps)
TOTALS = """
guarantee = "{guarantee}"

[[source]]
name = "payments"
topics = ["{payments}"]
schema = "account STRING, amount BIGINT"
max_offsets_per_trigger = 50

[[transform]]
name = "totals"
sql = "SELECT account, sum(amount) AS amount, count(*) AS n FROM payments GROUP BY account"

[[sink]]
from = "totals"
topic = "{totals}"
key = "account"
value = "to_json(struct(account, amount, n))"

[output]
mode = "update"
"""


class Turns:
    """One pipeline, and input enough for each turn."""

    def __init__(self, broker: EmbeddedBroker, topic: TopicFactory, directory: Path, guarantee: str) -> None:
        payments, totals = topic(2), topic(2)
        text = TOTALS.format(payments=payments, totals=totals, guarantee=guarantee)
        self.run = Run(broker, directory, f"turns-{totals}", text, (totals,))
        self.run.batch(60)

    def kill(self, trigger: str, step: str) -> None:
        self.run.write(150)
        plan = self.run.directory / "turn.toml"
        plan.write_text(self.run.path.read_text().replace(BY_TIMETABLE, trigger))
        assert trigger in plan.read_text()
        with TemporaryDirectory() as scratch:  # short, for Spark has a Unix socket in it
            options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={scratch}"
            driver = subprocess.run(
                [sys.executable, "-m", "tests.faults.whole_driver", str(plan), step],
                env={**os.environ, "SPARK_LOCAL_DIRS": scratch, "SPARK_SUBMIT_OPTS": options},
                stderr=subprocess.PIPE,
                text=True,
                timeout=TIMEOUT_S,
                start_new_session=True,
                check=False,
            )
        assert driver.returncode == -signal.SIGKILL, (trigger, step, driver.stderr)

    def found(self) -> dict[str, int]:
        self.run.process()
        judged = self.run.judged()
        assert judged.reasons == ()
        return dict(judged.violations)

    def files(self, suffix: str) -> int:
        return len([*(self.run.checkpoint / "state" / "0").glob(f"*/*.{suffix}")])


@pytest.mark.parametrize("first", [BY_TIMETABLE, RUNS_ON])
def test_each_goes_on_with_what_the_other_has_left_at_every_step(
    broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path, first: str
) -> None:
    turns = Turns(broker, topic, tmp_path, "exactly_once")
    second = RUNS_ON if first == BY_TIMETABLE else BY_TIMETABLE
    for step in STEPS:
        turns.kill(first, step)
        turns.kill(second, step)
    assert turns.found() == {}
    assert turns.files("zip")
    assert turns.files("changelog")


def test_control_at_least_once_repeats(broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path) -> None:
    turns = Turns(broker, topic, tmp_path, "at_least_once")
    turns.kill(BY_TIMETABLE, "COMMITTED")
    turns.kill(RUNS_ON, "COMMITTED")
    assert set(turns.found()) == {"duplicated"}
