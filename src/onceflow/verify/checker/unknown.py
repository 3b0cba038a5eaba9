"""What stands for the offset or the value of a record that nobody knows, where a function is asked what it makes of it.

It may be handed on (``yield key, value``). What else is done with it cannot be done, and is noticed, also where the function
goes on as if nothing had happened. Only what asks nothing of it is not: ``type(value)``, ``value is other``, and
``callable(value)``, which is as false as of any text or number.
"""

from __future__ import annotations

from typing import Any, NoReturn


class UnknownUsed(TypeError):
    """The function needs to know what is not known."""


class Unknown:
    """It has no attribute, no operator works on it, it cannot be called, and nothing can be made of it."""

    __slots__ = ("_uses",)

    def __init__(self) -> None:
        object.__setattr__(self, "_uses", [])

    def __getattribute__(self, _: str) -> NoReturn:
        _refuse(self)


def was_used(unknown: Unknown) -> bool:
    """Whether a function did anything with it but hand it on."""
    return bool(object.__getattribute__(unknown, "_uses"))


def _refuse(unknown: Unknown, *_: Any) -> NoReturn:
    object.__getattribute__(unknown, "_uses").append(True)
    raise UnknownUsed


_OPERATORS = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "or",
)
_REFLECTED = tuple(f"r{each}" for each in (*_OPERATORS, "xor"))
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "contains")
_TEXT = ("str", "repr", "format", "bytes", "fspath", "dir")
_NUMBER = ("int", "float", "complex", "index", "neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil")
_HELD = ("len", "length_hint", "iter", "next", "reversed", "getitem", "setitem", "delitem", "enter", "setattr")
_COPIED = ("reduce", "reduce_ex", "copy", "deepcopy", "array")
for _name in (*_OPERATORS, "xor", *_REFLECTED, *_COMPARED, *_TEXT, *_NUMBER, *_HELD, *_COPIED):
    setattr(Unknown, f"__{_name}__", _refuse)  # Python looks for these in the class alone
