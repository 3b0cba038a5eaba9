"""The topics that an outbox goes to."""

from __future__ import annotations

from collections.abc import Iterable

from onceflow.errors import TopicMissing
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.missing import meant
from onceflow.kafka.settings import ClusterSettings


class Topics:
    """Makes missing topics with ``partitions`` partitions; with None they are a mistake, named all at once.

    A topic that was seen is not asked for again.
    """

    def __init__(self, settings: ClusterSettings, partitions: int | None = None) -> None:
        self._admin = ClusterAdmin(settings)
        self._partitions = partitions
        self._seen: set[str] = set()

    def ensure(self, names: Iterable[str]) -> None:
        """Raises TopicMissing, NotAuthorized, or KafkaError when a topic cannot be made."""
        new = set(names) - self._seen
        if not new:
            return
        if self._partitions is not None:
            self._admin.create_topics(new, partitions=self._partitions, needed="WRITE")
        elif missing := self._admin.missing(new, needed="WRITE"):
            raise TopicMissing(
                f"the outbox holds events for topics that do not exist: {', '.join(missing)}",
                action="create them, or start with --create-topics PARTITIONS; the events stand in the table; "
                + meant(missing, self._admin.partitions()),
                topics=tuple(missing),
            )
        self._seen |= new
