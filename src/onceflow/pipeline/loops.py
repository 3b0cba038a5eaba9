"""No plan reads what it writes, unless it says so: each record would come back as input, without end.

The topic that a sink names is checked before the start (``config/rules.py``). What a ``topic_expr`` gives is known row by row: a
batch with a row for a topic that a source reads fails, before that row is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from onceflow.config import Source
from onceflow.errors import InputError

_MARK = "onceflow: a source of the plan reads the topic"
_MARKED = re.compile(rf"{_MARK} <([a-zA-Z0-9._-]+)>")  # Spark's errors show the plan as well, with %s there


def never_read(topic: Column, sources: Iterable[Source]) -> Column:
    """The topic, or an error that ``find_loop`` recognises where one of the ``sources`` reads it."""
    is_read = reduce(or_, (_reads(source, topic) for source in sources))
    error = F.raise_error(F.format_string(f"{_MARK} <%s>", topic))
    return F.when(is_read, error.cast("string")).otherwise(topic)


def _reads(source: Source, topic: Column) -> Column:
    """Spark's ``rlike`` and its Kafka source know the same patterns."""
    if source.pattern is not None:
        return topic.rlike(f"^(?:{source.pattern})$")
    return topic.isin(*source.topics)


def find_loop(text: str) -> InputError | None:
    """The error of a row that would have been read again, if an error's text tells of one."""
    match = _MARKED.search(text)
    if match is None:
        return None
    return InputError(
        f"a topic_expr gives {match[1]}, which a source of the plan reads: each record would come back as input, without end; "
        "under exactly_once nothing of the batch was written",
        action="correct the topic_expr or the source's pattern; if it is meant, set feeds_back = true in the [[sink]]",
        topic=match[1],
    )
