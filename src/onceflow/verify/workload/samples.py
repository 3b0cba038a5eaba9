"""The user's own sample of a topic: JSON Lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onceflow import json_numbers
from onceflow.errors import ConfigurationError
from onceflow.verify.workload.inputs import Headers, Record

_WHOLE = {"key", "value", "headers"}


def read_sample(path: Path) -> list[Record]:
    """The records in a file of JSON Lines. Raises ConfigurationError with every mistake.

    A line that is an object of ``value`` and perhaps ``key`` and ``headers`` (an object of texts), and of nothing else, is a
    record; any other line is a record's value. Text is written as it is, everything else as JSON;
    numbers keep their digits.
    """
    try:
        # Not splitlines: U+2028 and the like end no line of JSON, and may stand in a text.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError.of(str(path), [f"the file cannot be read: {reason}"]) from None
    records: list[Record] = []
    mistakes: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            records += [_record(json_numbers.read(line), line)] if line.strip() else []
        except ValueError as error:
            mistakes.append(f"line {number}: {error}")
        except RecursionError:
            mistakes.append(f"line {number}: it is nested too deeply")
    if not records and not mistakes:
        mistakes.append("the file holds no record; give it one JSON value a line")
    if mistakes:
        raise ConfigurationError.of(str(path), mistakes)
    return records


def _record(document: Any, line: str) -> Record:
    if not isinstance(document, dict) or "value" not in document or set(document) - _WHOLE:
        return Record(None, _bytes(document) if isinstance(document, str) else line.strip().encode())
    return Record(_bytes(document.get("key")), _bytes(document["value"]), _headers(document.get("headers")))


def _headers(given: Any) -> Headers:
    if not isinstance(given or {}, dict):
        raise ValueError('headers must be an object, as in {"origin": "shop"}')
    return tuple((_name(name), _bytes(value) or b"") for name, value in (given or {}).items())


def _name(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} can be no header's name: half of a pair of surrogates stands for no sign") from None
    return name


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str) and not isinstance(value, json_numbers.Number):
        return value.encode()
    return json_numbers.written(value, separators=(",", ":"), ensure_ascii=True).encode()
