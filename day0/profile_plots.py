"""A profile in pictures: where the parameters are, what the cache grows to, what bounds each class of operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure

from day0.artifacts.profile import KVCache, Parameters, Profile
from day0.svg import COLOURS, INK, WIDTH, figure_of, legend, short, styled, svg_of


def profile_plots(profile: Profile) -> Iterator[tuple[str, str]]:
    """(caption, SVG) of all that the profile has numbers for."""
    if profile.parameters.by_kind:
        yield "Parameters, by kind and along the layers", parameters(profile.parameters)
    if len(profile.kv_cache.curve) > 1:
        yield f"KV cache and state of one sequence, {profile.kv_cache.dtype}", cache(profile.kv_cache)
    work = profile.architecture.get("work")
    if work:
        where = f" on {profile.target}" if profile.target else ""
        yield (
            f"FLOPs a byte by class of operator, {profile.concurrency} × {profile.context:,} tokens{where}",
            roofline(work),
        )


def parameters(counts: Parameters) -> str:
    """Where the parameters are: by kind, and along the layers."""
    with styled():
        kinds = sorted(counts.by_kind.items(), key=lambda item: -item[1])[:10]
        figure = Figure(figsize=(WIDTH, max(2.2, 0.9 + 0.28 * len(kinds))), layout="constrained")
        axes = figure.add_subplot(1, 2, 1)
        axes.barh(range(len(kinds)), [count / 1e6 for _, count in kinds], 0.6, color=COLOURS[0])
        axes.set_yticks(range(len(kinds)), [short(kind) for kind, _ in kinds])
        axes.invert_yaxis()
        axes.set_xlabel("million parameters")
        axes = figure.add_subplot(1, 2, 2)
        axes.bar(range(len(counts.by_layer)), [count / 1e6 for count in counts.by_layer], 0.8, color=COLOURS[2])
        axes.set_xlabel("layer")
        axes.set_title("million parameters a layer", fontsize=9)
        return svg_of(figure, "parameters")


def cache(held: KVCache) -> str:
    """What one sequence's cache grows to with its length; both axes logarithmic."""
    with styled():
        figure, axes = figure_of(2.6)
        tokens, sizes = zip(*held.curve, strict=True)
        axes.plot(tokens, [size / 2**30 for size in sizes], color=COLOURS[0], linewidth=1.6, marker="o", markersize=3)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _place: _tokens(value))
        axes.set_xlabel("tokens of the sequence")
        axes.set_ylabel("GiB")
        axes.grid(True, which="major", linewidth=0.3)
        return svg_of(figure, "cache")


def roofline(work: Mapping[str, Any]) -> str:
    """Each class of operator by its FLOPs and its FLOPs a byte, for prefill and decode, with the target's ridge.

    Left of the ridge the memory's bandwidth bounds a class, right of it computing does.
    """
    with styled():
        figure, axes = figure_of(3.0)
        for place, phase in enumerate(("prefill", "decode")):
            shown = [(n, c) for n, c in work[phase]["by_class"].items() if c["flops"] and c["bytes"]]
            axes.scatter(
                [c["flops"] / c["bytes"] for _, c in shown], [c["flops"] for _, c in shown], s=22,
                color=COLOURS[place], label=phase,
            )  # fmt: skip
            for name, held in shown:
                at = (held["flops"] / held["bytes"], held["flops"])
                axes.annotate(short(name), at, xytext=(3, 3), textcoords="offset points", fontsize=7)
        ridge = _ridge(work)
        if ridge:
            axes.axvline(ridge, color=INK, linewidth=0.8, linestyle="--", label=f"ridge, {ridge:.0f} FLOPs a byte")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("FLOPs a byte")
        axes.set_ylabel("FLOPs")
        legend(figure, 3)
        return svg_of(figure, "roofline")


def _ridge(work: Mapping[str, Any]) -> float | None:
    """Where the target's bfloat16 rate and its bandwidth meet, told by its rows; None without a target."""
    ridge: float | None = work["decode"].get("roofline", {}).get("ridge")
    return ridge


def _tokens(value: float) -> str:
    for size, unit in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"
