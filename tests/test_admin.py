"""Topics that are made are there for whoever asks next."""

from __future__ import annotations

import pytest

from onceflow.broker import EmbeddedBroker
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.settings import ClusterSettings

Partitions = dict[str, tuple[int, ...]]


def test_topics_are_waited_for_until_a_broker_has_heard_of_them(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has made them, and the broker that is asked first does not know it yet."""
    names = {"heard-of", "heard-of-too"}
    answers: list[Partitions] = []
    real = ClusterAdmin.partitions

    def late(admin: ClusterAdmin) -> Partitions:
        known = real(admin)
        answers.append({} if len(answers) < 2 else known)
        return answers[-1]

    monkeypatch.setattr(ClusterAdmin, "partitions", late)
    ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers)).create_topics(names, partitions=2)
    assert len(answers) >= 3
    assert names <= answers[-1].keys()


def test_one_that_exists_is_left_as_it_is(broker: EmbeddedBroker) -> None:
    admin = ClusterAdmin(ClusterSettings.of(broker.bootstrap_servers))
    admin.create_topics(["made-once"], partitions=2)
    admin.create_topics(["made-once", "made-now"], partitions=3)
    found = admin.partitions()
    assert (len(found["made-once"]), len(found["made-now"])) == (2, 3)
