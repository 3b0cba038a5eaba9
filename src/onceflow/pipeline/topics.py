"""The topics of a plan: which are there, which are missing, and whether the offsets to start from fit them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceflow.config import PlanFile, Source
from onceflow.config.lines import Path
from onceflow.kafka.admin import ClusterAdmin
from onceflow.pipeline.events import Listener, TopicsCreated

Partitions = Mapping[str, tuple[int, ...]]

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""The topics that brokers call internal: Spark leaves them out of a pattern, and no other."""


@dataclass(frozen=True, slots=True)
class MissingTopic:
    """A topic that the plan names and the cluster does not have."""

    topic: str
    path: Path


def topics_of(source: Source, known: Partitions) -> list[str]:
    """The topics that a source reads now."""
    return list(source.topics) if source.pattern is None else matching(source.pattern, known)


def matching(pattern: str, known: Iterable[str]) -> list[str]:
    """The topics that Spark reads by a pattern: one that it does not read counts as missing, one too few is never resumed."""
    return sorted(topic for topic in known if re.fullmatch(pattern, topic) and topic not in _INTERNAL)


def missing_topics(file: PlanFile, known: Partitions) -> list[MissingTopic]:
    """The topics that the plan names and the cluster lacks, each once."""
    named: list[tuple[str, Path]] = []
    for index, source in enumerate(file.plan.source):
        named += [(topic, ("source", index, "topics")) for topic in source.topics]
    for index, sink in enumerate(file.plan.sink):
        named += [(sink.topic, ("sink", index, "topic"))] if sink.topic is not None else []
    found: dict[str, MissingTopic] = {}
    for topic, path in named:
        if topic not in known:
            found.setdefault(topic, MissingTopic(topic, path))
    return list(found.values())


def offset_mistakes(file: PlanFile, known: Partitions) -> list[tuple[Path, str]]:
    """Spark takes a table of offsets only if it names every partition."""
    found: list[tuple[Path, str]] = []
    for index, source in enumerate(file.plan.source):
        if isinstance(source.starting_offsets, str):
            continue
        for topic, offsets in source.starting_offsets.items():
            where: Path = ("source", index, "starting_offsets")
            there = set(known.get(topic, offsets))
            if there - set(offsets):
                lacking = ", ".join(map(str, sorted(there - set(offsets))))
                found.append((where, f"{topic}: no offset is given for partition {lacking} (-2 earliest, -1 latest)"))
            if set(offsets) - there:
                found.append((where, f"{topic} has no partition {', '.join(map(str, sorted(set(offsets) - there)))}"))
    return found


def create(file: PlanFile, admin: ClusterAdmin, missing: list[MissingTopic], tell: Listener) -> None:
    """Makes the missing topics with the plan's number of partitions."""
    if not missing:
        return
    names = tuple(entry.topic for entry in missing)
    kafka = file.plan.kafka
    admin.create_topics(names, partitions=kafka.partitions, replication_factor=kafka.replication_factor)
    tell(TopicsCreated(names, kafka.partitions))
