"""Plots as SVG that stands within a page: no reference to anything outside, readable on light and dark ground."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

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
