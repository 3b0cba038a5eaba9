"""Names that Kafka takes, and those that are onceflow's own."""

from __future__ import annotations

import re

NUL = "\0"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PIPELINE = re.compile(r"[A-Za-z0-9._-]{1,200}")
_NOT_PIPELINES = ("ingest-", "outbox-")
PROGRESS_TOPIC = "onceflow-progress"
PROBE_TOPIC = "onceflow-probe"
"""What is committed for it tells whether whoever answers is up to date. Like the other, it holds no record."""
POSITIONS = "onceflow-positions-"
"""What the topics of positions begin with."""


def is_topic(name: str) -> bool:
    """Whether a topic may be called so."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def is_own(topic: str) -> bool:
    """Whether a topic is one in which onceflow keeps what is committed."""
    return topic in (PROGRESS_TOPIC, PROBE_TOPIC) or topic.startswith(POSITIONS)


def is_pipeline(name: str) -> bool:
    """Whether a pipeline, a relay or a source may: groups and transactional ids are made of it, with something in front."""
    return _PIPELINE.fullmatch(name) is not None


def taken_by(name: str) -> str:
    """Why a pipeline cannot have a name: its group and transactional id are an ingest's or a relay's. Empty if it can.

    The two would fence each other, and each take the other's progress for its own.
    """
    kind = next((kind for kind in _NOT_PIPELINES if name.startswith(kind)), "")
    if not kind:
        return ""
    return f"its transactional id is that of the {kind.rstrip('-')} {name.removeprefix(kind)!r}; choose another one"


def no_nul(name: str, text: str) -> str:
    """The mistake of a name that would be another one on the wire; empty if it would not."""
    return f"{name}: {text!r} has a NUL, where librdkafka cuts names off" if NUL in text else ""
