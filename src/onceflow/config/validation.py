"""A plan's model applied to what was read: the plan, or every mistake in words that name no secret."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from onceflow.config import model, rules
from onceflow.config.lines import Path

SECTIONS: dict[tuple[str, ...], type[BaseModel]] = {
    (): model.Plan,
    ("trigger",): model.Trigger,
    ("kafka",): model.KafkaCluster,
    ("source",): model.Source,
    ("source", "watermark"): model.Watermark,
    ("transform",): model.Transform,
    ("transform", "watermark"): model.Watermark,
    ("sink",): model.Sink,
    ("output",): model.Output,
}


def validated(raw: dict[str, Any], hidden: Mapping[str, Any]) -> tuple[model.Plan | None, list[tuple[Path, str]]]:
    """The plan if it has no mistakes, and the mistakes. Rules between settings are checked on what is well-formed."""
    try:
        plan = model.Plan.model_validate(raw)
    except ValidationError as error:
        details = [d for d in error.errors(include_url=False) if not _is_consequence(d)]
        found = _unique([(_real_path(d, raw), _words(d, raw, hidden)) for d in details])
        rest = _without([_real_path(d, raw) for d in details if d["type"] != "missing"], raw)
        return None, found + _broken_rules(rest, {path for path, _ in found})
    found = rules.mistakes_of(plan)
    return (None if found else plan), found


def _is_consequence(detail: ErrorDetails) -> bool:
    """A list counts as too short when none of its elements is good."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _broken_rules(raw: dict[str, Any], known: set[Path]) -> list[tuple[Path, str]]:
    try:
        plan = model.Plan.model_validate(raw)
    except ValidationError:
        return []
    return [(path, text) for path, text in rules.mistakes_of(plan) if path not in known]


def _unique(found: list[tuple[Path, str]]) -> list[tuple[Path, str]]:
    return list({path: (path, text) for path, text in reversed(found)}.values())[::-1]


def _without(paths: list[Path], raw: dict[str, Any]) -> dict[str, Any]:
    rest = copy.deepcopy(raw)
    for path in paths:
        level: Any = rest
        for part in path[:-1]:
            level = level[part]
        if isinstance(level, dict):
            level.pop(path[-1], None)
    return rest


def _real_path(detail: ErrorDetails, raw: Any) -> Path:
    """The error's place as far as the file has it; pydantic adds parts of its own."""
    path: list[str | int] = []
    level: Any = raw
    for part in detail["loc"]:
        if _has(level, part):
            level = level[part]
            path.append(part)
        else:
            return (*path, part) if detail["type"] == "missing" else tuple(path)
    return tuple(path)


def _has(level: Any, part: str | int) -> bool:
    return part in level if isinstance(level, Mapping) else isinstance(level, list) and isinstance(part, int)


def _words(detail: ErrorDetails, raw: Any, hidden: Any) -> str:
    kind, path = detail["type"], _real_path(detail, raw)
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return f"unknown setting{_suggestion(path)}"
    if kind == "string_pattern_mismatch":
        return f"{_shown(path, hidden)} does not fit {detail['ctx']['pattern']}"
    text = detail["msg"].removeprefix("Value error, ").replace("Input should", "must")
    return f"{text[0].lower()}{text[1:]}{_is(path, hidden)}"


def _suggestion(path: Path) -> str:
    kind = tuple(part for part in path[:-1] if isinstance(part, str))
    fields = SECTIONS[kind].model_fields if kind in SECTIONS else {}
    names = [info.alias or name for name, info in fields.items()]
    close = difflib.get_close_matches(str(path[-1]), names, n=1)
    return f", did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"


def _is(path: Path, hidden: Any) -> str:
    shown = _shown(path, hidden)
    return f", is {shown}" if shown else ""


def _shown(path: Path, hidden: Any) -> str:
    """The value as the file has it, with its ``${...}``; nothing for what may be a secret or is long."""
    level = hidden
    for part in path:
        level = level[part]
    simple = isinstance(level, str | int | float) and len(str(level)) <= 60
    return repr(level) if simple and path[:1] not in (("kafka",), ("spark",)) and "options" not in path else ""
