"""Plots as SVG that stands within a page: no reference to anything outside, readable on light and dark ground."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

#: Drawn in this colour, then replaced by the page's own text colour.
INK = "#010203"
#: Okabe and Ito's palette, its blue a little lighter: told apart by colour-blind readers, and visible on white
#: and on near-black.
COLOURS = ("#2b8fd6", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8a8a8a")
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
WIDTH = 5.4
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@contextmanager
def styled() -> Iterator[None]:
    """Figures made within look alike."""
    with matplotlib.rc_context(_STYLE):
        yield


def figure_of(height: float) -> tuple[Figure, Any]:
    """A figure of one plot; `height` in inches."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def legend(figure: Figure, columns: int) -> None:
    """A legend above the plots."""
    figure.legend(loc="outside upper center", ncols=columns)


def powers(axis: Any) -> None:
    """A logarithmic axis with at most seven labels, in plain text: matplotlib's own are formulas, which `styled` takes
    as they stand."""
    low, high = axis.get_view_interval()
    if high < 4 * low:  # where powers of ten would be one label or none
        axis.set_major_locator(MaxNLocator(5))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=8))
    axis.set_major_formatter(lambda value, _place: power(value))
    axis.set_minor_locator(NullLocator())


def power(value: float) -> str:
    """`0.01`, `100`, `10¹²`."""
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    exponent = round(math.log10(value))
    return "10" + str(exponent).translate(_RAISED)


def label_points(figure: Figure, axes: Any, points: Sequence[tuple[str, float, float]], size: int = 8) -> None:
    """Write each point's name beside it, right or left, higher or lower, where it covers no other name.

    A name that has a point twice at one place is written once.
    """
    figure.draw_without_rendering()  # only then it is known where a point lies
    unit = figure.dpi / 72
    least, most = axes.bbox.x0 / unit, axes.bbox.x1 / unit
    taken: list[tuple[float, float, float]] = []
    seen: set[tuple[str, int, int]] = set()
    for name, x, y in sorted(points, key=lambda point: -point[2]):
        across, up = (float(value) / unit for value in axes.transData.transform((x, y)))
        if (name, round(across), round(up)) in seen:
            continue
        seen.add((name, round(across), round(up)))
        width = 0.58 * size * len(name)
        tries = [(side, step * 2) for step in range(60) for side in (5, -5 - width) for step in (step, -step)]
        free = (
            (side, raised)
            for side, raised in tries
            if least < across + side < across + side + width < most
            and all(
                across + side + width < left or across + side > right or abs(up + raised - at) > size + 1
                for left, right, at in taken
            )
        )
        side, raised = next(free, (5.0, 0))
        taken.append((across + side, across + side + width, up + raised))
        axes.annotate(name, (x, y), xytext=(side, raised - size / 3), textcoords="offset points", fontsize=size)


def short(text: str) -> str:
    """A label that leaves room for what it labels."""
    return text if len(text) <= 28 else f"{text[:27]}…"


def svg_of(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element with ids of its own, without prologue, metadata and name spaces."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg role="img" aria-label="{name}" \1>', svg, count=1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\1{name}-", svg)
    return svg.replace(INK, "currentColor")
