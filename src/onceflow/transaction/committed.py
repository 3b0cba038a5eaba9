"""Where a pipeline's committed output ends in its sources: what a resumed query starts from."""

from __future__ import annotations

import json
from collections.abc import Mapping

from onceflow.errors import ProgressConflict
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.requests import Requests

_EARLIEST = -2  # Spark's code for the beginning: of a partition that was added since


def committed_offsets(name: str, *, bootstrap_servers: str, kafka: Mapping[str, str] | None = None) -> str:
    """The committed source offsets of pipeline ``name`` as Spark's ``startingOffsets``: JSON, topic to partition to offset.

    For a query with a new checkpoint and ``KafkaSink(…, on_mismatch="resume")``. ``kafka``: Java client options without
    prefix. Raises ProgressConflict when nothing is committed under the name, BrokerUnreachable, NotAuthorized.
    """
    settings = ClusterSettings.of(bootstrap_servers, kafka or {})
    with KafkaClient(settings.for_protocol()) as client:
        # Not stable: what a driver that died in its commit left open would hold this up until its transaction times out. Should
        # it be committed after all, the resumed sink, which fences before it reads, finds the difference and refuses.
        _, offsets = Requests(client, name, version=1, timeout_ms=0).read_offsets(stable=False)
        if not offsets:
            raise ProgressConflict(
                f"no source offsets are committed under the name {name!r}",
                action="check the name and the cluster, or start without resume",
                name=name,
            )
        known = client.topics({topic for topic, _ in offsets})
    starting = {
        topic: {str(partition): offsets.get((topic, partition), _EARLIEST) for partition in found.leaders}
        for topic, found in known.items()
    }
    return json.dumps(starting)
