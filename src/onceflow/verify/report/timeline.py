"""A run over time: who lived, what failed, what was committed, and what a reader could see of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import EngFormatter, MaxNLocator

from onceflow.verify.report.svg import LABEL, STYLE, Ink, inline, panels
from onceflow.verify.report.text import counted, cut, writable
from onceflow.verify.report.thinning import Floats, Span, merged, places, thin, tracks, unbroken
from onceflow.verify.result import Happening, Lane, Recovery, RunResult, Series

ROW_IN, SERIES_IN = 0.21, 0.85
FAULT_ROWS, TRACKS, SERIES = 16, 4, 6
OTHERS = "other faults"
_BOX = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
_LIVES = {Lane.DRIVER: Ink.DRIVER, Lane.BROKER: Ink.BROKER, Lane.READER: Ink.READER}


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of bars or ticks."""

    name: str
    ink: Ink
    bars: list[Span]
    ticks: Floats
    recoveries: tuple[Recovery, ...] = ()


def timeline(result: RunResult, number: int, detail: int) -> str:
    """The timeline as an ``<svg>`` element; ``detail`` is about how many places of it are told apart from left to right."""
    end = _end(result)
    bars = max(4, detail // 8)
    rows = _rows(result, end, bars, detail)
    series = result.series[:SERIES]
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure, axes = panels([ROW_IN * max(len(rows), 1), *[SERIES_IN] * len(series)])
        _draw_rows(axes[0], rows, end)
        for panel, each in zip(axes[1:], series, strict=True):
            _draw_series(panel, each, detail)
        _shade(axes[1:], merged(_spans(result, Lane.FAULT), bars, end), end)
        axes[0].set_xlim(0, end)
        axes[-1].set_xlabel("seconds since the beginning of the run")
        return inline(figure, f"timeline-{number}", caption(result))


def caption(result: RunResult) -> str:
    """What the timeline shows, for those who do not see it."""
    lanes = Counter(each.lane for each in result.happenings)
    told = [
        counted(lanes[Lane.FAULT], "fault"),
        counted(lanes[Lane.DRIVER], "driver life", "driver lives"),
        counted(lanes[Lane.BATCH], "commit of a batch", "commits of batches"),
    ]
    return f"Timeline of {result.seconds:,.0f} seconds: {', '.join(told)}."


def _end(result: RunResult) -> float:
    times = [result.seconds, *(each.ended_s for each in result.happenings)]
    times += [each.at_s[-1].as_py() or 0.0 for each in result.series if len(each.at_s)]
    return max(1e-3, *(time for time in times if np.isfinite(time)))


def _spans(result: RunResult, lane: Lane) -> list[Span]:
    return [(each.began_s, each.ended_s) for each in result.happenings if each.lane is lane]


def _rows(result: RunResult, end: float, bars: int, detail: int) -> list[_Row]:
    rows = _fault_rows(result, end, bars)
    for lane, ink in _LIVES.items():
        for nth, track in enumerate(tracks(_spans(result, lane), TRACKS)):
            rows.append(_Row("" if nth else lane.value, ink, merged(track, bars, end), np.empty(0)))
    for lane, name in ((Lane.BATCH, "batch committed"), (Lane.NOTE, "note")):
        ended = [each.ended_s for each in result.happenings if each.lane is lane]
        if ended:
            rows.append(_Row(name, Ink.TEXT, [], places(ended, end, detail)))
    return rows


def _fault_rows(result: RunResult, end: float, bars: int) -> list[_Row]:
    faults = [each for each in result.happenings if each.lane is Lane.FAULT]
    kinds = Counter(each.name for each in faults)
    own = {name for name, _ in kinds.most_common(FAULT_ROWS)}
    rows = [_fault_row(name, [each for each in faults if each.name == name], result, end, bars) for name in sorted(own)]
    rest = [each for each in faults if each.name not in own]
    return [*rows, _fault_row(OTHERS, rest, result, end, bars)] if rest else rows


def _fault_row(name: str, faults: Sequence[Happening], result: RunResult, end: float, bars: int) -> _Row:
    spans = [(each.began_s, each.ended_s) for each in faults]
    # A kill takes no time, so that its bar has no width.
    kills = places([each.began_s for each in faults], end, bars)
    recoveries = tuple(each for each in result.recoveries if each.fault == name)[:bars]
    return _Row(name, Ink.FAULT, merged(spans, bars, end), kills, recoveries)


def _draw_rows(axes: Axes, rows: list[_Row], end: float) -> None:
    for place, row in enumerate(rows):
        if row.bars:
            axes.add_patch(PathPatch(_boxes(row.bars, place - 0.3, place + 0.3), fc=row.ink, ec=Ink.PAPER, lw=0.5))
        if len(row.ticks):
            bottom, top = np.full((2, len(row.ticks)), [[place - 0.3], [place + 0.3]])
            axes.plot(_strokes(row.ticks, row.ticks), _strokes(bottom, top), color=row.ink, lw=0.7)
        if row.recoveries:
            _draw_recoveries(axes, row.recoveries, place, end)
    axes.set_yticks(range(len(rows)), [cut(writable(row.name), LABEL) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)


def _draw_recoveries(axes: Axes, recoveries: Sequence[Recovery], place: int, end: float) -> None:
    """From the fault to the dot: no new output was visible. A cross at the end: none ever came."""
    began = np.array([each.at_s for each in recoveries], np.float64)
    ended = np.array([end if each.seconds is None else each.at_s + each.seconds for each in recoveries], np.float64)
    axes.plot(_strokes(began, ended), np.full(3 * len(began), place), color=Ink.TEXT, lw=0.8)
    came = [each.at_s + each.seconds for each in recoveries if each.seconds is not None]
    axes.plot(came, [place] * len(came), "o", ms=4, mfc=Ink.TEXT, mec=Ink.PAPER, mew=0.6)
    never = sum(each.seconds is None for each in recoveries)
    axes.plot([end] * min(1, never), [place] * min(1, never), "x", ms=6, mew=1.6, color=Ink.FAULT, clip_on=False)


def _draw_series(axes: Axes, series: Series, detail: int) -> None:
    at, value = (np.asarray(each.fill_null(np.nan), np.float64) for each in (series.at_s, series.value))
    known = unbroken(at, value)
    for some_at, some_value in known:
        share = max(2, detail * len(some_at) // max(1, len(at)))
        axes.plot(*thin(some_at, some_value, share), color=Ink.DRIVER, lw=1.1)
    axes.set_ylim(bottom=min(0.0, *(float(value.min()) for _, value in known), 0.0))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.tick_params(axis="y", labelcolor=str(Ink.MUTED))
    axes.set_title(cut(writable(f"{series.name} ({series.unit})"), 120), loc="left", fontsize=8.5, pad=2)


def _shade(panels: Sequence[Axes], faults: list[Span], end: float) -> None:
    """Faults behind the series; at least a hair of them, since a kill takes no time."""
    if not faults:
        return
    hair = end / 1000
    shade = _boxes([(began, max(ended, began + hair)) for began, ended in faults], 0, 1)
    for panel in panels:
        panel.add_patch(PathPatch(shade, transform=panel.get_xaxis_transform(), fc=Ink.FAULT, alpha=0.2, lw=0))


def _boxes(spans: list[Span], bottom: float, top: float) -> Path:
    corners = [[(began, bottom), (ended, bottom), (ended, top), (began, top)] for began, ended in spans]
    closed = np.concatenate([corners, np.asarray(corners)[:, :1]], axis=1)
    return Path(closed.reshape(-1, 2), _BOX * len(spans))


def _strokes(one: Floats, other: Floats) -> Floats:
    """From each to each, as one line with gaps."""
    return np.stack([one, other, np.full_like(one, np.nan)], axis=1).ravel()
