"""Which output keeps the order of its input inside of a batch: that of branches where each record is treated by itself.

A plan is judged branch by branch: running totals beside a copy of the input leave the copy its order.
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
        "StreamingRelationV2", "SubqueryAlias", "Union", "View", "WithCTE",
    }
)  # fmt: skip
"""Nodes of Spark's logical plans that give the rows of each task in the order in which it has them. All others may shuffle."""


@dataclass(frozen=True, slots=True)
class Shuffled:
    """The topics whose records a shuffle may have mixed; ``any_topic`` where such a branch takes the name from its rows."""

    topics: frozenset[str] = frozenset()
    any_topic: bool = False

    def __contains__(self, topic: object) -> bool:
        return self.any_topic or topic in self.topics


def shuffled_topics(plan: Plan, spark: SparkSession) -> Shuffled:
    """Looks at the view of each sink, which must be registered with the session."""
    names = [sink.topic for sink in plan.sink if not keeps_order(spark, sink.from_)]
    return Shuffled(frozenset(name for name in names if name is not None), any_topic=None in names)


def keeps_order(spark: SparkSession, view: str) -> bool:
    """Whether a view gives the records of each input partition in their order."""
    plan: Any = spark.table(view)._jdf.queryExecution().analyzed()  # noqa: SLF001  Python has no view of the plan
    # A subquery in an expression becomes a join.
    return plan.subqueriesAll().isEmpty() and all(name in _KEEPING for name in _nodes(plan))


def _nodes(plan: Any) -> Iterator[str]:
    yield plan.nodeName()
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
