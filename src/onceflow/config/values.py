"""The kinds of values that a plan's settings take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainValidator, PositiveInt, StringConstraints

_UNITS_MS = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_DURATION = re.compile(r"(\d+)\s*([a-z]+)")
_PARTITION = re.compile(r"0|[1-9][0-9]*")
_OFFSET = re.compile(r"-[12]|0|[1-9][0-9]*")  # Spark's codes: -2 is the beginning, -1 the end


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time, in milliseconds."""

    ms: int

    @classmethod
    def parse(cls, text: object) -> Duration:
        """A number and a unit, as in "500 ms", "1 second", "10 minutes". Raises ValueError."""
        if isinstance(text, Duration):
            return text
        match = _DURATION.fullmatch(text.strip().lower()) if isinstance(text, str) else None
        if match is None or match[2] not in _UNITS_MS:
            raise ValueError('must be a number and a unit, as in "500 ms", "1 second" or "10 minutes"')
        return cls(int(match[1]) * _UNITS_MS[match[2]])

    def __str__(self) -> str:
        """In words that Spark's interval parser takes too."""
        for unit, size in (("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
            if self.ms and self.ms % size == 0:
                return f"{self.ms // size} {unit}{'' if self.ms == size else 's'}"
        return f"{self.ms} milliseconds"


def flatten(table: object, prefix: str = "") -> dict[str, str]:
    """Nested tables as one table of dotted names with text values.

    TOML reads an unquoted ``sasl.mechanism = ...`` as a table ``sasl`` with a field ``mechanism``; Kafka and Spark mean
    one name. Raises ValueError for lists and dates, and for a name that is written in both ways.
    """
    if not isinstance(table, Mapping):
        raise ValueError("must be a table")
    found: dict[str, str] = {}
    for name, value in table.items():
        full = f"{prefix}{name}"
        inner = flatten(value, f"{full}.") if isinstance(value, Mapping) else {full: _scalar(value)}
        if twice := sorted(set(inner) & set(found)):
            raise ValueError(f"{twice[0]} is given twice, in quotes and as a table; keep one of them")
        found |= inner
    return found


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("values must be text, numbers or booleans")


def _list_of_text(value: Any) -> Any:
    """One text for a list of one, or of several with commas: environment variables hold nothing else."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _offsets(value: object) -> str | dict[str, dict[int, int]]:
    if isinstance(value, str) and value in ("earliest", "latest"):
        return value
    if isinstance(value, Mapping) and value and all(_are_offsets(ends) for ends in value.values()):
        return {str(topic): {int(p): int(o) for p, o in ends.items()} for topic, ends in value.items()}
    raise ValueError(
        'must be "earliest", "latest" or a table of whole numbers, as in {invoices = {0 = 120, 1 = 95}} (-2 earliest, -1 latest)'
    )


def _are_offsets(ends: object) -> bool:
    """Nothing is rounded or guessed: 120.7 would begin at 120, true at 1, and 0 and 00 are one partition.

    A number as text is one too: environment variables hold nothing else.
    """
    if not isinstance(ends, Mapping):
        return False
    return all(
        _PARTITION.fullmatch(str(partition)) and type(offset) in (int, str) and _OFFSET.fullmatch(str(offset))
        for partition, offset in ends.items()
    )


def _whole(value: object) -> object:
    """A number as text is one too: environment variables hold nothing else. Neither true nor 4.0 is meant as a number."""
    if isinstance(value, bool | float):
        raise ValueError("must be a whole number")
    return value


Offsets = Annotated[str | dict[str, dict[int, int]], PlainValidator(_offsets)]
DurationField = Annotated[Duration, PlainValidator(Duration.parse)]
Options = Annotated[dict[str, str], BeforeValidator(flatten)]
Count = Annotated[PositiveInt, BeforeValidator(_whole)]
NonEmpty = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
TopicName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
TopicNames = Annotated[tuple[TopicName, ...], BeforeValidator(_list_of_text)]
ViewName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,127}$")]
PipelineName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
