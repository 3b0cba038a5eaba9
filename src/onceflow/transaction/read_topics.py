"""Of which topics the offsets of a checkpoint are, where no progress record says it: ids, in the checkpoint.

Under ``at_least_once``, which has none, and until the first batch of a query is committed.

What it survives::

    5 records are read; the topic is deleted and made anew, and gets 8 others; the pipeline starts, or runs on all the while
    Spark reads from its offset 5, and would pass over the first 5 of the new topic without a word

    the broker drops the committed offsets of a deleted topic, and all of them after a rest (offsets.retention.minutes)
    so the ids stand beside Spark's own offsets, written before the batch that is read under them

    the checkpoint is of an older onceflow, or the file is half
    nothing is known, so nothing is refused, and the ids of now are noted
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame

from onceflow.transaction.checkpoint_file import CheckpointFile
from onceflow.transaction.progress import differ

NAME = "_onceflow_topics"


class ReadTopics:
    """The ids of the topics that a query has read, by name. Of one run of the query."""

    def __init__(self, frame: DataFrame) -> None:
        self._file = CheckpointFile(frame, NAME)
        self._known = parsed(self._file.read())

    def made_anew(self, goes_on: Iterable[str], ids: Mapping[str, str]) -> list[str]:
        """Those of the topics that a batch ``goes_on`` with that have another id than when they were read last."""
        return sorted(topic for topic in set(goes_on) if differ(self._known.get(topic), ids.get(topic)))

    def note(self, ids: Mapping[str, str]) -> None:
        """Topics that are read now; one that has no id (the broker gives none) is not noted."""
        known = {**self._known, **{topic: id_ for topic, id_ in ids.items() if id_}}
        if known != self._known:
            self._file.write(json.dumps(known))
            self._known = known


def parsed(text: str) -> dict[str, str]:
    """What was noted; nothing, where it cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {topic: id_ for topic, id_ in found.items() if isinstance(id_, str)}
