"""Rights as the documentation lists them, and a user of a broker who is granted some of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.faults.support import TIMEOUT_S, Cluster, eventually
from tests.test_authorization import PASSWORD, GuardedBroker

from onceflow.kafka.settings import ClusterSettings

DOCS = Path(__file__).parents[2] / "docs"
USERS = [f"user-{number}" for number in range(100)]
_numbers = itertools.count()
_ROW = re.compile(r"\| ([A-Z_, ]+) \| (topic|group|transactional id|cluster) `([^`]+)` \| ([^|:]+?)(?::[^|]*)? \|")
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,  # so librdkafka calls it
}


@dataclass(frozen=True)
class Right:
    """One operation on one resource, by its placeholders: ``<group>.dead-letter``."""

    operation: str
    kind: str
    resource: str

    def __str__(self) -> str:
        return f"{self.operation} {self.kind} {self.resource}"


def documented(page: str, *when: str) -> tuple[Right, ...]:
    """The rights of a page's tables that are needed ``when``."""
    rows = [_ROW.match(line) for line in (DOCS / page).read_text().splitlines()]
    found = [
        Right(operation, row[2], row[3]) for row in rows if row and row[4] in when for operation in row[1].split(", ")
    ]
    assert found, f"{page} lists no right for {when}"
    return tuple(found)


class Place:
    """Names that no other test has, and a user without any right to them."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        assert isinstance(cluster.broker, GuardedBroker)
        self.cluster = cluster
        self.directory = directory
        number = next(_numbers)
        self._suffix = f"-{number}"
        self._user = USERS[number]
        self.servers = cluster.servers
        self.login = f"127.0.0.1:{cluster.broker.login_port}"
        self.options = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self._user,
            "sasl.password": PASSWORD,
        }
        self.settings = ClusterSettings.of(self.login, self.options)

    def named(self, text: str) -> str:
        """With this place's names instead of placeholders: ``<group>.dead-letter`` is ``group-7.dead-letter``."""
        return re.sub(r"<(\w+)>", rf"\1{self._suffix}", text)

    def make_topics(self, names: Iterable[str], limit_bytes: int | None = None) -> None:
        """By the administrator. ``limit_bytes``: their max.message.bytes."""
        config = {} if limit_bytes is None else {"max.message.bytes": str(limit_bytes)}
        new = [NewTopic(name, 1, 1, config=config) for name in names]
        made = self.cluster.admin.create_topics(new, operation_timeout=TIMEOUT_S) if new else {}
        for future in made.values():
            future.result(TIMEOUT_S)

    def fill(self, topic: str, *values: str) -> None:
        """By the administrator."""
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(TIMEOUT_S) == 0

    def values(self, topic: str) -> list[str | None]:
        """Every committed one; nothing is left open."""
        return [value for _, _, value in self.cluster.read(topic)]

    def grant(self, rights: Iterable[Right]) -> None:
        """Returns when the broker goes by it."""
        bindings = [self._binding(right) for right in rights]
        admin = self.cluster.admin
        for done in (admin.create_acls(bindings, request_timeout=TIMEOUT_S) if bindings else {}).values():
            done.result(TIMEOUT_S)
        mine = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{self._user}", None,  # type: ignore[arg-type]
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        eventually(
            lambda: set(admin.describe_acls(mine, request_timeout=TIMEOUT_S).result(TIMEOUT_S)),
            set(bindings).issubset,
            "the ACLs",
        )

    def _binding(self, right: Right) -> AclBinding:
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        kind, name, operation = _KINDS[right.kind], self.named(right.resource), AclOperation[right.operation]
        return AclBinding(kind, name, literal, f"User:{self._user}", "*", operation, allow)
