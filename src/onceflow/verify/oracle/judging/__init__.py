"""From what was recorded and what was expected to a history, and from the history to a verdict."""

from onceflow.verify.oracle.judging.judge import Judgement, judge

__all__ = ["Judgement", "judge"]
