"""What the brokers do not list nobody looks at: fewer partitions than there are is no answer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from onceflow.errors import VerificationError
from onceflow.verify.recording import ends, observe
from onceflow.verify.recording.ends import ends_of
from onceflow.verify.recording.tables import Place

BROKERS = "127.0.0.1:1"
LEAST = {"in": 1, "out": 3}
Listing = Mapping[str, tuple[int, ...]]


class Cluster:
    """Gives one listing after the other, and the last one again and again."""

    def __init__(self, *listings: Listing) -> None:
        self._listings = list(listings)
        self.asked = 0

    def __call__(self, *_: object) -> Cluster:
        return self

    def partitions(self) -> Listing:
        self.asked += 1
        return self._listings.pop(0) if len(self._listings) > 1 else self._listings[0]


def found_in(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, deadline: float | None = None) -> list[Place]:
    monkeypatch.setattr(ends, "ClusterAdmin", cluster)
    monkeypatch.setattr(ends.Asker, "_ask", lambda _, places, *__: dict.fromkeys(places, 0))
    monkeypatch.setattr(ends, "_PAUSE_S", 0.0)
    table = ends_of(BROKERS, ["out", "in"], deadline, least=LEAST)
    return [(row["topic"], row["partition"]) for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ({"in": (0,)}, "0 of 3 partitions of out"),
        ({"in": (), "out": (0, 2)}, "0 of 1 partitions of in, 2 of 3 partitions of out"),
        ({"in": (0,), "out": (0, 1, 3)}, "2 of 3 partitions of out"),
    ],
    ids=["a topic is missing", "partitions of both", "another one is there"],
)
def test_where_not_all_is_listed_there_is_no_end(listed: Listing, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VerificationError, match=f"the cluster does not list all that there is, but {told}\n") as caught:
        found_in(Cluster(listed), monkeypatch, deadline=0.0)
    assert "so that the run proves nothing" in str(caught.value)
    with pytest.raises(VerificationError, match=told):
        observe(BROKERS, LEAST, "nobody", least=LEAST, patience_s=0.0)


def test_a_broker_that_has_just_started_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({}, {"in": (0,), "out": (0, 1)}, {"in": (0,), "out": (0, 1, 2, 3)})
    assert found_in(cluster, monkeypatch) == [("in", 0), *(("out", number) for number in range(4))]
    assert cluster.asked == 3


def test_of_a_topic_that_need_not_be_there_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic of the progress, where another engine runs."""
    monkeypatch.setattr(ends, "ClusterAdmin", Cluster({}))
    assert not len(ends_of(BROKERS, ["onceflow-progress"], least=LEAST))
