"""Matplotlib figures as SVG inside of a page: the page's fonts, and its colours, light or dark."""

from __future__ import annotations

import io
import re
from enum import StrEnum

from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_IN = 10.4
LABEL = 30  # characters of a row's name that find room beside it; the longest fault has 28


class Ink(StrEnum):
    """Colours that stand for the page's own, so that its style sheet decides what they are. None is used otherwise."""

    PAPER = "#fefdf1"
    TEXT = "#010203"
    MUTED = "#515c66"
    GRID = "#d1d5d9"
    FAULT = "#c2410d"
    DRIVER = "#1d5fa9"
    READER = "#0f766f"
    BROKER = "#6b4ea1"

    @property
    def variable(self) -> str:
        return f"var(--{self.name.lower()})"


STYLE = {
    "font.size": 8.5,
    "svg.fonttype": "none",  # text stays text: searchable, read aloud, in the reader's font
    "svg.hashsalt": "onceflow",  # else ids are random
    "path.simplify": False,  # thinned already
    "text.parse_math": False,  # names may hold dollar signs
    "text.color": str(Ink.TEXT),
    "axes.edgecolor": str(Ink.GRID),
    "axes.facecolor": "none",
    "axes.labelcolor": str(Ink.MUTED),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.unicode_minus": False,
    "grid.color": str(Ink.GRID),
    "grid.linewidth": 0.6,
    "xtick.color": str(Ink.GRID),
    "ytick.color": str(Ink.GRID),
    "xtick.labelcolor": str(Ink.MUTED),
    "ytick.labelcolor": str(Ink.TEXT),
    "ytick.major.size": 0,
    "figure.facecolor": "none",
}
"""What figures must be made and drawn under: ``with mpl.rc_context(STYLE)``."""


def panels(heights_in: list[float]) -> tuple[Figure, list[Axes]]:
    """A figure with axes one below the other, of these heights, that share the x axis."""
    top, bottom, gap = 0.15, 0.45, 0.27
    height = top + bottom + sum(heights_in) + gap * (len(heights_in) - 1)
    figure = Figure(figsize=(WIDTH_IN, height))
    axes: list[Axes] = []
    upper = height - top
    for panel in heights_in:
        box = (0.19, (upper - panel) / height, 0.795, panel / height)
        axes.append(figure.add_axes(box, sharex=axes[0] if axes else None))
        upper -= panel + gap
    for each in axes[:-1]:
        each.tick_params(labelbottom=False)
    return figure, axes


def inline(figure: Figure, name: str, label: str) -> str:
    """The figure as an ``<svg>`` element. ``name`` makes its ids unique on the page, ``label`` says what it shows."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    drawing = file.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    # Its style sheet would style the whole page, its size would not follow the page's.
    drawing = re.sub(r"<style\b.*?</style>", "", drawing, count=1, flags=re.DOTALL)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, count=1, flags=re.DOTALL)
    head, body = drawing.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = _short_numbers(_own_style(_own_ids(body, name)))
    return (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" role="img" aria-label="{_attribute(label)}" {box[0]}>{body}'
    )


def _own_ids(body: str, name: str) -> str:
    """Ids that nothing refers to are left out; the others get the name before them."""
    referred = set(re.findall(r'(?:href="|url\()#([^")]+)', body))

    def own(match: re.Match[str]) -> str:
        return f'{match[1]} id="{name}-{match[2]}"' if match[2] in referred else match[1]

    body = re.sub(r'(<[^<>]*?) id="([^"]*)"', own, body)
    return body.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")


def _own_style(body: str) -> str:
    for ink in Ink:
        body = re.sub(rf'((?:fill|stroke): ){ink}(?=[;"])', rf"\1{ink.variable}", body)
    body = re.sub(r" ?font-family: [^;\"]*;", "", body)
    return re.sub(r"\n\s*", "\n", body)


def _short_numbers(body: str) -> str:
    def shorter(match: re.Match[str]) -> str:
        return re.sub(r"(\.\d\d)\d+", r"\1", match[0])

    return re.sub(r'<(?:path|use)\b[^<>]*? (?:d|x)="[^"]*"[^<>]*>', shorter, body)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
