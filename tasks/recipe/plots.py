"""Plots as SVG that stands within a page: no reference to anything outside, readable on light and dark ground."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from day0.artifacts.benchmark import Cell
from day0.artifacts.plan import DeviceMemory
from day0.artifacts.profile import Parameters
from day0.artifacts.smoke import PromptParity

#: Drawn in this colour, then replaced by the page's own text colour.
_INK = "#010203"
#: Okabe and Ito's palette, its blue a little lighter: told apart by colour-blind readers, and visible on white
#: and on near-black.
_COLOURS = ("#2b8fd6", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8a8a8a")
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_WIDTH = 5.4
_LEAST_MS = 1.0


def parity(prompts: Sequence[PromptParity]) -> str:
    """Mean log-probability error of each prompt, the engine's beside the reference's own rounding."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(0.9 + 0.34 * len(prompts))
        places = range(len(prompts))
        axes.barh([p - 0.19 for p in places], [p.error.mean for p in prompts], 0.36, color=_COLOURS[0], label="engine")
        axes.barh(
            [p + 0.19 for p in places],
            [p.reference_error.mean for p in prompts],
            0.36,
            color=_COLOURS[1],
            label="reference at the same precision",
        )
        axes.set_yticks(list(places), [_short(f"{p.prompt} ({p.path})") for p in prompts])
        axes.invert_yaxis()
        axes.set_xlabel("mean |difference from float32|, nats")
        _legend(figure, 2)
        return _svg(figure, "parity")


def latency(cells: Sequence[Cell]) -> str:
    """TTFT and TPOT of each cell: the median as a bar, the 90th percentile as a tick."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 0.9 + 0.42 * len(cells)), layout="constrained")
        shown = [cell for cell in cells if cell.ttft and cell.tpot]
        for place, (title, values) in enumerate(
            (("TTFT, s", [c.ttft for c in shown]), ("TPOT, ms", [c.tpot for c in shown]))
        ):
            axes = figure.add_subplot(1, 2, place + 1)
            scale = 1.0 if place == 0 else 1e3
            for row, (cell, value) in enumerate(zip(shown, values, strict=True)):
                assert value is not None
                axes.barh(row, value.p50 * scale, 0.6, color=_COLOURS[cell.prefix_cache == "warm"])
                axes.plot([value.p90 * scale] * 2, [row - 0.3, row + 0.3], color=_INK, linewidth=1.4)
            names = [f"{cell.concurrency} × {cell.prefix_cache}" for cell in shown]
            axes.set_yticks(range(len(shown)), names if place == 0 else [""] * len(shown))
            axes.invert_yaxis()
            axes.set_xlabel(f"{title}: bar p50, line p90")
        return _svg(figure, "latency")


def gaps(by_cell: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Share of inter-token gaps that are at most so long, one curve a cell; gaps in seconds.

    The axis is logarithmic, so tokens that arrived together (a gap of 0) are drawn at its left end.
    """
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(2.6)
        for place, (name, values) in enumerate(by_cell):
            ordered = sorted(max(value * 1e3, _LEAST_MS) for value in values)
            share = [(i + 1) / len(ordered) for i in range(len(ordered))]
            axes.step(ordered, share, where="post", color=_COLOURS[place % len(_COLOURS)], linewidth=1.4, label=name)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda _value, _place: "")
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("inter-token latency, ms")
        axes.set_ylabel("share of tokens")
        _legend(figure, 2)
        return _svg(figure, "gaps")


def parameters(counts: Parameters) -> str:
    """Where the parameters are: by kind, and along the layers."""
    with matplotlib.rc_context(_STYLE):
        kinds = sorted(counts.by_kind.items(), key=lambda item: -item[1])[:10]
        figure = Figure(figsize=(_WIDTH, max(2.2, 0.9 + 0.28 * len(kinds))), layout="constrained")
        axes = figure.add_subplot(1, 2, 1)
        axes.barh(range(len(kinds)), [count / 1e6 for _, count in kinds], 0.6, color=_COLOURS[0])
        axes.set_yticks(range(len(kinds)), [_short(kind) for kind, _ in kinds])
        axes.invert_yaxis()
        axes.set_xlabel("million parameters")
        axes = figure.add_subplot(1, 2, 2)
        axes.bar(range(len(counts.by_layer)), [count / 1e6 for count in counts.by_layer], 0.8, color=_COLOURS[2])
        axes.set_xlabel("layer")
        axes.set_title("million parameters a layer", fontsize=9)
        return _svg(figure, "parameters")


def memory(device: DeviceMemory) -> str:
    """What fills one device, against its capacity."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(1.6)
        left = 0.0
        parts = (
            ("weights", device.weights), ("KV cache", device.kv_cache), ("activations", device.activations),
            ("overhead", device.overhead), ("free", max(0, device.capacity - device.total)),
        )  # fmt: skip
        for place, (name, count) in enumerate(parts):
            gib = count / 2**30
            colour = "none" if name == "free" else _COLOURS[place]
            label = f"{name} {gib:.2f}"
            axes.barh(0, gib, 0.6, left=left, color=colour, edgecolor=_INK, linewidth=0.5, label=label)
            left += gib
        axes.set_yticks([])
        axes.set_xlabel("GiB")
        _legend(figure, 3)
        return _svg(figure, "memory")


def _figure(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _legend(figure: Figure, columns: int) -> None:
    figure.legend(loc="outside upper center", ncols=columns)


def _short(text: str) -> str:
    return text if len(text) <= 28 else f"{text[:27]}…"


def _svg(figure: Figure, name: str) -> str:
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
    return svg.replace(_INK, "currentColor")
