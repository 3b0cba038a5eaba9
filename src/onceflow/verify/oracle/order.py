"""Which output keeps the order of its input inside of a batch: that of branches where each record is treated by itself.

A plan is judged branch by branch: running totals beside a copy of the input leave the copy its order.

Order is that of a task, for a task reads one partition of the input, unless its source is told to share partitions out::

    minPartitions = 12, four partitions     tasks 7 and 8 read one partition: a stands in 7, b behind it in 8
    an engine writes b before a             two tasks, of which nobody knows that they read the same: nothing would be found
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from onceflow.config import Plan

_KEEPING = frozenset(
    {
        "CTERelationDef", "CTERelationRef", "CollectMetrics", "EventTimeWatermark", "Filter", "Generate", "Project",
        "SubqueryAlias", "Union", "View", "WithCTE",
    }
)  # fmt: skip
"""Nodes of Spark's logical plans that give the rows of each task in the order in which it has them. All others may shuffle."""
_SHARING = ("minPartitions", "maxRecordsPerPartition")
"""Options of a source that let several tasks read one partition."""


@dataclass(frozen=True, slots=True)
class Shuffled:
    """The topics of whose records no order is known; ``any_topic`` where such a branch takes the name from its rows."""

    topics: frozenset[str] = frozenset()
    any_topic: bool = False

    def __contains__(self, topic: object) -> bool:
        return self.any_topic or topic in self.topics


def shuffled_topics(plan: Plan, spark: SparkSession) -> Shuffled:
    """Looks at the view of each sink, which must be registered with the session."""
    names = [sink.topic for sink in plan.sink if not keeps_order(spark, sink.from_)]
    return Shuffled(frozenset(name for name in names if name is not None), any_topic=None in names)


def keeps_order(spark: SparkSession, view: str) -> bool:
    """Whether a view gives the records of each input partition in their order, all in one task."""
    plan: Any = spark.table(view)._jdf.queryExecution().analyzed()  # noqa: SLF001  Python has no view of the plan
    # A subquery in an expression becomes a join.
    return plan.subqueriesAll().isEmpty() and all(map(_keeps, _nodes(plan)))


def _keeps(node: Any) -> bool:
    name = node.nodeName()
    if name == "StreamingRelationV2":
        return not any(map(node.extraOptions().containsKey, _SHARING))
    return name in _KEEPING


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
