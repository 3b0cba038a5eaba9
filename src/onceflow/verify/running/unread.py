"""Sources of a plan that no sink is made of.

``onceflow run`` takes such a plan, and Spark reads what its sinks need. Verified it would look as if it were stuck: input is
written for the source, and nobody ever reads it.
"""

from __future__ import annotations

import re

from onceflow.config import Plan


def unread_sources(plan: Plan) -> list[str]:
    """Those whose name stands in no sink, nor in any query that a sink is made of.

    One whose name merely stands there (as a column, in a comment) may be unread as well: only Spark could tell.
    """
    texts = {each.name.lower(): each.sql for each in plan.transform} | {each.name.lower(): "" for each in plan.source}
    read = {name for name in texts for sink in plan.sink if _names(repr(sink), name)}
    while more := {name for name in texts for view in read if _names(texts[view], name)} - read:
        read |= more
    return [source.name for source in plan.source if source.name.lower() not in read]


def _names(text: str, view: str) -> bool:
    """Whether a view is named there; SQL does not mind the case."""
    return re.search(rf"(?<!\w){re.escape(view)}(?!\w)", text, re.IGNORECASE) is not None
