"""Plots as SVG that stands within a page: no reference to anything outside, readable on light and dark ground."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from day0.artifacts.benchmark import Cell
from day0.artifacts.plan import DeviceMemory
from day0.artifacts.smoke import PromptParity
from day0.svg import COLOURS, INK, WIDTH, figure_of, legend, short, styled, svg_of

_LEAST_MS = 1.0


def parity(prompts: Sequence[PromptParity]) -> str:
    """Mean log-probability error of each prompt, the engine's beside the reference's own rounding."""
    with styled():
        figure, axes = figure_of(0.9 + 0.34 * len(prompts))
        places = range(len(prompts))
        axes.barh([p - 0.19 for p in places], [p.error.mean for p in prompts], 0.36, color=COLOURS[0], label="engine")
        axes.barh(
            [p + 0.19 for p in places],
            [p.reference_error.mean for p in prompts],
            0.36,
            color=COLOURS[1],
            label="reference at the same precision",
        )
        axes.set_yticks(list(places), [short(f"{p.prompt} ({p.path})") for p in prompts])
        axes.invert_yaxis()
        axes.set_xlabel("mean |difference from float32|, nats")
        legend(figure, 2)
        return svg_of(figure, "parity")


def latency(cells: Sequence[Cell]) -> str:
    """TTFT and TPOT of each cell: the median as a bar, the 90th percentile as a tick."""
    with styled():
        figure = Figure(figsize=(WIDTH, 0.9 + 0.42 * len(cells)), layout="constrained")
        shown = [cell for cell in cells if cell.ttft and cell.tpot]
        for place, (title, values) in enumerate(
            (("TTFT, s", [c.ttft for c in shown]), ("TPOT, ms", [c.tpot for c in shown]))
        ):
            axes = figure.add_subplot(1, 2, place + 1)
            scale = 1.0 if place == 0 else 1e3
            for row, (cell, value) in enumerate(zip(shown, values, strict=True)):
                assert value is not None
                axes.barh(row, value.p50 * scale, 0.6, color=COLOURS[cell.prefix_cache == "warm"])
                axes.plot([value.p90 * scale] * 2, [row - 0.3, row + 0.3], color=INK, linewidth=1.4)
            names = [f"{cell.concurrency} × {cell.prefix_cache}" for cell in shown]
            axes.set_yticks(range(len(shown)), names if place == 0 else [""] * len(shown))
            axes.invert_yaxis()
            axes.set_xlabel(f"{title}: bar p50, line p90")
        return svg_of(figure, "latency")


def gaps(by_cell: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Share of inter-token gaps that are at most so long, one curve a cell; gaps in seconds.

    The axis is logarithmic, so tokens that arrived together (a gap of 0) are drawn at its left end.
    """
    with styled():
        figure, axes = figure_of(2.6)
        for place, (name, values) in enumerate(by_cell):
            ordered = sorted(max(value * 1e3, _LEAST_MS) for value in values)
            share = [(i + 1) / len(ordered) for i in range(len(ordered))]
            axes.step(ordered, share, where="post", color=COLOURS[place % len(COLOURS)], linewidth=1.4, label=name)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda _value, _place: "")
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("inter-token latency, ms")
        axes.set_ylabel("share of tokens")
        legend(figure, 2)
        return svg_of(figure, "gaps")


def memory(device: DeviceMemory) -> str:
    """What fills one device, against its capacity."""
    with styled():
        figure, axes = figure_of(1.6)
        left = 0.0
        parts = (
            ("weights", device.weights), ("KV cache", device.kv_cache), ("activations", device.activations),
            ("overhead", device.overhead), ("free", max(0, device.capacity - device.total)),
        )  # fmt: skip
        for place, (name, count) in enumerate(parts):
            gib = count / 2**30
            colour = "none" if name == "free" else COLOURS[place]
            label = f"{name} {gib:.2f}"
            axes.barh(0, gib, 0.6, left=left, color=colour, edgecolor=INK, linewidth=0.5, label=label)
            left += gib
        axes.set_yticks([])
        axes.set_xlabel("GiB")
        legend(figure, 3)
        return svg_of(figure, "memory")
