"""A schema as Spark writes it (``id STRING, items ARRAY<STRUCT<sku: STRING, price: DECIMAL(8, 2)>>``), without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onceflow.errors import ConfigurationError

_TOKEN = re.compile(
    r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:]|\S)"
)
_ALIASES = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float", "dec": "decimal",
    "numeric": "decimal", "character": "char",
}  # fmt: skip
_ELEMENTS = {"array": 1, "map": 2}
_SIZES = {"decimal": range(3), "char": range(1, 2), "varchar": range(1, 2)}  # of other types Spark alone judges them


@dataclass(frozen=True, slots=True)
class Type:
    """A type: its name in small letters, what stands in parentheses, the types of its elements, and its fields."""

    name: str
    sizes: tuple[int, ...] = ()
    elements: tuple[Type, ...] = ()
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """A named column or member."""

    name: str
    type: Type
    nullable: bool = True


def parse_ddl(text: str, where: str) -> tuple[Field, ...]:
    """The columns of a schema. Raises ConfigurationError; ``where`` names the place in it."""
    try:
        return _Parser(text).columns()
    except _Unreadable as error:
        raise ConfigurationError.of(where, [f"schema: {error}; it is {text!r}"]) from None


class _Unreadable(ValueError):
    pass


def _whole(kind: Type) -> Type:
    """The type. Raises _Unreadable if it has too few parameters, or too many: whoever makes values would stumble over it."""
    elements = _ELEMENTS.get(kind.name, 0)
    if len(kind.elements) != elements:
        raise _Unreadable(f"types between < and >: {kind.name} takes {elements}, and has {len(kind.elements)}")
    sizes = _SIZES.get(kind.name)
    if sizes is not None and len(kind.sizes) not in sizes:
        wanted = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"
        raise _Unreadable(f"numbers in parentheses: {kind.name} takes {wanted}, and has {len(kind.sizes)}")
    if kind.name == "decimal" and len(kind.sizes) == 2 and kind.sizes[1] > kind.sizes[0]:
        raise _Unreadable(f"decimal has {kind.sizes[0]} digits, of which {kind.sizes[1]} cannot stand behind the point")
    return kind


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [match[1] for match in _TOKEN.finditer(text)]
        self._at = 0

    def columns(self) -> tuple[Field, ...]:
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        if self._at < len(self._tokens):
            raise _Unreadable(f"{self._peek()!r} is not expected")
        return tuple(fields)

    def _field(self) -> Field:
        name = self._name()
        self._take(":")
        kind, nullable = self._type(), True
        while (word := self._peek().lower()) in ("not", "comment", "default"):
            self._at += 1
            if word == "not":
                self._need("null")
                nullable = False
            else:
                self._at += 1
        return Field(name, kind, nullable)

    def _type(self) -> Type:
        name = self._name().lower()
        name = _ALIASES.get(name, name)
        if name == "struct":
            return Type(name, fields=self._members())
        if self._take("<"):
            elements = [self._type()]
            while self._take(","):
                elements.append(self._type())
            self._need(">")
            return _whole(Type(name, elements=tuple(elements)))
        while name in ("interval", "timestamp") and self._peek().lower() in _WORDS_OF_A_TYPE:
            self._at += 1
        return _whole(Type(name, self._sizes()))

    def _members(self) -> tuple[Field, ...]:
        self._need("<")
        fields: list[Field] = []
        while not self._take(">"):
            if fields:
                self._need(",")
            fields.append(self._field())
        return tuple(fields)

    def _sizes(self) -> tuple[int, ...]:
        sizes: list[int] = []
        if self._take("("):
            while not self._take(")"):
                sizes.append(self._number())
                self._take(",")
        return tuple(sizes)

    def _number(self) -> int:
        token = self._next()
        if not token.isdigit():
            raise _Unreadable(f"{token!r} is not a number")
        return int(token)

    def _name(self) -> str:
        token = self._next()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise _Unreadable(f"{token!r} is not a name")
        return token

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise _Unreadable(f"{token!r} is missing before {self._peek()!r}")

    def _take(self, token: str) -> bool:
        found = self._peek().lower() == token
        self._at += found
        return found

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise _Unreadable("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""


_WORDS_OF_A_TYPE = frozenset(
    {"year", "month", "day", "hour", "minute", "second", "to", "with", "without", "local", "time", "zone"}
)
