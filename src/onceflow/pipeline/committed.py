"""The committed progress of a pipeline, read from outside, as its own driver reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onceflow.kafka.admin import Partition
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.progress import Progress
from onceflow.transaction.requests import Requests

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Committed:
    """The progress record (None: nothing was committed under the name) and the source offsets next to it."""

    progress: Progress | None
    offsets: Mapping[Partition, int]


def read_committed(name: str, settings: ClusterSettings) -> Committed:
    """Asks the group's coordinator; an open transaction is waited for. Raises KafkaError, ProgressConflict.

    Not over librdkafka: its Python client gives a commit's metadata back without its end (2.16: a C string that is not
    terminated).
    """
    with KafkaClient(settings.for_protocol(), patience_s=PATIENCE_S) as client:
        return Committed(*Requests(client, name, version=1, timeout_ms=0).read_offsets())
