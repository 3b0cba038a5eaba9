"""Values that fit a schema, from a seed: few different ones, so that groups and joins have members, and a clock that goes on.

Fractions are multiples of a quarter: their sums do not depend on the order in which they are added. Times rise by 100 ms a
record with some disorder, so that watermarks pass windows.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from onceflow.verify.workload.ddl import Field, Type

NULLS = 0.03
_WORDS = [f"{letter}{number}" for letter in "abcd" for number in range(6)]
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_STEP = timedelta(milliseconds=100)
_DISORDER_STEPS = 20
_MOST_ELEMENTS = 3
_LARGEST = {"tinyint": 100, "smallint": 1000, "int": 1000, "bigint": 1000}

Make = Callable[[], Any]


class Values:
    """The rows of one topic, as what ``json.dumps`` takes."""

    def __init__(self, fields: Sequence[Field], chance: random.Random) -> None:
        self._chance = chance
        self._rows = 0
        self._make = self._members(fields)

    def row(self) -> dict[str, Any]:
        """The next row."""
        self._rows += 1
        made: dict[str, Any] = self._make()
        return made

    def _members(self, fields: Sequence[Field]) -> Make:
        makers = {field.name: self._field(field) for field in fields}
        return lambda: {name: make() for name, make in makers.items()}

    def _field(self, field: Field) -> Make:
        make = self._maker(field.type)
        if not field.nullable:
            return make
        return lambda: None if self._chance.random() < NULLS else make()

    def _maker(self, kind: Type) -> Make:
        name = kind.name
        if name in _LARGEST:
            return lambda: self._chance.randint(-10, _LARGEST[name])
        if name == "decimal":
            return self._decimal(*kind.sizes)
        if name in ("array", "map", "struct"):
            return self._nested(kind)
        plain: dict[str, Make] = {
            "float": self._fraction,
            "double": self._fraction,
            "boolean": lambda: self._chance.random() < 0.5,
            "binary": lambda: base64.b64encode(self._word().encode()).decode(),
            "date": lambda: self._now().date().isoformat(),
            "timestamp": lambda: self._local_time() + "Z",
            "timestamp_ltz": lambda: self._local_time() + "Z",
            "timestamp_ntz": self._local_time,
            "string": self._word,
            "variant": self._word,
            "char": lambda: self._word()[: kind.sizes[0]],
            "varchar": lambda: self._word()[: kind.sizes[0]],
        }
        return plain.get(name, lambda: None)  # what JSON cannot bring (intervals) stays null

    def _nested(self, kind: Type) -> Make:
        if kind.name == "struct":
            return self._members(kind.fields)
        elements = [self._maker(element) for element in kind.elements]
        if kind.name == "array":
            return lambda: [elements[0]() for _ in self._few()]
        return lambda: {str(elements[0]()): elements[1]() for _ in self._few()}

    def _decimal(self, precision: int = 10, scale: int = 0) -> Make:
        whole = min(1000, 10 ** (precision - scale) - 1)
        quarters = 4 if scale >= 2 else 1
        return lambda: self._chance.randint(-quarters * whole, quarters * whole) / quarters

    def _few(self) -> range:
        return range(self._chance.randint(0, _MOST_ELEMENTS))

    def _word(self) -> str:
        return self._chance.choice(_WORDS)

    def _fraction(self) -> float:
        return self._chance.randint(-40, 4000) / 4

    def _now(self) -> datetime:
        return _BEGIN + (self._rows - self._chance.randrange(_DISORDER_STEPS)) * _STEP

    def _local_time(self) -> str:
        return self._now().replace(tzinfo=None).isoformat(timespec="milliseconds")
