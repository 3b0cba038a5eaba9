"""Spark's settings in another case: it takes ``sql.session.timezone`` for one that it does not know, and says nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession

_KEY = re.compile(r"ConfigEntry\(key=([^,]+),")


def misspelled(spark: SparkSession, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Those of the names (with ``spark.`` or without) that Spark knows in another case alone, and how it spells them."""
    jvm: Any = spark._jvm  # noqa: SLF001  Python does not know what settings there are
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    unknown = [name for name in names if entries.findEntry(f"spark.{name.removeprefix('spark.')}") is None]
    if not unknown:
        return
    known = {key.lower(): key for key in _KEY.findall(str(entries.listAllEntries().toString()))}
    for name in unknown:
        right = known.get(f"spark.{name.removeprefix('spark.')}".lower())
        if right is not None:
            yield name, right
