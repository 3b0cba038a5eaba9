"""All checks, by the name of the anomaly that each finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from onceflow.verify.checker import isolation, missing, order, passing, places, processing, progress
from onceflow.verify.checker.evidence import Evidence

Find = Callable[[Evidence], pa.Table]


@dataclass(frozen=True, slots=True)
class Check:
    """A pure function from a history to its findings of one anomaly, whose first line of docstring is the definition."""

    find: Find
    judged: bool = True  # False: counted, but no violation of any guarantee

    @property
    def anomaly(self) -> str:
        return self.find.__name__

    @property
    def meaning(self) -> str:
        return (self.find.__doc__ or "").strip().splitlines()[0]


_JUDGED: Iterable[Find] = (
    missing.lost,
    missing.torn_transaction,
    missing.unseen,
    missing.effect_missing,
    places.duplicated,
    places.inconsistent_offsets,
    places.phantom,
    isolation.aborted_read,
    isolation.intermediate_read,
    isolation.wr_cycle,
    isolation.precommitted_read,
    order.poll_skip,
    order.nonmonotonic_poll,
    order.int_poll_skip,
    order.int_nonmonotonic_poll,
    order.nonmonotonic_send,
    order.int_nonmonotonic_send,
    processing.consumed_twice,
    passing.consumed_never,
    processing.effect_repeated,
    progress.hung_transaction,
    progress.stuck_progress,
    progress.torn_progress,
)

CHECKS = {check.anomaly: check for check in (*map(Check, _JUDGED), Check(order.int_send_skip, judged=False))}
"""Every check that needs nothing but the history. ``diverged_output`` needs the pipeline's function as well: ``replay.py``."""
