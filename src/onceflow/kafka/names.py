"""Names that Kafka takes."""

from __future__ import annotations

import re

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PIPELINE = re.compile(r"[A-Za-z0-9._-]{1,200}")


def is_topic(name: str) -> bool:
    """Whether a topic may be called so."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def is_pipeline(name: str) -> bool:
    """Whether a pipeline, a relay or a source may: groups and transactional ids are made of it, with something in front."""
    return _PIPELINE.fullmatch(name) is not None
