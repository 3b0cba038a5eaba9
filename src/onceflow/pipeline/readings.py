"""How often a plan reads each source: once for every branch that comes from it, which Spark's row counts include."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

from onceflow.pipeline.topics import matching

_SUBSCRIBED = re.compile(r"Subscribe(?:Pattern)?\[(.*)\]\]$")


def readings(frame: DataFrame) -> Mapping[str, int]:
    """How many leaves of the plan read each set of topics (as text without spaces)."""
    return Counter(_plain(str(topics or pattern)) for topics, pattern in _subscriptions(frame))


def topics_in_order(frame: DataFrame, known: Iterable[str]) -> list[frozenset[str]]:
    """The topics that each leaf of the plan reads now, in the order in which Spark numbers its sources."""
    return [
        frozenset(_plain(topics).split(",") if topics else matching(pattern or "", known))
        for topics, pattern in _subscriptions(frame)
    ]


def _subscriptions(frame: DataFrame) -> Iterator[tuple[str | None, str | None]]:
    """Of each streaming leaf, the topics or the pattern."""
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001  Python has no view of the plan
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.isStreaming():
            options = leaf.extraOptions()
            yield options.get("subscribe"), options.get("subscribePattern")


def rows_read(progress: StreamingQueryProgress, times: Mapping[str, int]) -> int:
    """The rows that the sources gave in a micro-batch, each counted once."""
    rows = 0
    for source in progress.sources:
        topics = _SUBSCRIBED.search(source.description)
        rows += source.numInputRows // times.get(_plain(topics[1]) if topics else "", 1)
    return rows


def _plain(topics: str) -> str:
    return topics.replace(" ", "")
