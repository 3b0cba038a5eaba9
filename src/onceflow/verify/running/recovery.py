"""How long a fault kept new output from readers, and for how long a dead instance held the last stable offset."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from onceflow.verify.result import Encounter, Lost, Recovery
from onceflow.verify.running.new_output import NOBODY, Output

_LOOKED_WITHIN_S = 3.0
_ON_THE_WIRE_S = 1.0


@dataclass(frozen=True, slots=True)
class Strike:
    """A signal to a running driver, of which it died (SIGKILL) or stopped (SIGSTOP), or its end by itself: only another one
    brings new output. Or a SIGKILL to another process, without which the same driver goes on.

    ``generation`` is that of the driver that was struck; it may still commit what it has sent, if its Python lives.
    """

    fault: str
    at_s: float
    kills: bool = True
    lost: Lost = Lost.DRIVER
    generation: int = NOBODY


def recoveries(strikes: Sequence[Strike], output: Output, encounters: Sequence[Encounter] = ()) -> list[Recovery]:
    """For each kill that ended the output: until the first record of a batch that was not yet committed then, as a
    read_committed reader saw it (``Output.new_since``).

    A driver that is struck again while it recovers counts from the first kill, for that is since when there was no output.
    ``encounters`` are all faults in the order of time: a recovery says which others than its own had a hand in it, and names its
    own where that strikes twice::

        pause-standby    SIGSTOP to a standby, SIGKILL to the driver: a recovery of one loss
                         the standby wakes, and fences the successor, which ends: with two standbys none is left that is warm
    """
    found = []
    over_s = -math.inf
    for strike in strikes:
        if not strike.kills or strike.at_s < over_s:
            continue
        visible_s = output.new_since(strike.at_s, strike.generation)
        seconds = None if visible_s is None else visible_s - strike.at_s
        over_s = math.inf if visible_s is None else visible_s
        before_s = _began(encounters, strike)
        again = (
            each.fault
            for each in strikes
            if each.fault == strike.fault
            # A driver that is stopped, and ends by itself when it wakes, is one loss.
            and (strike.at_s < each.at_s < over_s or (each.kills and before_s <= each.at_s < strike.at_s))
        )
        others = (*_others(encounters, strike.at_s, visible_s), *again)
        last_s, then_s = _from_the_last_kill(strikes, output, strike)
        found.append(Recovery(strike.fault, strike.at_s, seconds, others, last_s - strike.at_s, then_s, strike.lost))
    return found


def others_lost(encounters: Sequence[Encounter], kills: Collection[str]) -> list[Strike]:
    """Each of the faults ``kills`` that met work: SIGKILL to a process that the driver has to go on without."""
    return [Strike(each.fault, each.at_s, lost=Lost.OTHER) for each in encounters if each.met and each.fault in kills]


def _began(encounters: Sequence[Encounter], strike: Strike) -> float:
    """When the strike's own fault did; the strike itself, where that is not known."""
    return max((each.at_s for each in encounters if each.at_s <= strike.at_s), default=strike.at_s)


def _from_the_last_kill(strikes: Sequence[Strike], output: Output, first: Strike) -> tuple[float, float | None]:
    """When the last one came, and for how long there was no new output from then on; None if there was no other than the first.

    A driver that ends by itself does not count as killed again: that is its own doing. And a kill has its own time, though the
    first one's is over::

        13.8  the successor begins to commit batch 5, and is killed at 13.9
        14.0  batch 5 is visible: over, as seen from the first kill; but the next batch comes at 18
    """
    kills = [each for each in strikes if each.kills and each.lost is not Lost.ENDED]
    last = first
    while True:
        visible_s = output.new_since(last.at_s, last.generation)
        until_s = math.inf if visible_s is None else visible_s
        later = [each for each in kills if last.at_s < each.at_s < until_s]
        if not later:
            break
        last = max(later, key=lambda each: each.at_s)
    return last.at_s, None if visible_s is None or last is first else visible_s - last.at_s


def _others(encounters: Sequence[Encounter], at_s: float, until_s: float | None) -> tuple[str, ...]:
    """The faults before the strike's own in its row, and those that came before the recovery was over."""
    own = sum(each.at_s <= at_s for each in encounters) - 1
    first = own
    while first > 0 and encounters[first].in_row:
        first -= 1
    after = [each for each in encounters[own + 1 :] if until_s is None or each.at_s < until_s]
    return tuple(each.fault for each in [*encounters[max(first, 0) : max(own, 0)], *after])


def longest_hold(
    samples: pa.Table, strikes: Sequence[Strike], first_steps: Mapping[int, float] = MappingProxyType({})
) -> float | None:
    """The longest time after a strike for which a partition's last stable offset stood below the end of its log.

    ``samples`` have the columns topic, partition, at_s, stable, end, answered_s; ``first_steps`` tell by generation when each
    driver began to act. None: nothing was struck, or it is not known, since nobody looked afterwards. Two samples more than it
    was at most, since it is seen only when looked at; where nobody looked, or was answered, for a while behind the strike, that
    while may have been a hold, and counts. But not of a partition that was added after the strike.
    """
    if not strikes:
        return None
    lanes = _lanes(samples)
    first_look = min((at_s[0] for at_s, *_ in lanes), default=0.0)
    found = [
        _held_s(at_s, answered_s, stable < end, _lasting(stable, end), strike.at_s, _followed_s(strike, first_steps))
        for at_s, answered_s, stable, end in lanes
        for strike in strikes
        # One that was added may have been there for so long before it was known.
        if at_s[0] == first_look or strike.at_s >= at_s[0] - _LOOKED_WITHIN_S
    ]
    known = [each for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None


def _lanes(samples: pa.Table) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """The samples of each partition in the order of time."""
    plain = samples.set_column(samples.schema.get_field_index("topic"), "topic", samples["topic"].cast(pa.string()))
    rows = plain.sort_by([("topic", "ascending"), ("partition", "ascending"), ("at_s", "ascending")])
    names = np.asarray(rows["topic"].to_pylist(), dtype=object)
    partitions = rows["partition"].to_numpy()
    if not len(names):
        return []
    breaks = np.flatnonzero((names[1:] != names[:-1]) | (partitions[1:] != partitions[:-1])) + 1
    columns = [np.split(rows[name].to_numpy(), breaks) for name in ("at_s", "answered_s", "stable", "end")]
    return list(zip(*columns, strict=True))


def _lasting(stable: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which samples show a hold that the next one shows as well. The end is asked for behind the last stable offset, so that a
    record of somebody else's, written and committed in between, looks like one that is held.
    """
    lasting: np.ndarray = np.append(stable[1:], np.iinfo(np.int64).max) < end
    return lasting


def _followed_s(strike: Strike, first_steps: Mapping[int, float]) -> float:
    """When another driver began to act behind one that was killed at its work; never, if none did. Before any time: that is not
    known, or the driver was only stopped, and may have gone on.
    """
    if not strike.kills or strike.generation not in first_steps:
        return -math.inf
    return min((at_s for generation, at_s in first_steps.items() if generation > strike.generation), default=math.inf)


def _held_s(
    at_s: np.ndarray,
    answered_s: np.ndarray,
    held: np.ndarray,
    lasting: np.ndarray,
    strike_s: float,
    followed_s: float,
) -> float | None:
    """None: there is no sample behind the strike. What was still on the wire then may open a transaction a moment later; and all
    that opens before another driver acts (``followed_s``) is of the dead one::

        10.0   SIGKILL to the driver
        12.5   an executor of its, which has not missed it yet, runs the next task, and opens the partition that this writes to
        31.0   the next driver fences

    What a sample shows is known of the moment at which it was answered, and all of it was before the next one was asked for.
    """
    first = int(np.searchsorted(at_s, strike_s))
    if first >= len(at_s):
        return None
    at_once = held[first] or answered_s[first] > strike_s + _LOOKED_WITHIN_S
    soon = np.flatnonzero(held[first:] & (at_s[first:] < strike_s + _ON_THE_WIRE_S))
    alone = np.flatnonzero(lasting[first:] & (np.append(at_s[first + 1 :], math.inf) < followed_s))
    seen = [*([0] if at_once else []), *soon[:1], *alone[-1:]]
    if not seen:
        return 0.0
    first += int(max(seen))
    free = np.flatnonzero(~held[first:])
    until = answered_s[first + int(free[0])] if len(free) else answered_s[-1]
    return float(until - strike_s)
