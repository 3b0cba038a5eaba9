"""What a broker had acknowledged and not yet written to disk is lost: of a batch that is not committed, or of one of three."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.faults.light import records_of
from tests.verify.faults.light_world import at_work, found, make_tests_importable, proved

from onceflow.verify.cluster import KafkaCluster
from onceflow.verify.faults import disk
from onceflow.verify.faults.disk import LoseTail, cut_tails, newest_batch

HEADER = struct.Struct(">qiibIh")  # first offset, bytes that follow, leader epoch, magic, checksum, attributes
CONTROL = 0x20


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tests_importable(monkeypatch)


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("loses")
    never = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "600000"
    }  # a slow driver is not to be aborted
    with KafkaCluster(directory, transaction_version=request.param, heap_mb=192, config=never) as running:
        yield running


@pytest.mark.faults
def test_lose_tail_of_a_batch_that_is_not_committed(cluster: KafkaCluster, tmp_path: Path) -> None:
    with proved(cluster, tmp_path) as world:
        LoseTail().inject(world, Random(1))
        assert world.said.met.startswith("node 1 was killed and lost the newest batch of ")
        assert world.driver.await_batches(1)
        assert world.driver.course.steps_told["ABORT"] > 0


@pytest.mark.faults
@pytest.mark.long
def test_lose_tail_of_one_of_three(
    three_brokers: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output, and what coordinators have: the progress that commits, and that a transaction is open."""
    cut: list[str] = []
    cut_tail = disk._cut_tail

    def noted(segment: Path, *, markers_too: bool) -> bool:
        is_cut = cut_tail(segment, markers_too=markers_too)
        cut.extend([segment.parent.name] * is_cut)
        return is_cut

    monkeypatch.setattr(disk, "_cut_tail", noted)
    with proved(three_brokers, tmp_path) as world:
        for seed in range(3):
            cut.clear()
            LoseTail().inject(world, Random(seed))
            assert f"lost the newest batch of {len(cut)} logs" in world.said.met
            topics = {log.rpartition("-")[0] for log in cut}
            assert topics == {*world.topics_out, "__consumer_offsets", "__transaction_state"}


@pytest.mark.faults
def test_control_without_the_audit_it_stays_lost(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_ACKNOWLEDGED", ("STORE",))  # it has no step AUDIT; the next one is this
    with at_work(cluster, tmp_path, variant="no audit") as world:
        LoseTail().inject(world, Random(1))
        assert world.said.met
        assert world.driver.await_batches(2)
        assert world.driver.stop() == ""
    batches = range(max(world.driver.course.committed_batches) + 1)
    assert set(found(world)) < {value for batch in batches for _, value in records_of(batch)}


def batch(offset: int, size: int, attributes: int = 0) -> bytes:
    return HEADER.pack(offset, size - 12, 0, 2, 0, attributes).ljust(size, b"\1")


def test_the_newest_batch_is_cut_off_and_a_marker_only_where_it_shall(tmp_path: Path) -> None:
    one, other, marker = batch(0, 70), batch(3, 80), batch(5, 61, CONTROL)
    logs = {"out-0": one + other, "out-1": one + marker, "out-2": b"", "out-3": one + bytes(500), "out-more-0": one}
    for name, content in logs.items():
        directory = tmp_path / "data" / name
        directory.mkdir(parents=True)
        (directory / "00000000000000000000.log").write_bytes(one + one + one)
        (directory / "00000000000000000007.log").write_bytes(content)

    def left() -> list[bytes]:
        return [(tmp_path / "data" / name / "00000000000000000007.log").read_bytes() for name in logs]

    assert cut_tails(tmp_path, ["out"], markers_too=False) == 2
    assert left() == [one, one + marker, b"", b"", one]
    assert cut_tails(tmp_path, ["out"], markers_too=True) == 2
    assert left() == [b"", one, b"", b"", one]
    assert newest_batch(b"") is None
