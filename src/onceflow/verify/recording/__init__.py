"""What the clients of a run did and saw, recorded in columns while it happens and once more at its end."""

from onceflow.verify.recording.ends import Observed, observe
from onceflow.verify.recording.final import read_all
from onceflow.verify.recording.log import Log, read_log
from onceflow.verify.recording.progress import ProgressWatcher
from onceflow.verify.recording.reader import ReadCommittedRecorder
from onceflow.verify.recording.recorded import Recorded
from onceflow.verify.recording.stable import StableWatcher, holds

__all__ = [
    "Log",
    "Observed",
    "ProgressWatcher",
    "ReadCommittedRecorder",
    "Recorded",
    "StableWatcher",
    "holds",
    "observe",
    "read_all",
    "read_log",
]
