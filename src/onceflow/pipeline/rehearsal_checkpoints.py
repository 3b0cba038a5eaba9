"""The checkpoints of standbys that rehearse on a cluster, in the directory ``_rehearsals`` of the pipeline's own.

Each has the time of its beginning in its name: a store like S3 does not tell when a directory was changed.
"""

from __future__ import annotations

import logging
import re
import time
import uuid

from onceflow.pipeline.checkpoint import REHEARSALS, Checkpoint

log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9]+-[0-9a-f]{32}")
_LEFT_BEHIND_S = 3600.0


class RehearsalCheckpoints:
    """Those of one pipeline's standbys. Runs on the driver."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def begin(self) -> str:
        """A location of its own. What was left behind an hour ago, by a driver that took over or was killed, is removed."""
        for name in self._checkpoint.entries(REHEARSALS):
            began, _, _ = name.partition("-")
            if _NAME.fullmatch(name) and time.time() - int(began) > _LEFT_BEHIND_S:
                self._remove(name)
        return f"{self._checkpoint.location.rstrip('/')}/{REHEARSALS}/{time.time():.0f}-{uuid.uuid4().hex}"

    def remove(self, location: str) -> None:
        """Removes what ``begin`` gave."""
        self._remove(location.rpartition("/")[2])

    def _remove(self, name: str) -> None:
        try:
            self._checkpoint.remove(f"{REHEARSALS}/{name}")
        except Exception as error:  # noqa: BLE001  whatever Java says: it is left for the next one
            log.info("%s of the checkpoint's %s is left behind: %s", name, REHEARSALS, error)
