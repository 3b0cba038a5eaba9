"""What a Spark master counts that was started again, against what runs: told step by step, for it comes by chance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from onceflow.errors import SetupError
from onceflow.verify.cluster import SparkCluster, spark

APP = "app-1"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkCluster:
    """Not started: nothing of it runs."""
    monkeypatch.setattr(spark, "_COUNTS_S", 1.0)
    monkeypatch.setattr(spark, "_SETTLES_S", 1.0)
    return SparkCluster(tmp_path)


def told(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, *moments: tuple[int, int]) -> None:
    """The cores that were given out and those that are taken at each look; in the end they stay so."""
    left = list(moments)

    def taken() -> Counter[str]:
        return Counter({APP: left[0][1]})

    def given() -> dict[str, int]:
        now = left.pop(0) if len(left) > 1 else left[0]
        return {APP: now[0]}

    monkeypatch.setattr(cluster, "_cores_taken", taken)
    monkeypatch.setattr(cluster, "_cores_given", given)


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([(2, 2), (4, 4), (2, 0)], id="as many as run, by chance"),
        pytest.param([(3, 2)], id="one too many"),
    ],
)
def test_executors_that_do_not_run_are_miscounted(
    cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, moments: list[tuple[int, int]]
) -> None:
    told(cluster, monkeypatch, *moments)
    assert cluster._miscounted() == [APP]


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param([(2, 0), (2, 1), (2, 2)], id="they are on their way"),
        pytest.param([(4, 4)], id="more than asked for"),
        pytest.param([(2, 3)], id="one that is ending"),
    ],
)
def test_others_are_not(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, moments: list[tuple[int, int]]) -> None:
    told(cluster, monkeypatch, *moments)
    assert cluster._miscounted() == []


def test_a_master_that_never_counts_right_is_told_of(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    told(cluster, monkeypatch, (3, 2))
    starts: list[bool] = []
    monkeypatch.setattr(cluster.master, "start", lambda: starts.append(True))
    monkeypatch.setattr(cluster, "wait_until_healthy", lambda *_, **__: None)
    with pytest.raises(SetupError, match=APP):
        cluster._correct_its_count(1.0)
    assert len(starts) == 3
