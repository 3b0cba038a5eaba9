"""Recovery times as dots, one row a kind of fault, with the goals as lines."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from onceflow.verify.report.goals import RECOVERY_P50_S, RECOVERY_P99_S, times_by_fault
from onceflow.verify.report.svg import LABEL, STYLE, Ink, inline, panels
from onceflow.verify.report.text import counted, cut, writable
from onceflow.verify.report.thinning import places
from onceflow.verify.result import Recovery

ROW_IN = 0.24
ROWS = 20
_ROOM = 0.12  # of the axis, for the name of a goal


def recovery_plot(recoveries: Sequence[Recovery], name: str, detail: int) -> str:
    """The dots as an ``<svg>`` element; ``detail`` as for the timeline."""
    kinds = [times for times in times_by_fault(recoveries) if times.fault != "all"]
    rows = kinds[:ROWS]
    known = [each.seconds for each in recoveries if each.seconds is not None]
    right = 1.14 * max([RECOVERY_P99_S, *known])
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure, (axes,) = panels([ROW_IN * len(rows) + 0.12])
        _draw_goals(axes, right)
        for place, times in enumerate(rows):
            finite = places(
                [each for each in times.sorted_s if np.isfinite(each)], right, min(150, max(8, detail // 8))
            )
            axes.plot(finite, [place] * len(finite), "o", ms=4.5, color=Ink.DRIVER, alpha=0.65, mew=0)
            if not np.isfinite(times.sorted_s[-1]):
                axes.plot([right], [place], "x", ms=7, mew=1.8, color=Ink.FAULT, clip_on=False)
        axes.set_yticks(range(len(rows)), [cut(writable(times.fault), LABEL) for times in rows])
        axes.set_ylim(len(rows) - 0.4, -0.9)
        axes.set_xlim(0, right)
        axes.set_xlabel(
            "seconds from the loss to the first new record that is visible; a cross: none ever came"
            + _rest(len(kinds) - len(rows))
        )
        drawn = sum(len(times.sorted_s) for times in rows)
        return inline(figure, name, f"Recovery times of {counted(drawn, 'fault')} with the goals.")


def _rest(kinds: int) -> str:
    return f"; {counted(kinds, 'kind')} more in the table alone" if kinds else ""


def _draw_goals(axes: Axes, right: float) -> None:
    """Where the axis is so long that the names of both would lie over each other, the second line has both."""
    p50, p99 = f"p50 goal {RECOVERY_P50_S:g} s", f"p99 goal {RECOVERY_P99_S:g} s"
    if (RECOVERY_P99_S - RECOVERY_P50_S) / right < _ROOM:
        p50, p99 = "", f"{p50}, {p99}"
    for text, at in ((p50, RECOVERY_P50_S), (p99, RECOVERY_P99_S)):
        axes.axvline(at, color=Ink.TEXT, lw=1, ls=(0, (4, 3)))
        place = axes.get_xaxis_transform()
        axes.text(at + right / 200, 1.0, text, transform=place, va="top", ha="left", fontsize=7.5, color=Ink.MUTED)
