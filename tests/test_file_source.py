"""A query that reads files: its offsets count its batches, and name no record."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceflow import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import Workbench

TIMEOUT_S = 120


class Files:
    """A directory that is read, the topic to which it goes, and a checkpoint."""

    def __init__(self, bench: Workbench, spark: SparkSession, directory: Path) -> None:
        self._bench, self._spark = bench, spark
        self._inbox = directory / "in"
        self._inbox.mkdir()
        self.checkpoint = bench.checkpoint
        self.target = bench.topic(1)

    def add(self, *lines: str) -> None:
        for line in lines:
            (self._inbox / line).write_text(f"{line}\n")

    def run(self, on_mismatch: str = "refuse") -> None:
        """A batch for each file, until all are read. Raises what the query raised."""
        servers = self._bench.broker.bootstrap_servers
        lines = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"file://{self._inbox}")
        used = KafkaSink(self.target, name=self.target, bootstrap_servers=servers, on_mismatch=on_mismatch)
        with closing(used):
            writer = lines.writeStream.foreachBatch(used).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(self.checkpoint)).start()
            try:
                assert query.awaitTermination(TIMEOUT_S)
            finally:
                query.stop()

    def written(self) -> list[str]:
        return sorted((record.value() or b"").decode() for record in self._bench.read(self.target))


@pytest.fixture
def files(bench: Workbench, spark: SparkSession, tmp_path: Path) -> Files:
    return Files(bench, spark, tmp_path)


def test_a_checkpoint_that_was_restored_does_not_pass_over_new_files(files: Files) -> None:
    """Spark plans the committed batch anew, over a new file, and its offset is the same."""
    files.add("a")
    files.run()
    backup = files.checkpoint.with_name("backup")
    shutil.copytree(files.checkpoint, backup)
    files.add("b")
    files.run()
    shutil.rmtree(files.checkpoint)
    backup.rename(files.checkpoint)
    files.add("c")
    with pytest.raises(
        Exception, match=r"PROGRESS_CONFLICT.*is committed already, but the checkpoint now gives it other"
    ):
        files.run()
    assert files.written() == ["a", "b"]
    files.run("restart")
    assert files.written() == ["a", "b", "b", "c"], "on purpose"


def test_a_batch_that_is_only_repeated_is_known_and_the_next_follows(files: Files) -> None:
    files.add("a", "b")
    files.run()
    for name in ("1", ".1.crc"):
        (files.checkpoint / "commits" / name).unlink()
    files.add("c")
    files.run()
    assert files.written() == ["a", "b", "c"]


def test_a_lost_checkpoint_is_not_resumed(files: Files) -> None:
    """It would begin at the first file, and write all a second time."""
    files.add("a")
    files.run()
    shutil.rmtree(files.checkpoint)
    with pytest.raises(Exception, match=r"PROGRESS_CONFLICT.*sources other than Kafka cannot be resumed"):
        files.run("resume")
    assert files.written() == ["a"]
