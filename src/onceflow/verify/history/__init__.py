"""Histories: what clients of a log did and saw, as a table. The format is described in ``docs/history-format.md``."""

from onceflow.verify.history.columns import Columns
from onceflow.verify.history.files import read_history, write_history
from onceflow.verify.history.recorder import Recorder
from onceflow.verify.history.schema import SCHEMA, VERSION, Kind, Status
from onceflow.verify.history.validation import validate

__all__ = [
    "SCHEMA",
    "VERSION",
    "Columns",
    "Kind",
    "Recorder",
    "Status",
    "read_history",
    "validate",
    "write_history",
]
