"""One broker on which users may do what ACLs allow, and a place for each test to work on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for what the tests of this directory share

from tests.faults.support import Cluster
from tests.permissions.places import USERS, Place
from tests.test_authorization import PASSWORD, GuardedBroker

from onceflow.broker.home import BrokerState
from onceflow.kafka.names import PROBE_TOPIC, PROGRESS_TOPIC
from onceflow.kafka.options import LOGIN_MODULES


class BrokerOfManyUsers(GuardedBroker):
    """Has a user for each test."""

    def _guarded(self, state: BrokerState) -> dict[str, str]:
        users = " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
        login = f"{LOGIN_MODULES['PLAIN']} required {users};"
        return {**super()._guarded(state), "listener.name.login.plain.sasl.jaas.config": login}


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with BrokerOfManyUsers(tmp_path_factory.mktemp("permissions"), 2) as broker:
        cluster = Cluster(broker)
        yield cluster
        cluster.close()


@pytest.fixture
def make_place(guarded: Cluster, tmp_path: Path) -> Callable[[], Place]:
    """A user without any right, names of its own, and the anchor topic, which all places share."""

    def make() -> Place:
        place = Place(guarded, tmp_path)
        place.make_topics({PROGRESS_TOPIC, PROBE_TOPIC} - guarded.admin.list_topics(timeout=60).topics.keys())
        return place

    return make
