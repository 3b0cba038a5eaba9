"""A principal that lacks one right: the error names it, nothing is visible or stays open, and once granted it goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what the fault tests share

from tests.faults.light import Job, LightDriver
from tests.faults.support import Cluster, eventually, expected_records

from onceflow.broker import EmbeddedBroker
from onceflow.broker.home import BrokerState
from onceflow.broker.settings import HOST, as_properties, free_ports
from onceflow.errors import NotAuthorized
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.options import LOGIN_MODULES
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.requests import ANCHOR_TOPIC, transactional_id

PASSWORD = "secret"
TIMEOUT_MS = 900_000  # far longer than any wait here: what is left open stays open
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
Right = tuple[ResourceType, str, AclOperation]

LACKS: dict[str, str] = {
    "describe the target": r"topic {target}: the principal lacks DESCRIBE on the topic",
    "write the target": r"{target}-\d: .*the principal lacks WRITE on the topic",
    "read the target": r"DescribeProducers of {target}-\d: the principal lacks READ on the topic",
    "transactional id": r"{id}.*: the principal lacks WRITE on the transactional id",
    "describe alone of the transactional id": r"{id}: InitProducerId: the principal lacks WRITE on the transactional id",
    "group": r"{id}.*: the principal lacks READ on the group",
    "describe alone of the group": r"{id}: .*: the principal lacks READ on the group",
    "progress": rf"topic {ANCHOR_TOPIC}: the principal lacks DESCRIBE on the topic",
    "describe alone of the progress": rf"{{id}}: the offset of {ANCHOR_TOPIC}-0: the principal lacks READ on the topic",
    "read the source": r"{id}: the offset of {source}-0: the principal lacks READ on the topic",
}


class GuardedBroker(EmbeddedBroker):
    """An embedded broker with Kafka's own authorizer: its own listener may do all, those who log in what ACLs allow."""

    def __init__(self, directory: Path, version: int) -> None:
        super().__init__(directory, transaction_version=version, heap_mb=256)
        self.login_port = free_ports(1)[0]

    def _write_settings(self, state: BrokerState) -> Mapping[str, str]:
        properties = {**super()._write_settings(state), **self._guarded(state)}
        self._home.properties.write_text(as_properties(properties))
        return properties

    def _guarded(self, state: BrokerState) -> dict[str, str]:
        listeners = f"BROKER://{HOST}:{state.port},LOGIN://{HOST}:{self.login_port}"
        users = " ".join(f'user_{user_of(lack)}="{PASSWORD}"' for lack in LACKS)
        return {
            "listeners": f"{listeners},CONTROLLER://{HOST}:{state.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f"{LOGIN_MODULES['PLAIN']} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def settings_of(self, user: str) -> ClusterSettings:
        login = {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": PASSWORD}
        return ClusterSettings.of(f"{HOST}:{self.login_port}", {"security.protocol": "SASL_PLAINTEXT", **login})


def user_of(lack: str) -> str:
    """A user for each case: what one is granted cannot help another."""
    return f"u{list(LACKS).index(lack)}"


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with GuardedBroker(tmp_path_factory.mktemp("guarded"), request.param) as broker:
        cluster = Cluster(broker)
        yield cluster
        cluster.close()


class Case:
    """A pipeline of its own, and a user that lacks one right."""

    def __init__(self, cluster: Cluster, lack: str, directory: Path) -> None:
        assert isinstance(cluster.broker, GuardedBroker)
        self.cluster = cluster
        self.user = user_of(lack)
        self.target, self.source, name = cluster.make_topic(), cluster.make_topic(), cluster.unique("guarded")
        self.id = transactional_id(name)
        options = cluster.broker.settings_of(self.user).for_protocol()
        (servers,) = options.pop("bootstrap_servers")
        self.job = Job(servers, name, self.target, str(directory / name), timeout_ms=TIMEOUT_MS)
        self.job = replace(self.job, options=options, source=self.source)
        self.rights = self._rights(lack)

    def _rights(self, lack: str) -> tuple[list[Right], list[Right]]:
        """What the user has at first, and what it is granted later."""
        target, source, progress = (TOPIC, self.target), (TOPIC, self.source), (TOPIC, ANCHOR_TOPIC)
        group, transaction = (GROUP, self.id), (TRANSACTIONAL_ID, self.id)
        needed = [(*target, WRITE), (*target, READ), (*source, READ), (*progress, READ)]
        needed += [(*group, READ), (*transaction, WRITE)]
        lacking, instead = {
            "describe the target": ([(*target, WRITE), (*target, READ)], []),
            "write the target": ([(*target, WRITE)], []),
            "read the target": ([(*target, READ)], []),
            "transactional id": ([(*transaction, WRITE)], []),
            "describe alone of the transactional id": ([(*transaction, WRITE)], [(*transaction, DESCRIBE)]),
            "group": ([(*group, READ)], []),
            "describe alone of the group": ([(*group, READ)], [(*group, DESCRIBE)]),
            "progress": ([(*progress, READ)], []),
            "describe alone of the progress": ([(*progress, READ)], [(*progress, DESCRIBE)]),
            "read the source": ([(*source, READ)], [(*source, DESCRIBE)]),
        }[lack]
        return [right for right in needed if right not in lacking] + instead, lacking

    def grant(self, rights: list[Right]) -> None:
        bindings = [self._binding(*right) for right in rights]
        admin = self.cluster.admin
        for done in admin.create_acls(bindings, request_timeout=60).values():
            done.result(60)
        mine = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{self.user}", None,  # type: ignore[arg-type]
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        eventually(
            lambda: set(admin.describe_acls(mine, request_timeout=60).result(60)), set(bindings).issubset, "the ACLs"
        )

    def _binding(self, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        return AclBinding(kind, name, literal, f"User:{self.user}", "*", operation, allow)


@pytest.mark.parametrize("lack", list(LACKS))
def test_a_right_that_is_missing_is_named_and_once_granted_the_pipeline_goes_on(
    guarded: Cluster, lack: str, tmp_path: Path
) -> None:
    create_anchor(guarded, tmp_path)
    case = Case(guarded, lack, tmp_path)
    had, lacked = case.rights
    case.grant(had)
    with pytest.raises(NotAuthorized, match=LACKS[lack].format(target=case.target, source=case.source, id=case.id)):
        LightDriver(case.job).run()
    assert guarded.read(case.target) == [], "also waits until nothing is open"
    case.grant(lacked)
    LightDriver(case.job).run()
    guarded.check_exactly(case.target, expected_records(2))


def create_anchor(cluster: Cluster, directory: Path) -> None:
    """By a pipeline of the super user."""
    name = cluster.unique("super")
    LightDriver(Job(cluster.servers, name, cluster.make_topic(), str(directory / name), batches=1)).run()


def test_settings_that_a_principal_may_not_see_are_unknown_and_no_error(guarded: Cluster) -> None:
    assert isinstance(guarded.broker, GuardedBroker)
    name = "transaction.max.timeout.ms"
    assert ClusterAdmin(guarded.broker.settings_of(user_of("group"))).broker_setting(name) is None
    assert ClusterAdmin(ClusterSettings.of(guarded.servers)).broker_setting(name) == "900000"
