"""The profile as one screen for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from day0.artifacts.profile import KVCache, Parameters, Profile
from day0.verdict import Verdict

#: Rows that a table shows at most; `--json` has all.
SHOWN = 8


def show_profile(profile: Profile, console: Console) -> None:
    """Print the profile's tables, and its warnings."""
    console.print(profile_tables(profile))


def profile_tables(profile: Profile) -> RenderableType:
    work = profile.architecture["work"]
    parts: list[RenderableType] = [
        _model(profile),
        Columns([_parameters(profile.parameters), _cache(profile)], padding=(0, 4)),
        _work(work, profile),
    ]
    if profile.concentration:
        parts.append(_concentration(profile))
    if profile.differences:
        table = _table("differences between the sources", "sources", "what", "elements", "why")
        for row in _first(profile.differences, table):
            table.add_row(row.sources, row.what, "" if row.elements is None else f"{row.elements:,}", row.reason)
        parts.append(table)
    checks = _table("checks", "", "")
    for check in profile.checks:
        checks.add_row(check.name, f"{_mark(check.verdict)}: {escape(check.reason)}")
    return Group(*parts, checks, *(f"warning: {escape(warning)}" for warning in profile.warnings))


def size(count: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def count_of(number: float) -> str:
    """A count for people: `671.03 B` parameters, `1.2e+15` of what is larger."""
    for limit, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= limit:
            return f"{number / limit:.2f}{unit}" if number < 1e15 else f"{number:.3g}"
    return f"{number:,.0f}"


def seconds(duration: float) -> str:
    """A duration for people: `10.67 ms`, `73.9 s`."""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (1e4, 1.0, "s")):
        if duration < limit:
            return f"{duration * scale:.4g} {unit}"
    return f"{duration / 3600:,.3g} h"


def described(profile: Profile) -> Iterator[tuple[str, str]]:
    """What the model is, in words: (what, text)."""
    a = profile.architecture
    recognised = f", {a['recognised']}" if a.get("recognised") else ""
    yield "model", f"{a['model_type']} (family {a['family']}{recognised})"
    tied = ", embedding and head are one" if a["tied_embeddings"] else ""
    yield "shape", f"{a['layers']} layers × {a['hidden_size']:,}, vocabulary {a['vocab_size']:,}{tied}"
    yield "attention", a["attention"]
    yield "positions", _positions(a["position"], profile.context_length)
    for routing in a["routing"]:
        named = ("layers", "experts", "per_token", "shared")
        facts = ", ".join(_fact(key, value) for key, value in routing.items() if key not in named)
        shared = f" + {routing['shared']} shared" if routing["shared"] else ""
        yield (
            "experts",
            f"{routing['per_token']} of {routing['experts']}{shared} in {routing['layers']} layers; {facts}",
        )
    held = a.get("quantization") or {}
    yield "weights", f"{held.get('method') or a['dtype'] or 'dtype not said'}{_formats(held)}"
    if profile.checkpoint:
        files = profile.checkpoint
        yield "checkpoint", f"{files.tensors:,} tensors in {files.files} files, {size(files.bytes)}"
    extras = [name for name in ("vision", "audio") if a[name]]
    if a["mtp_layers"]:
        extras.append(f"multi-token prediction ({a['mtp_layers']} modules)")
    if extras:
        yield "besides", ", ".join(extras)
    if a.get("tokenizer") is not None:
        yield "chat", _chat(a)
        yield "licence", str(a.get("licence_name") or a.get("licence") or "none found")


def _fact(key: str, value: Any) -> str:
    name = key.replace("_", " ")
    return (name if value else f"not {name}") if isinstance(value, bool) else f"{name} {value}"


def _model(profile: Profile) -> Table:
    table = Table(show_header=False, title_justify="left", box=None, pad_edge=False)
    table.add_column(min_width=16)
    table.add_column(overflow="fold")
    for place, (what, text) in enumerate(described(profile)):
        table.add_row(what if place else f"[bold]{what}[/]", escape(text))
    return table


def _formats(held: Mapping[str, Any]) -> str:
    formats = held.get("formats")
    return f" ({', '.join(f'{kind}: {value}' for kind, value in formats.items())})" if formats else ""


def _positions(position: Mapping[str, Any], context: int) -> str:
    text = f"{position['scheme']}, {position['type']}" if position["type"] else str(position["scheme"])
    if position.get("extrapolated") and position.get("original_context"):
        text += f" × {position['factor']:g} from {position['original_context']:,}"
    return f"{text}; {context:,} tokens at most"


def _chat(a: Mapping[str, Any]) -> str:
    template = "template" if a["chat_template"] else "no template"
    known = [
        f"{what} {a[key]['name']}"
        for what, key in (("tools", "tool_format"), ("reasoning", "reasoning_format"))
        if a.get(key)
    ]
    return ", ".join([template, *known, str(a["tokenizer"])])


def _parameters(counted: Parameters) -> Table:
    table = _table("parameters", "", "count", "share")
    table.add_row("total", count_of(counted.total), "")
    table.add_row("active a token", count_of(counted.active), f"{counted.active / counted.total:6.1%}")
    table.add_row("  without embedding", count_of(counted.active_without_embedding), "")
    for kind, count in sorted(counted.by_kind.items(), key=lambda item: -item[1]):
        table.add_row(kind.replace("_", " "), count_of(count), f"{count / counted.total:6.1%}")
    return table


def _cache(profile: Profile) -> Table:
    cache: KVCache = profile.kv_cache
    table = _table(f"KV cache and state, {cache.dtype}", "", "layers", "a token", "a sequence")
    for row in cache.by_layer_kind:
        listed = row["layers"]
        layers = listed if isinstance(listed, int) else len(listed)
        per_token = f"{row['bytes_per_token']:,} B"
        table.add_row(row["kind"].replace("_", " "), str(layers), per_token, size(row["bytes_per_sequence"]))
    table.add_row("[bold]in all[/]", "", f"{cache.bytes_per_token:,} B", size(cache.bytes_per_sequence))
    table.add_row(f"{profile.concurrency} × {profile.context:,} tokens", "", "", size(cache.bytes_at_context))
    if cache.engine:
        engine = cache.engine
        table.add_row(f"an engine, pages of {engine.page_tokens}", "", "", size(engine.bytes_per_sequence))
        table.add_row("  of that fragmentation", "", "", size(engine.fragmentation))
    if cache.mtp:
        table.add_row("multi-token prediction adds", "", f"{cache.mtp['bytes_per_token']:,} B", "")
    return table


def _work(work: Mapping[str, Any], profile: Profile) -> RenderableType:
    on = f" on {profile.target}" if profile.target else ""
    title = f"work at {profile.concurrency} × {profile.context:,} tokens{on}"
    table = _table(
        title, "class", "prefill FLOPs", "bytes", "decode FLOPs", "bytes", "FLOPs/B", *(["bound"] if on else [])
    )
    for name, prefill in work["prefill"]["by_class"].items():
        decode = work["decode"]["by_class"].get(name, {"flops": 0.0, "bytes": 0.0})
        intensity = decode["flops"] / decode["bytes"] if decode["bytes"] else 0.0
        cells = [f"{prefill['flops']:.3g}", size(prefill["bytes"]), f"{decode['flops']:.3g}", size(decode["bytes"])]
        bound = [_bounds_of(work, name)] if on else []
        table.add_row(name, *cells, f"{intensity:.3g}", *bound)
    prefill, decode = work["prefill"], work["decode"]
    cells = [f"{prefill['flops']:.3g}", size(prefill["bytes"]), f"{decode['flops']:.3g}", size(decode["bytes"])]
    table.add_row("[bold]in all[/]", *cells, f"{decode['flops_per_byte']:.3g}", *([""] if on else []))
    if not on:
        return table
    lines = [_least(work, phase) for phase in ("prefill", "decode")]
    return Group(table, *lines)


def _bounds_of(work: Mapping[str, Any], name: str) -> str:
    found = []
    for phase in ("prefill", "decode"):
        by = [row["by"] for row in work[phase]["roofline"]["classes"] if row["class"] == name and row["by"]]
        found.append(by[0] if by else "–")
    return " / ".join(found)


def _least(work: Mapping[str, Any], phase: str) -> str:
    roof = work[phase]["roofline"]
    if roof["least_seconds"] is None:
        return f"{phase}: no roofline, the target's rates are not known"
    hot = ", ".join(row["class"] for row in roof["hotspots"])
    return (
        f"{phase}: at least {seconds(roof['least_seconds'])} if the model lay on one device, bound by the "
        f"{roof['bound_by']} of {roof['bound']}; four fifths of the time: {hot}"
    )


def _concentration(profile: Profile) -> Table:
    table = _table("what a plan must place by itself, or that holds much", "what", "parameters", "share", "why")
    for row in _first(profile.concentration, table):
        table.add_row(row.what, count_of(row.parameters), f"{row.share:.1%}", escape(row.reason))
    return table


def _first(rows: Iterable[Any], table: Table) -> list[Any]:
    listed = list(rows)
    if len(listed) > SHOWN:
        table.caption = f"… and {len(listed) - SHOWN} more (--json has them)"
    return listed[:SHOWN]


def _mark(verdict: Verdict) -> str:
    return f"[red]{verdict}[/]" if verdict is Verdict.FAIL else str(verdict)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, show_header=any(columns), title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        prose = column in ("why", "what", "sources") or not any(columns)
        left = i == 0 or prose
        table.add_column(column, justify="left" if left else "right", overflow="fold" if prose else "ellipsis")
    return table
