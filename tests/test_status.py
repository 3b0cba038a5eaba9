"""``onceflow status`` beside pipelines that ran: whose batches are committed, and what a run of many batches remembers."""

from __future__ import annotations

import gc
import json
import queue
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.command_line import onceflow_says

from onceflow.broker import EmbeddedBroker
from onceflow.cli.records import send_lines
from onceflow.config import load
from onceflow.errors import ProgressConflict
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline import Control, Event, Finished, Mode, run
from onceflow.pipeline.events import BatchCommitted, Listener
from onceflow.transaction.coordinator import OnStep
from onceflow.transaction.driver import BatchReport
from onceflow.transaction.sink import KafkaSink

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.usefixtures("spark")
PATIENCE_S = 120.0


class Copying:
    """A plan of two sources, each copied; one of them never has any data."""

    def __init__(self, directory: Path, broker: EmbeddedBroker, topic: TopicFactory) -> None:
        self.directory = directory
        self.checkpoint = directory / "state"
        self.settings = ClusterSettings.of(broker.bootstrap_servers)
        self.topic = topic
        self.name = f"copy-{directory.name}"
        self.lines = topic(2)
        self.write_plan()

    def write_plan(self) -> None:
        text = f"""
name = "{self.name}"
checkpoint = "state"
[trigger]
available_now = true
[kafka]
bootstrap_servers = "{self.settings.bootstrap_servers}"
"""
        for name, source in (("lines", self.lines), ("nothing", self.topic(1))):
            text += f"""
[[source]]
name = "{name}"
topics = ["{source}"]
format = "raw"
max_offsets_per_trigger = 2
[[sink]]
from = "{name}"
topic = "{self.topic(1)}"
value = "value"
"""
        (self.directory / "pipeline.toml").write_text(text)

    def send(self, *values: str) -> None:
        send_lines(self.settings, self.lines, values, key=None)

    def run(self, mode: Mode = Mode.REFUSE, tell: Listener = lambda _: None, on_step: OnStep | None = None) -> Finished:
        file = load(self.directory / "pipeline.toml", {})
        return run(file, tell=tell, control=Control(), mode=mode, make_sink=partial(KafkaSink, on_step=on_step))

    def status(self, *options: str) -> dict[str, Any]:
        found = json.loads(onceflow_says(self.directory, "status", "--json", *options))
        assert isinstance(found, dict)
        return found

    def words(self) -> str:
        """Without what a narrow terminal does to it."""
        return " ".join(onceflow_says(self.directory, "status").split())


@pytest.fixture
def copying(tmp_path: Path, broker: EmbeddedBroker, topic: TopicFactory) -> Copying:
    return Copying(tmp_path, broker, topic)


def rows(found: dict[str, Any]) -> list[tuple[bool, int, bool | None, bool | None]]:
    """Of each batch: whether it is of the query that committed last, its number, whether it is committed, and finished."""
    query = found["progress"]["query_id"]
    return [(b["query_id"] == query, b["batch_id"], b["committed"], b["in_checkpoint"]) for b in found["batches"]]


def test_what_ran_in_order_is_committed_and_without_a_warning(copying: Copying) -> None:
    copying.send("1", "2", "3")
    copying.run()
    copying.send("4")
    copying.run()
    found = copying.status()
    assert found["checkpoint_query"] == found["progress"]["query_id"]
    assert rows(found) == [(True, number, True, True) for number in range(found["progress"]["next_batch"])]
    assert found["warning"] == ""
    assert "warning" not in copying.words()
    assert rows(copying.status("--last", "1")) == rows(found)[-1:]
    assert rows(copying.status("--last", "0")) == []


def test_the_batch_of_a_new_checkpoint_is_not_the_committed_one_of_the_lost_one(copying: Copying) -> None:
    """Its start is refused, and the error sends its reader here: nothing of its batch 0 is committed."""
    copying.send("1")
    copying.run()
    shutil.rmtree(copying.checkpoint)
    assert "there is no checkpoint" in copying.status()["warning"]
    copying.send("2")
    with pytest.raises(ProgressConflict):
        copying.run()
    found = copying.status()
    assert rows(found) == [(True, 0, True, False), (False, 0, None, False)]
    assert "is of another query" in found["warning"]
    query, other = found["progress"]["query_id"], found["checkpoint_query"]
    words = copying.words()
    assert f"warning: {found['warning']}" in words
    assert f"{query[:8]} 0 committed no" in words
    assert f"{other[:8]} 0 - no" in words


def test_a_batch_that_an_old_checkpoint_planned_anew_is_not_the_committed_one(copying: Copying, tmp_path: Path) -> None:
    copying.send("1")
    copying.run()
    shutil.copytree(copying.checkpoint, tmp_path / "backup")
    copying.send("2")
    copying.run()
    shutil.rmtree(copying.checkpoint)
    shutil.move(tmp_path / "backup", copying.checkpoint)
    copying.send("3")
    with pytest.raises(ProgressConflict):
        copying.run()
    found = copying.status()
    assert rows(found) == [(True, 0, True, True), (True, 1, True, False), (True, 1, False, False)]
    assert "gives batch 1 other source offsets" in found["warning"]


def test_a_topic_that_the_plan_has_left_has_no_lag(copying: Copying) -> None:
    copying.send("1")
    copying.run()
    left, copying.lines = copying.lines, copying.topic(1)
    copying.write_plan()
    copying.send("2")
    copying.run(Mode.RESTART)
    send_lines(copying.settings, left, ["nobody reads this"], key=None)
    found = copying.status()["partitions"]
    assert left not in {partition["topic"] for partition in found}
    assert copying.lines in {partition["topic"] for partition in found}
    assert sum(partition["lag"] for partition in found) == 0


def test_a_run_forgets_the_batches_that_it_has_told_of(copying: Copying) -> None:
    """Or a driver that runs for months grows until its memory limit ends it."""
    told: queue.SimpleQueue[Event] = queue.SimpleQueue()
    kept: list[int] = []

    def tell(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            told.put(event)

    def count(step: str, batch_id: int) -> None:
        if step == "STORE":
            if batch_id:
                told.get(timeout=PATIENCE_S)  # of the batch before
            kept.append(sum(isinstance(each, BatchReport) for each in gc.get_objects()))

    copying.send(*map(str, range(20)))
    assert copying.run(tell=tell, on_step=count).batches == len(kept) >= 10
    assert max(kept) - kept[0] <= 2, "the newest one, which the sink has, and which is being told"
