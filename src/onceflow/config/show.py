"""The plan in effect, for people: every setting with its value and where it comes from; secrets hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from onceflow.config.lines import Path, text_of
from onceflow.config.loading import PlanFile
from onceflow.config.values import Duration
from onceflow.kafka.options import SECRETS
from onceflow.kafka.settings import HIDDEN

_LOOKS_SECRET = re.compile(
    r"password|passwd|secret|token|credential|jaas|(access|account|private|encryption)\.?key|\bsas\b", re.IGNORECASE
)


def show(file: PlanFile) -> list[tuple[str, str, str]]:
    """Rows of (setting, value, origin): what was given, then the defaults. ``${NAME}`` stays as it was written."""
    given = [(path, text_of(path), value) for path, value in _leaves(file.template)]
    rows = [(name, _value(name, value), file.origin_of(path)) for path, name, value in given]
    names = [name for _, name, _ in given]
    for path, value in _leaves(file.plan):
        name = text_of(path)
        if value is not None and not any(n == name or n.startswith((f"{name}.", f"{name}[")) for n in names):
            rows.append((name, _value(name, value), "default"))
    return rows


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        value = {fields[name].alias or name: getattr(value, name) for name in fields if name in value.__dict__}
    if isinstance(value, Mapping):
        inner = [(name, v) for name, v in value.items() if not (path == ("kafka",) and name == "options")]
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping | BaseModel) for v in value):
        inner = list(enumerate(value))
    else:
        yield path, value
        return
    for name, v in inner:
        yield from _leaves(v, (*path, name))


def _value(name: str, value: Any) -> str:
    if _is_secret(name):
        return HIDDEN
    return json.dumps(str(value) if isinstance(value, Duration) else value, ensure_ascii=False, default=str)


def _is_secret(name: str) -> bool:
    passes_through = name.startswith(("kafka.", "spark.")) or ".options." in name
    return name.removeprefix("kafka.") in SECRETS or (passes_through and _LOOKS_SECRET.search(name) is not None)
