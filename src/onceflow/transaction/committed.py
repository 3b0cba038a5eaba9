"""The committed progress of a pipeline, read from outside: where its output ends in its sources."""

from __future__ import annotations

import json
from collections.abc import Mapping

from onceflow.errors import ProgressConflict
from onceflow.kafka.client import KafkaClient
from onceflow.kafka.settings import ClusterSettings
from onceflow.transaction.questions import Committed
from onceflow.transaction.requests import Requests
from onceflow.transaction.source_mark import NOT_RESUMED

EARLIEST = -2  # Spark's code for the beginning: of a partition that was added since
PATIENCE_S = 30.0


def read_committed(name: str, settings: ClusterSettings) -> Committed:
    """Asks the group's coordinator for what is committed now. Raises KafkaError, ProgressConflict.

    Not over librdkafka: its Python client gives a commit's metadata back without its end (2.16: a C string that is not
    terminated).
    """
    with KafkaClient(settings.for_protocol(), patience_s=PATIENCE_S) as client:
        return _read(client, name)


def committed_offsets(name: str, *, bootstrap_servers: str, kafka: Mapping[str, str] | None = None) -> str:
    """The committed source offsets of pipeline ``name`` as Spark's ``startingOffsets``: JSON, topic to partition to offset.

    For a query with a new checkpoint and ``KafkaSink(…, on_mismatch="resume")``. ``kafka``: Java client options without
    prefix. Raises ProgressConflict when nothing is committed under the name, or the offsets do not tell where the committed
    output ends; BrokerUnreachable, NotAuthorized.
    """
    settings = ClusterSettings.of(bootstrap_servers, kafka or {})
    with KafkaClient(settings.for_protocol()) as client:
        committed = _read(client, name)
        offsets, why_not = committed.ends, committed.why_not_resumed
        if why_not:
            raise ProgressConflict(f"pipeline {name!r} cannot resume: {why_not}", action=NOT_RESUMED, name=name)
        if not offsets:
            raise ProgressConflict(
                f"no source offsets are committed under the name {name!r}",
                action="check the name and the cluster, or start without resume",
                name=name,
            )
        known = client.topics({topic for topic, _ in offsets})
    starting = {
        topic: {str(partition): offsets.get((topic, partition), EARLIEST) for partition in found.leaders}
        for topic, found in known.items()
    }
    return json.dumps(starting)


def _read(client: KafkaClient, name: str) -> Committed:
    """Does not wait for an open transaction: what a dead driver left open would hold it up until that times out.

    Should that be committed after all, the resumed sink, which fences before it reads, finds the difference and refuses.
    """
    return Requests(client, name, version=1, timeout_ms=0).read_committed(stable=False)
