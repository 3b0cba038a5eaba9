"""That a pipeline stands still, told apart from all else for which a run breaks off."""

from __future__ import annotations

from onceflow.errors import VerificationError


class Stuck(VerificationError):
    """No batch is committed any more, though nothing is in the pipeline's way.

    An anomaly, and no accident of the run: that what it should have read is not read (``stuck_progress``) is then its fault.
    """
