"""The profile as one page, complete in itself; what a config or a file name says is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from day0.artifacts.profile import Profile
from day0.profile_plots import profile_plots
from tasks.profile.render import count_of, described, seconds, size

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Table:
    """Rows of text; `numbers`: all columns but the first are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: bool = True


def render_profile(profile: Profile, name: str) -> str:
    """The page; `name` is what the model is called."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The SVG is matplotlib's own, which escapes its texts.
    plots = [(caption, Markup(svg)) for caption, svg in profile_plots(profile)]
    tables = [table for table in _tables(profile) if table.rows]
    page = environment.get_template("profile.html.j2")
    return page.render(p=profile, name=name, cards=list(_cards(profile)), plots=plots, tables=tables)


def _cards(profile: Profile) -> Iterator[tuple[str, str, str]]:
    """The numbers at the top: (what, value, condition)."""
    counted, cache = profile.parameters, profile.kv_cache
    yield "parameters", count_of(counted.total), "without multi-token prediction"
    yield "active", count_of(counted.active), "for one token, with embedding and head"
    yield "KV cache a token", f"{cache.bytes_per_token:,} B", f"{cache.dtype}, once every window is full"
    yield "KV cache a sequence", size(cache.bytes_per_sequence), "whatever its length: windows, states"
    if profile.checkpoint:
        yield "checkpoint", size(profile.checkpoint.bytes), f"{profile.checkpoint.tensors:,} tensors"
    for phase in ("prefill", "decode"):
        least = profile.architecture["work"][phase].get("roofline", {}).get("least_seconds")
        if least is not None:
            yield f"least time of {phase}", seconds(least), f"on one {profile.target}, no engine beats it"


def _tables(profile: Profile) -> Iterator[Table]:
    yield Table("What it is", ("", ""), tuple(described(profile)), False)
    work = profile.architecture["work"]
    classes = tuple(
        (name, f"{c['flops']:.3g}", size(c["bytes"]), *_decode(work, name))
        for name, c in work["prefill"]["by_class"].items()
    )
    title = f"Work, {profile.concurrency} × {profile.context:,} tokens"
    yield Table(title, ("class", "prefill FLOPs", "bytes", "decode FLOPs", "bytes"), classes)
    loads = tuple(
        (
            row["load"],
            f"{row['prompt']:,} + {row['answer']:,}",
            f"{row['flops']['prefill']:.3g}",
            f"{row['flops']['decode']:.3g}",
            size(row["bytes"]["prefill"]),
            size(row["bytes"]["decode"]),
        )
        for row in work["sensitivity"]
    )
    columns = ("load", "tokens", "prefill FLOPs", "decode FLOPs", "prefill bytes", "decode bytes")
    yield Table("Long prompts against long answers, one sequence", columns, loads)
    held = tuple((c.what, count_of(c.parameters), f"{c.share:.1%}", c.reason) for c in profile.concentration)
    yield Table("What holds much, or needs a place of its own", ("what", "parameters", "share", "why"), held, False)
    differences = tuple(
        (d.sources, d.what, "" if d.elements is None else f"{d.elements:,}", d.reason) for d in profile.differences
    )
    yield Table("Differences between the sources", ("sources", "what", "elements", "why"), differences, False)
    checks = tuple((check.name, check.verdict.value, check.reason) for check in profile.checks)
    yield Table("Checks", ("check", "verdict", "reason"), checks, False)


def _decode(work: dict[str, dict[str, dict[str, dict[str, float]]]], name: str) -> tuple[str, str]:
    held = work["decode"]["by_class"].get(name, {"flops": 0.0, "bytes": 0.0})
    return f"{held['flops']:.3g}", size(held["bytes"])
