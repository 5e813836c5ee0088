"""A profile in pictures: where the parameters are, what the cache grows to, what bounds each class of operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from day0.artifacts.profile import KVCache, Parameters, Profile
from day0.svg import COLOURS, INK, figure_of, label_points, legend, powers, short, styled, svg_of

#: Of each picture, in inches: they stand side by side.
HEIGHT = 2.9


def profile_plots(profile: Profile) -> Iterator[tuple[str, str]]:
    """(caption, SVG) of all that the profile has numbers for."""
    if profile.parameters.by_kind:
        yield "Parameters by kind", kinds(profile.parameters)
        yield "Parameters of each layer", layers(profile.parameters)
    if len(profile.kv_cache.curve) > 1:
        yield f"KV cache and state of one sequence, {profile.kv_cache.dtype}", cache(profile.kv_cache)
    work = profile.architecture.get("work")
    if work:
        where = f" on {profile.target}" if profile.target else ""
        yield (
            f"FLOPs a byte by class of operator, {profile.concurrency} × {profile.context:,} tokens{where}",
            roofline(work),
        )


def kinds(counts: Parameters) -> str:
    """What the parameters are for."""
    with styled():
        held = sorted(counts.by_kind.items(), key=lambda item: -item[1])[:12]
        figure, axes = figure_of(HEIGHT)
        scale, unit = _unit(held[0][1])
        bars = axes.barh(range(len(held)), [count / scale for _, count in held], 0.62, color=COLOURS[0])
        axes.bar_label(bars, [_share(count / counts.total) for _, count in held], padding=3, fontsize=8)
        axes.set_yticks(range(len(held)), [short(kind.replace("_", " ")) for kind, _ in held])
        axes.margins(x=0.12)
        axes.invert_yaxis()
        axes.set_xlabel(f"{unit}parameters; share of the total")
        return svg_of(figure, "parameters")


def layers(counts: Parameters) -> str:
    """Where the parameters are along the layers."""
    with styled():
        figure, axes = figure_of(HEIGHT)
        scale, unit = _unit(max(counts.by_layer, default=0))
        axes.bar(range(len(counts.by_layer)), [count / scale for count in counts.by_layer], 0.85, color=COLOURS[2])
        axes.set_xlabel("layer")
        axes.set_ylabel(f"{unit}parameters")
        return svg_of(figure, "layers")


def cache(held: KVCache) -> str:
    """What one sequence's cache grows to with its length; both axes logarithmic."""
    with styled():
        figure, axes = figure_of(HEIGHT)
        tokens, sizes = zip(*held.curve, strict=True)
        axes.plot(tokens, [size / 2**30 for size in sizes], color=COLOURS[0], linewidth=1.6, marker="o", markersize=3)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _place: _tokens(value))
        powers(axes.yaxis)
        axes.set_xlabel("tokens of the sequence")
        axes.set_ylabel("GiB")
        axes.grid(True, which="major", linewidth=0.3)
        return svg_of(figure, "cache")


def roofline(work: Mapping[str, Any]) -> str:
    """Each class of operator by its FLOPs and its FLOPs a byte, for prefill and decode, with the target's ridge.

    Left of the ridge the memory's bandwidth bounds a class, right of it computing does.
    """
    with styled():
        figure, axes = figure_of(HEIGHT)
        points: list[tuple[str, float, float]] = []
        for place, phase in enumerate(("prefill", "decode")):
            shown = [
                (short(name), held["flops"] / held["bytes"], held["flops"])
                for name, held in work[phase]["by_class"].items()
                if held["flops"] and held["bytes"]
            ]
            points += shown
            axes.scatter([x for _, x, _ in shown], [y for _, _, y in shown], s=20, color=COLOURS[place], label=phase)
        ridge = _ridge(work)
        if ridge:
            axes.axvline(ridge, color=INK, linewidth=0.8, linestyle="--", label=f"ridge, {ridge:.0f} FLOPs a byte")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.margins(x=0.14, y=0.08)
        powers(axes.xaxis)
        powers(axes.yaxis)
        axes.set_xlabel(
            "FLOPs a byte: left of the ridge memory bounds, right of it computing" if ridge else "FLOPs a byte"
        )
        axes.set_ylabel("FLOPs")
        legend(figure, 3)
        label_points(figure, axes, points)
        return svg_of(figure, "roofline")


def _ridge(work: Mapping[str, Any]) -> float | None:
    """Where the target's bfloat16 rate and its bandwidth meet, told by its rows; None without a target."""
    ridge: float | None = work["decode"].get("roofline", {}).get("ridge")
    return ridge


def _unit(most: float) -> tuple[float, str]:
    """What counts are divided by, and how that is called."""
    return next(((scale, name) for scale, name in ((1e9, "billion "), (1e6, "million ")) if most >= scale), (1.0, ""))


def _share(part: float) -> str:
    return f"{part:.1%}" if part >= 0.0005 else "< 0.1%"


def _tokens(value: float) -> str:
    for size, unit in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"
