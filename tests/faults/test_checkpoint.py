"""A checkpoint that was deleted, restored from an older copy, or read by another query: refused, then taken up as asked."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.light import Job, LightDriver
from tests.faults.support import expected_records

from onceflow import KafkaSink, committed_offsets
from onceflow.broker import EmbeddedBroker

if TYPE_CHECKING:
    from tests.conftest import Fill, Reader, RunQuery, TopicFactory

pytestmark = pytest.mark.faults

FIRST = [(f"k{number % 5}", str(number)) for number in range(60)]
SECOND = [(f"k{number % 5}", str(number)) for number in range(60, 100)]


class Pipeline:
    """One name, one source, one target, any checkpoint."""

    def __init__(
        self, topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker
    ) -> None:
        self.source, self.target = topic(2), topic(2)
        self.broker = broker
        self._fill, self._read, self._run_query = fill, read, run_query

    def fill(self, records: list[tuple[str, str]]) -> None:
        self._fill(self.source, records)

    def run(self, checkpoint: Path, sink: dict[str, Any] | None = None, **options: Any) -> None:
        settings: dict[str, Any] = {"patience_s": 20.0, **(sink or {})}
        target = KafkaSink(self.target, name=self.target, bootstrap_servers=self.broker.bootstrap_servers, **settings)
        try:
            self._run_query(self.source, target, checkpoint, **options)
        finally:
            target.close()

    def written(self) -> Counter[tuple[str, str]]:
        return Counter((_text(m.key()), _text(m.value())) for m in self._read(self.target))

    def committed(self) -> str:
        return committed_offsets(self.target, bootstrap_servers=self.broker.bootstrap_servers)


def _text(data: str | bytes | None) -> str:
    return data.decode() if isinstance(data, bytes) else str(data)


@pytest.fixture
def pipeline(topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker) -> Pipeline:
    return Pipeline(topic, fill, read, run_query, broker)


def test_a_deleted_checkpoint_is_refused_and_resumed_without_loss_or_repetition(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.fill(FIRST)
    pipeline.run(tmp_path / "old")
    pipeline.fill(SECOND)
    with pytest.raises(Exception, match=r"PROGRESS_CONFLICT.*the checkpoint was deleted or replaced"):
        pipeline.run(tmp_path / "new")
    with pytest.raises(Exception, match="does not start at the committed offsets"):
        pipeline.run(tmp_path / "new", {"on_mismatch": "resume"})
    assert pipeline.written() == Counter(FIRST)
    for _ in range(2):  # the second time as after a crash of the driver: nothing changes
        resumed = {"on_mismatch": "resume"}
        pipeline.run(tmp_path / "resumed", resumed, startingOffsets=pipeline.committed(), maxOffsetsPerTrigger=15)
        assert pipeline.written() == Counter(FIRST + SECOND)


def test_a_deleted_checkpoint_is_restarted_on_purpose(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.fill(FIRST)
    pipeline.run(tmp_path / "old")
    pipeline.run(tmp_path / "new", {"on_mismatch": "restart"})
    assert pipeline.written() == Counter(FIRST + FIRST)


def test_a_checkpoint_older_than_the_progress_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    """Spark plans another batch under the id of one that is committed: to skip it would lose, to write it would repeat."""
    pipeline.fill(FIRST[:20])
    pipeline.run(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    pipeline.fill(FIRST[20:])
    pipeline.run(tmp_path / "checkpoint")
    pipeline.fill(SECOND)
    with pytest.raises(Exception, match=r"PROGRESS_CONFLICT.*batch 1 is committed already.*other source offsets"):
        pipeline.run(tmp_path / "backup")
    assert pipeline.written() == Counter(FIRST)
    pipeline.run(tmp_path / "checkpoint")
    assert pipeline.written() == Counter(FIRST + SECOND)


def test_a_checkpoint_older_by_its_commit_log_alone_goes_on(pipeline: Pipeline, tmp_path: Path) -> None:
    """Several batches are committed that Spark's commit log does not know: each is recognised and skipped."""
    pipeline.fill(FIRST)
    pipeline.run(tmp_path / "checkpoint", maxOffsetsPerTrigger=15)
    commits = sorted((tmp_path / "checkpoint" / "commits").iterdir())
    for file in commits:
        if file.name not in ("0", ".0.crc"):
            file.unlink()
    pipeline.fill(SECOND)
    pipeline.run(tmp_path / "checkpoint", maxOffsetsPerTrigger=15)
    assert pipeline.written() == Counter(FIRST + SECOND)


def test_a_resume_does_not_wait_for_the_transaction_of_a_dead_driver(pipeline: Pipeline, tmp_path: Path) -> None:
    """It died with its offsets in an open transaction, which makes the committed ones unstable until the broker aborts it."""
    pipeline.fill(FIRST)
    pipeline.run(tmp_path / "old")
    pipeline.fill(SECOND)

    def die(step: str, batch_id: int) -> None:
        if (step, batch_id) == ("COMMIT", 1):
            raise RuntimeError("died here")

    with pytest.raises(Exception, match="died here"):
        pipeline.run(tmp_path / "old", {"on_step": die})
    resumed = {"on_mismatch": "resume", "patience_s": 10.0}
    pipeline.run(tmp_path / "new", resumed, startingOffsets=pipeline.committed())
    assert pipeline.written() == Counter(FIRST + SECOND)


def test_what_the_old_driver_commits_until_it_is_fenced_counts_for_a_resume(
    topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Progress that is read before the fence would let the resumed query begin where the old driver has been already."""
    source, target = topic(1), topic(2)
    fill(source, expected_records(2))
    old = LightDriver(Job(broker.bootstrap_servers, target, target, str(tmp_path / "old"), source=source))
    coordinator = old.open()

    def overtaken(step: str, batch_id: int) -> None:
        if step == "FENCE" and ("DONE", 1) not in old.steps:
            old.run_batch(coordinator, 1)

    settings: dict[str, Any] = {"name": target, "bootstrap_servers": broker.bootstrap_servers}
    with closing(old), closing(KafkaSink(target, **settings, on_mismatch="resume", on_step=overtaken)) as resumed:
        old.run_batch(coordinator, 0)
        old.requests.describe(settle=True)  # it was answered; now its offsets are there
        starting = committed_offsets(**settings)
        with pytest.raises(Exception, match=f"{source}-0 starts at 20, committed is 40"):
            run_query(source, resumed, tmp_path / "new", startingOffsets=starting)
    assert Counter((_text(m.key()), _text(m.value())) for m in read(target)) == Counter(expected_records(2))
