"""What can be done before a plan runs, as ``onceflow run --standby`` does it, so that a process that waits takes over at once."""

from __future__ import annotations

import threading
from pathlib import Path

from onceflow.config import PlanFile
from onceflow.kafka.settings import ClusterSettings
from onceflow.pipeline.rehearsal import Rehearsal
from onceflow.pipeline.runner import session


def cluster_of(file: PlanFile) -> ClusterSettings:
    """The private cluster that the plan names."""
    assert file.plan.kafka.bootstrap_servers is not None
    return ClusterSettings.of(file.plan.kafka.bootstrap_servers)


def warm_up(file: PlanFile, settings: ClusterSettings, enough: threading.Event) -> Rehearsal:
    """A session like the runner's, and the plan rehearsed in it until that is ``enough``.

    Its scratch is the working directory, which the supervisor made for it. The checkpoint is not looked at.
    """
    scratch = Path.cwd()
    rehearsal = Rehearsal(file, session(file, "error", scratch), settings, scratch, enough)
    rehearsal.run()
    return rehearsal
