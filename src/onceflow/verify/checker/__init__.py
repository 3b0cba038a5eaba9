"""The checker: finds in any history what must not happen. One pure function an anomaly, a history in, findings out."""

from onceflow.verify.checker.compared import Compared
from onceflow.verify.checker.evidence import Evidence
from onceflow.verify.checker.function import Function
from onceflow.verify.checker.registry import CHECKS, Check
from onceflow.verify.checker.replay import diverged_output, unproved_output
from onceflow.verify.checker.replays import Replay, expand, per_record
from onceflow.verify.checker.shrink import shrink
from onceflow.verify.checker.verdict import Verdict, check_history

__all__ = [
    "CHECKS",
    "Check",
    "Compared",
    "Evidence",
    "Function",
    "Replay",
    "Verdict",
    "check_history",
    "diverged_output",
    "expand",
    "per_record",
    "shrink",
    "unproved_output",
]
