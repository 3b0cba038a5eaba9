"""The transactions in a log: which batches are of one, and what became of it.

A producer has one transaction at a time, and its marker on each partition ends what it wrote there. On all partitions together a
transaction is told by producer id and epoch: what the pipeline commits or aborts, a batch or a claim, always runs under an epoch
that no earlier request has used. Producers of others use one for all that they commit (version 1): there the n-th on each
partition are taken for one, though it is not known that they belong together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.verify.cluster.placement import GROUPS_TOPIC
from onceflow.verify.history.coding import Ints, plain_numbers
from onceflow.verify.history.columns import Mask
from onceflow.verify.recording.log import Log
from onceflow.verify.recording.tables import Place

Name = tuple[int, int, int]
"""Producer id, epoch, and how many transactions of this epoch were before it."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """Numbered by producer id and epoch.

    ``status``, by number: "ok", "fail" (aborted) or "info" (open). ``of_batch`` is the number of the transaction of each row of
    the log's batches, -1 for a row of none; ``is_committed`` and ``is_ended`` say of each row whether a marker there has
    committed it, or ended it at all.
    ``of_given`` is the number for each row of the log's positions, -1 for one outside of transactions; ``given_at`` the offset of
    the group's log from which on it was so: of the marker that committed it there, or its own; -1 where it never was.
    """

    names: tuple[Name, ...]
    status: tuple[str, ...]
    of_batch: Ints
    is_committed: Mask
    is_ended: Mask
    of_given: Ints
    given_at: Ints


@dataclass(slots=True)
class _Part:
    """What a transaction wrote to one partition: rows of the log's batches."""

    name: Name
    rows: list[int] = field(default_factory=list)
    outcome: str = ""  # "commit" or "abort", by its marker
    ended: int = -1  # the offset of that


def transactions_of(log: Log) -> Transactions:
    """The transactions of a log."""
    parts = _parts(log.batches.to_pylist())
    by_name: dict[Name, list[_Part]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    order = sorted(by_name)
    number = {name: place for place, name in enumerate(order)}
    of_batch = np.full(len(log.batches), -1, np.int64)
    is_committed, is_ended = (np.zeros(len(log.batches), bool) for _ in range(2))
    visible_at = plain_numbers(log.batches["first"]).copy()
    for part in parts:
        of_batch[part.rows] = number[part.name]
        is_committed[part.rows] = part.outcome == "commit"
        is_ended[part.rows] = part.outcome != ""
        visible_at[part.rows] = part.ended if part.outcome == "commit" else -1
    row = _rows_of_given(log)
    status = tuple(_status(each.outcome for each in by_name[name]) for name in order)
    return Transactions(tuple(order), status, of_batch, is_committed, is_ended, of_batch[row], visible_at[row])


def _parts(batches: list[dict[str, Any]]) -> list[_Part]:
    parts: list[_Part] = []
    unended: dict[tuple[Place, int], list[_Part]] = {}
    ended: Counter[tuple[Place, int, int]] = Counter()
    for row, batch in enumerate(batches):
        place, producer, epoch = (batch["topic"], batch["partition"]), batch["producer"], batch["epoch"]
        theirs = unended.setdefault((place, producer), [])
        if batch["kind"] == "records":
            if not theirs or theirs[-1].name[1] != epoch:
                theirs.append(_Part((producer, epoch, ended[place, producer, epoch])))
                parts.append(theirs[-1])
            theirs[-1].rows.append(row)
        elif batch["kind"] in ("commit", "abort"):
            for part in theirs:
                part.outcome, part.ended = batch["kind"], batch["first"]
                ended[place, producer, part.name[1]] += 1
            theirs.clear()
    return parts


def _status(outcomes: Iterable[str]) -> str:
    """A transaction that is committed on one partition is committed; whatever is not so elsewhere is torn from it."""
    found = set(outcomes)
    if "commit" in found:
        return "ok"
    return "info" if "" in found else "fail"


def _rows_of_given(log: Log) -> Ints:
    """For each row of the positions that of its batch."""
    kept = np.flatnonzero(np.asarray(pc.equal(log.batches["topic"].cast(pa.string()), GROUPS_TOPIC), bool))
    at = np.searchsorted(plain_numbers(log.batches["first"])[kept], plain_numbers(log.given["first"]))
    return kept[at]
