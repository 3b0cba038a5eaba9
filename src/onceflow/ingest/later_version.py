"""Positions that a later version wrote, which may note what the version before it does not know.

Started again, that one would go on from a part of the position, and leave the rest out of the next one. It refuses instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from onceflow.errors import ConfigurationError


def check_known(kind: type, found: Mapping[str, Any], where: str) -> None:
    """Raises ConfigurationError where the JSON object has a member that the dataclass ``kind`` does not."""
    unknown = sorted(found.keys() - {field.name for field in fields(kind)})
    if unknown:
        raise ConfigurationError(
            f"the position of {where} was written by a later version, which notes what this one does not know: "
            + ", ".join(unknown),
            action="start that version or a later one, or choose another name, under which everything is sent again",
            where=where,
            mistakes=tuple(unknown),
        )
