"""Whether the topics that a batch is read from are those that the committed batch before it ended in: offsets fit any topic.

What it survives::

    5 records are read; the topic is deleted and made anew, and gets 8 others; the pipeline starts, or runs on all the while
    Spark sees an end above its offset 5, reads from there, and would pass over the first 5 of the new topic without a word

    the same, between the question which topics they are and the end of the reading
    the question is asked once more when all is read, and before it is committed

    the broker drops the committed offsets of a deleted topic, and what is noted beside them
    so a digest of the ids stands in the progress record, which is committed with the batch (source_mark.py)

    the progress was written by an older onceflow, or the brokers give no ids
    nothing is known, so nothing is refused
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from onceflow.errors import InputError, TopicMissing
from onceflow.kafka.client import KafkaClient
from onceflow.transaction.progress import Progress, differ, digest_of
from onceflow.transaction.source_mark import topics_of as marked_topics
from onceflow.transaction.source_mark import with_topics
from onceflow.transaction.streaming_query import MicroBatch

_SURE_S = 10.0  # Spark has read them: some broker knows them


@dataclass(frozen=True, slots=True)
class SourceTopics:
    """The topics of one micro-batch, and the ids that they had before it was read (empty: the broker gives none)."""

    client: KafkaClient
    ids: Mapping[str, str]

    @classmethod
    def of(cls, client: KafkaClient, offered: MicroBatch) -> SourceTopics:
        """Raises TopicMissing for a topic that the sink's cluster does not know."""
        return cls(client, _ids(client, _topics(offered.kafka_end())))

    def marked(self, offered: MicroBatch) -> MicroBatch:
        """The batch; what its commit will say of its sources names these topics."""
        sources = with_topics(offered.batch.sources, self._digest(self.ids))
        return replace(offered, batch=replace(offered.batch, sources=sources))

    def were_made_anew(self, offered: MicroBatch, progress: Progress | None) -> bool:
        """Since the newest committed batch, where that is the one before this batch, or this batch itself.

        A topic that this batch does not read has no id to compare.
        """
        if progress is None or not progress.ends or progress.query_id != offered.batch.query_id:
            return False
        if progress.ends[-1] == offered.batch.start:
            topics = _topics(offered.kafka_start())
        elif progress.ends[-1] == offered.batch.end:
            topics = set(self.ids)
        else:
            return False
        known, now = marked_topics(progress.sources), self._digest({topic: self.ids.get(topic, "") for topic in topics})
        return differ(known, now)

    def check_unchanged(self) -> None:
        """Raises InputError where one of them was made anew since."""
        now = _ids(self.client, self.ids)
        changed = sorted(topic for topic, before in self.ids.items() if differ(before, now[topic]))
        if changed:
            raise made_anew_error(f"{', '.join(changed)}: deleted and made anew while the batch was read")

    @staticmethod
    def _digest(ids: Mapping[str, str]) -> str:
        return digest_of(dict(ids)) if ids and all(ids.values()) else ""


def made_anew_error(what: str) -> InputError:
    """``what``: which topics, and since when."""
    return InputError(
        f"{what}; at the offsets of the old topic, records of the new one would be passed over in silence",
        action="nothing was passed over. To read the new topic, give the offsets to start from (starting_offsets, "
        "startingOffsets) and restart with a new checkpoint (--restart). If it has the same records at the same offsets (it was "
        'copied, or restored), run KafkaSink once with on_mismatch="restart" and the old checkpoint',
    )


def _topics(offsets: Iterable[tuple[str, int]]) -> set[str]:
    return {topic for topic, _ in offsets}


def _ids(client: KafkaClient, topics: Iterable[str]) -> dict[str, str]:
    """A topic that was made a moment ago is not known to every broker yet: that is asked again."""
    wanted = set(topics)
    if not wanted:
        return {}
    found = client.topic_ids(wanted)
    missing = wanted - set(found)
    if missing:
        _await_all(client, missing)
        found |= client.topic_ids(missing)
    return {topic: found.get(topic, "") for topic in wanted}


def _await_all(client: KafkaClient, topics: Iterable[str]) -> None:
    try:
        client.topics(topics, refresh=True, sure_s=_SURE_S)
    except TopicMissing as error:
        raise TopicMissing(
            f"{error.message}: topics that are read are not on the cluster that is written to",
            action="create them, or correct their names; one cluster has to hold both, to commit them together",
            **error.fields,
        ) from error
