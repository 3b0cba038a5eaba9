"""What a reader is to do, as a file that its process is given."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

GROUP = "onceflow-verify-effects"
SESSION_TIMEOUT_S = 6.0  # the least that a broker allows by default
PARTITIONS_FOUND_MS = (
    10_000  # so often a reader looks for partitions that a fault has added; by default every five minutes
)


@dataclass(frozen=True, slots=True)
class Job:
    """The cluster, the topics, and the file that holds the store and the effects."""

    servers: str
    topics: tuple[str, ...]
    file: str
    group: str = GROUP

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**fields, "topics": tuple(fields["topics"])})
