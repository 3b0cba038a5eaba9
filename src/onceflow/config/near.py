"""Which setting an environment variable was meant for, where its name is nearly right.

What it survives::

    ONCEFLOW_KAFKA_BOOTSTRAP_SERVERS=broker:9092, one underscore where two are needed
    it names no setting and was passed over: the pipeline ran on the file's cluster, or started an embedded broker

Not every variable that begins with ``ONCEFLOW_`` is a setting: others of ours are not, and Kubernetes makes
``ONCEFLOW_KAFKA_SERVICE_HOST`` for a service that is named so. What is near no setting is left alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from onceflow.config import model
from onceflow.config.rules import SOURCE_OPTIONS
from onceflow.kafka.options import KNOWN
from onceflow.session import DEFAULTS

PREFIX = "ONCEFLOW_"
OTHERS = frozenset({"ONCEFLOW_OUTBOX"})
"""Variables of ours that are no settings of a plan."""

_NEAR = 0.9
_TABLES: Mapping[str, type[BaseModel]] = {
    "trigger": model.Trigger,
    "kafka": model.KafkaCluster,
    "output": model.Output,
}
_ARRAYS: Mapping[str, type[BaseModel]] = {"source": model.Source, "transform": model.Transform, "sink": model.Sink}
_SPARK = ("master", *(name.removeprefix("spark.") for name in DEFAULTS), "sql.shuffle.partitions")


def setting_meant(variable: str, plan: Mapping[str, Any]) -> str | None:
    """The variable that ``variable`` was probably meant to be; None where it is near none, or is one of ours."""
    if variable in OTHERS or not variable.startswith(PREFIX):
        return None
    right = {_plain(name): name for name in _settings(plan)}
    alone = {_plain(name.partition("__")[2]): name for name in right.values() if name.partition("__")[0] in _SECTIONS}
    asked = _plain(variable.removeprefix(PREFIX))
    found = right.get(asked) or (alone.get(asked) if "_" in asked else None)
    if found is None:
        close = difflib.get_close_matches(asked, right, n=1, cutoff=_NEAR)
        found = right[close[0]] if close else None
    return None if found is None else f"{PREFIX}{found}"


_SECTIONS = frozenset(name.upper() for name in (*_TABLES, "spark"))


def _plain(name: str) -> str:
    return re.sub("_+", "_", name.upper()).strip("_")


def _settings(plan: Mapping[str, Any]) -> Iterator[str]:
    """The variables of the settings that there are, without the prefix."""
    yield from ("NAME", "GUARANTEE", "CHECKPOINT")
    for table, kind in _TABLES.items():
        yield from (_joined(table, name) for name in _fields(kind))
    yield from (_joined("kafka", name) for name in KNOWN)
    yield from (_joined("spark", name) for name in _SPARK)
    for array, kind in _ARRAYS.items():
        elements = plan.get(array)
        for index, element in enumerate(elements if isinstance(elements, list) else []):
            name = element.get("name") if isinstance(element, Mapping) else None
            for place in (str(index), name if isinstance(name, str) and name else str(index)):
                yield from (_joined(array, place, setting) for setting in _settings_of(kind))


def _settings_of(kind: type[BaseModel]) -> Iterator[str]:
    for name in _fields(kind):
        if name == "watermark":
            yield from (f"watermark.{inner}" for inner in _fields(model.Watermark))
        elif name == "options":
            yield from (f"options.{option}" for option in SOURCE_OPTIONS)
        elif name != "headers":
            yield name


def _fields(kind: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in kind.model_fields.items() if (kind, name) != _NOT_WRITTEN]


_NOT_WRITTEN = (model.KafkaCluster, "options")


def _joined(*parts: str) -> str:
    return "__".join(parts).replace(".", "__").upper()
