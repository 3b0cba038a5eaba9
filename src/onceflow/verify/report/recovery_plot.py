"""Recovery times as dots, one row a kind of fault, with the goals as lines."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from onceflow.verify.report.goals import RECOVERY_P50_S, RECOVERY_P99_S, times_by_fault
from onceflow.verify.report.svg import STYLE, Ink, inline, panels
from onceflow.verify.report.text import counted, cut, writable
from onceflow.verify.report.thinning import places
from onceflow.verify.result import Recovery

ROW_IN = 0.24
ROWS = 20


def recovery_plot(recoveries: Sequence[Recovery], name: str, detail: int) -> str:
    """The dots as an ``<svg>`` element; ``detail`` as for the timeline."""
    rows = [times for times in times_by_fault(recoveries) if times.fault != "all"][:ROWS]
    known = [each.seconds for each in recoveries if each.seconds is not None]
    right = 1.14 * max([RECOVERY_P99_S, *known])
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure, (axes,) = panels([ROW_IN * len(rows) + 0.12])
        _draw_goals(axes)
        for place, times in enumerate(rows):
            finite = places(
                [each for each in times.sorted_s if np.isfinite(each)], right, min(150, max(8, detail // 8))
            )
            axes.plot(finite, [place] * len(finite), "o", ms=4.5, color=Ink.DRIVER, alpha=0.65, mew=0)
            if not np.isfinite(times.sorted_s[-1]):
                axes.plot([right], [place], "x", ms=7, mew=1.8, color=Ink.FAULT, clip_on=False)
        axes.set_yticks(range(len(rows)), [cut(writable(times.fault), 26) for times in rows])
        axes.set_ylim(len(rows) - 0.4, -0.9)
        axes.set_xlim(0, right)
        axes.set_xlabel("seconds from the fault to the first new record that is visible; a cross: none ever came")
        return inline(figure, name, f"Recovery times of {counted(len(recoveries), 'fault')} with the goals.")


def _draw_goals(axes: Axes) -> None:
    for text, at in (
        (f"p50 goal {RECOVERY_P50_S:g} s", RECOVERY_P50_S),
        (f"p99 goal {RECOVERY_P99_S:g} s", RECOVERY_P99_S),
    ):
        axes.axvline(at, color=Ink.TEXT, lw=1, ls=(0, (4, 3)))
        place = axes.get_xaxis_transform()
        axes.text(at, 1.0, f" {text}", transform=place, va="top", ha="left", fontsize=7.5, color=Ink.MUTED)
