"""JSON whose numbers keep their digits: read as numbers, ``1e400`` would be infinite, and ``1.10`` and ``1.1`` the same."""

from __future__ import annotations

import json
from typing import Any


class Number(str):
    """A number as it is written."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=Number)


def read(text: str) -> Any:
    """As ``json.loads``, but for the numbers. Raises ValueError (json.JSONDecodeError), RecursionError."""
    return _DECODER.decode(text)


def written(value: Any, *, separators: tuple[str, str] = (", ", ": "), ensure_ascii: bool = False) -> str:
    """As ``json.dumps`` of what was read, but for the numbers."""

    def text(part: Any) -> str:
        if isinstance(part, Number):
            return part
        if isinstance(part, list):
            return f"[{comma.join(map(text, part))}]"
        if isinstance(part, dict):
            return "{" + comma.join(f"{text(name)}{colon}{text(member)}" for name, member in part.items()) + "}"
        return json.dumps(part, ensure_ascii=ensure_ascii)

    comma, colon = separators
    return text(value)
