"""Environment variables in a plan: settings that override the file's, and ``${NAME}`` inside a value.

An override's name is ``ONCEFLOW_`` and the setting's path in capitals, two underscores between the parts::

    ONCEFLOW_GUARANTEE                                 guarantee
    ONCEFLOW_KAFKA__BOOTSTRAP_SERVERS                  [kafka] bootstrap_servers
    ONCEFLOW_KAFKA__SASL__PASSWORD                     [kafka] sasl.password
    ONCEFLOW_SOURCE__LINES__MAX_OFFSETS_PER_TRIGGER    [[source]] named lines
    ONCEFLOW_SINK__0__TOPIC                            the first [[sink]]
    ONCEFLOW_SOURCE__LINES__STARTING_OFFSETS__A__0     of topic a, the offset of partition 0, instead of "earliest" too
    ONCEFLOW_SPARK__SQL__SHUFFLE__PARTITIONS           [spark] sql.shuffle.partitions

Names that the file spells in capitals are found whatever their case, and so are Spark's that onceflow sets itself; others are
taken in small letters. A variable whose name is nearly that of a setting is a mistake (``near.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from onceflow.config.lines import Path
from onceflow.config.near import PREFIX, setting_meant
from onceflow.session import DEFAULTS

TOP_LEVEL = ("name", "guarantee", "checkpoint")
ARRAYS = ("source", "transform", "sink")
TABLES = ("trigger", "kafka", "output", "spark")
DOTTED = {("kafka",), ("spark",), ("source", "options"), ("sink", "headers")}
"""Tables whose names hold dots: what follows in a variable's name is one dotted name."""

VERBATIM = ("sql", "schema", "topic_expr", "key", "value", "headers", "timestamp", "partition")
"""SQL is left as it is: ``${...}`` there is Spark's own, and a secret there would end up in query plans."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class NoSuchSetting(ValueError):
    """An override names nothing in the plan."""


def overrides(
    environment: Mapping[str, str], plan: Mapping[str, Any]
) -> Iterator[tuple[str, str, Path | NoSuchSetting]]:
    """The overrides as (variable, value, path), in the order of their names; the error where there is no such setting.

    Variables with one part are others' business unless it is ``NAME``, ``GUARANTEE`` or ``CHECKPOINT``, or nearly a setting; one
    that the plan itself names as ``${NAME}`` is nearly none.
    """
    named = {name for _, name in expand(plan, {})[1]}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        parts = variable.removeprefix(PREFIX).lower().split("__")
        if len(parts) > 1 or parts[0] in TOP_LEVEL:
            yield variable, environment[variable], _target(variable, parts, plan)
        elif variable not in named and (meant := setting_meant(variable, plan)):
            yield variable, environment[variable], NoSuchSetting(f"names no setting, did you mean {meant}?")


def _target(variable: str, parts: list[str], plan: Mapping[str, Any]) -> Path | NoSuchSetting:
    try:
        path = _path_of(parts, plan)
        _check_way(path, plan)
    except NoSuchSetting as error:
        meant = setting_meant(variable, plan)
        return NoSuchSetting(f"{error}; did you mean {meant}?") if meant else error
    return path


def _path_of(parts: list[str], plan: Mapping[str, Any]) -> Path:
    if len(parts) == 1:
        return (parts[0],)
    head, *rest = parts
    if head in TABLES:
        return (head, *_inside((head,), rest, plan.get(head)))
    if head not in ARRAYS or len(rest) < 2:
        raise NoSuchSetting(f"names no setting; sections are {', '.join(TABLES + ARRAYS)}")
    index = _index_of(head, rest[0], plan.get(head))
    return (head, index, *_inside((head,), rest[1:], plan[head][index]))


def _inside(kind: tuple[str, ...], parts: list[str], table: Any) -> Path:
    known = table if isinstance(table, Mapping) else {}
    if kind == ("spark",):
        return (_spelled_for_spark(".".join(parts), known),)
    if kind in DOTTED:
        return (_spelled(".".join(parts), known),)
    name = _spelled(parts[0], known)
    return (name,) if len(parts) == 1 else (name, *_inside((*kind, name), parts[1:], known.get(name)))


def _spelled(name: str, known: Iterable[str]) -> str:
    return next((spelled for spelled in known if spelled.lower() == name), name)


def _spelled_for_spark(name: str, known: Iterable[str]) -> str:
    """Spark takes ``sql.session.timezone`` for a setting that it does not know, and says nothing.

    With the prefix ``spark.`` or without, as the file has it: otherwise there would be two of one name.
    """
    full = f"spark.{name.removeprefix('spark.')}"
    spellings = {f"spark.{each.removeprefix('spark.')}".lower(): each for each in (*DEFAULTS, *known)}
    return spellings.get(full, name)


def _index_of(kind: str, text: str, elements: Any) -> int:
    found = elements if isinstance(elements, list) else []
    if text.isdecimal() and int(text) < len(found):
        return int(text)
    for index, element in enumerate(found):
        if text and isinstance(element, Mapping) and str(element.get("name", "")).lower() == text:
            return index
    raise NoSuchSetting(f"there is no {kind} {text!r}")


def _check_way(path: Path, plan: Mapping[str, Any]) -> None:
    """Raises NoSuchSetting where a path goes into what is no table::

    the file has topic = "sales", the variable is ONCEFLOW_SINK__0__TOPIC__EXPR (TOPIC_EXPR was meant)
    nothing can be set there; were it passed over, the records would go to the file's topic
    """
    level: Any = plan
    for part, inner in pairwise(path):
        level = level[part] if isinstance(part, int) else level.get(part, {})
        if not isinstance(level, list if isinstance(inner, int) else Mapping):
            if part not in _TEXT_OR_TABLE:
                raise NoSuchSetting(f"names no setting: {part} is no table in the plan")
            return


_TEXT_OR_TABLE = ("starting_offsets",)


def put(plan: dict[str, Any], path: Path, value: str) -> None:
    """Sets a value at a path, with new tables on the way; one takes the place of a text (``starting_offsets = "earliest"``)."""
    level: Any = plan
    for part in path[:-1]:
        if not isinstance(part, int) and not isinstance(level.get(part), dict | list):
            level[part] = {}
        level = level[part]
    level[path[-1]] = value


def expand(value: Any, environment: Mapping[str, str], path: Path = ()) -> tuple[Any, list[tuple[Path, str]]]:
    """``value`` with every ``${NAME}`` replaced, and (path, NAME) of those not set. ``$${`` stands for ``${``."""
    if isinstance(value, str):
        return _expand_text(value, environment, path)
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return value, []
    done, missing = [], []
    for name, inner in items:
        is_sql = name in VERBATIM and path[:1] in (("source",), ("transform",), ("sink",))
        replaced, absent = (inner, []) if is_sql else expand(inner, environment, (*path, name))
        done.append((name, replaced))
        missing += absent
    return (dict(done) if isinstance(value, Mapping) else [v for _, v in done]), missing


def _expand_text(text: str, environment: Mapping[str, str], path: Path) -> tuple[str, list[tuple[Path, str]]]:
    pieces = text.split("$${")
    missing = [(path, name) for piece in pieces for name in _REFERENCE.findall(piece) if name not in environment]
    if missing:
        return text, missing
    return "${".join(_REFERENCE.sub(lambda match: environment[match[1]], piece) for piece in pieces), []
