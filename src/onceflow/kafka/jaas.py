"""The one-line JAAS text of Kafka's ``sasl.jaas.config``, read for Python's clients and written for Java's.

``<login module class> required username="..." password="...";``. Values may stand in double quotes, where a backslash
escapes a quote or a backslash; Java's other escapes (newline, octal) are not taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_QUOTED = r'"(?:[^"\\]|\\[\\"])*"'
_ENTRY = re.compile(rf"(\w+)\s*=\s*({_QUOTED}|[^\s;\"=]+)")
_TEXT = re.compile(
    rf"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)((?:\s+\w+\s*=\s*(?:{_QUOTED}|[^\s;\"=]+))*)\s*;\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Login:
    """What a JAAS text says."""

    module: str
    username: str
    password: str = field(repr=False)


def parse(text: str) -> Login:
    """The login of a JAAS text with one entry. Raises ValueError whose message holds nothing of the text."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError('is not of the form <login module> required username="..." password="...";')
    entries = {name: _unquoted(value) for name, value in _ENTRY.findall(match[2])}
    missing = [name for name in ("username", "password") if name not in entries]
    if missing:
        raise ValueError(f"has no {' and no '.join(missing)}")
    return Login(match[1], entries["username"], entries["password"])


def write(module: str, username: str, password: str) -> str:
    """The JAAS text for a user name and password of any characters."""
    return f"{module} required username={_quoted(username)} password={_quoted(password)};"


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
