"""Less to draw where more could not be seen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Span = tuple[float, float]


def thin(at: Floats, value: Floats, buckets: int) -> tuple[Floats, Floats]:
    """At most ``2 * buckets + 2`` points, in order: the first, the last, and the extremes of each stretch of time.

    Peaks stay, therefore. What is not finite is left out.
    """
    finite = np.isfinite(at) & np.isfinite(value)
    order = np.argsort(at[finite], kind="stable")
    at, value = at[finite][order], value[finite][order]
    if len(at) <= 2 * buckets + 2:
        return at, value
    edges = np.searchsorted(at, np.linspace(at[0], at[-1], buckets + 1)[1:-1])
    stretches = [(a, b) for a, b in pairwise([0, *edges.tolist(), len(at)]) if a < b]
    lows = [a + int(value[a:b].argmin()) for a, b in stretches]
    highs = [a + int(value[a:b].argmax()) for a, b in stretches]
    chosen = np.unique([0, len(at) - 1, *lows, *highs])
    return at[chosen], value[chosen]


def unbroken(at: Floats, value: Floats) -> list[tuple[Floats, Floats]]:
    """What is between numbers that are not finite: a line must not go over what is not known."""
    finite = np.flatnonzero(np.isfinite(at) & np.isfinite(value))
    runs = np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1)
    return [(at[run], value[run]) for run in runs if len(run)]


def places(at: Sequence[float], end: float, most: int) -> Floats:
    """Where something happened; if that is more often than ``most``, rounded to about ``most`` places up to ``end``."""
    exact = np.unique(np.asarray(at, np.float64))
    if len(exact) <= most:
        return exact
    step = max(end, 1e-9) / most
    return np.unique(np.round(exact / step)) * step


def tracks(spans: Sequence[Span], most: int) -> list[list[Span]]:
    """The spans on as few tracks as possible, none over another on its track; what finds no place joins the last one."""
    found: list[list[Span]] = []
    for span in sorted(spans):
        free = next((track for track in found if track[-1][1] <= span[0]), None)
        if free is None and len(found) < most:
            found.append([span])
        else:
            (found[-1] if free is None else free).append(span)
    return found


def merged(spans: Sequence[Span], most: int, end: float) -> list[Span]:
    """The spans as they are; if they are more than ``most``, those that touch on paper are one."""
    if len(spans) <= most:
        return list(spans)
    near = max(end, 1e-9) / most
    found: list[Span] = []
    for began, ended in sorted(spans):
        if found and began <= found[-1][1] + near:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found
