"""The profile as one screen for people."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table

from day0.artifacts.profile import Profile


def show_profile(profile: Profile, console: Console) -> None:
    """Print the profile's tables, and its warnings."""
    console.print(profile_tables(profile))


def profile_tables(profile: Profile) -> RenderableType:
    a, counted, cache = profile.architecture, profile.parameters, profile.kv_cache
    sizes = _table(f"{a['model_type']} ({a['family']}), {a['attention']}, {a['dtype'] or 'dtype not said'}")
    sizes.add_row("layers × hidden", f"{a['layers']} × {a['hidden_size']:,}")
    sizes.add_row("heads / kv heads × dim", f"{a['heads']} / {a['kv_heads']} × {a['head_dim']}")
    sizes.add_row("MLP, vocabulary", f"{a['intermediate_size']:,}, {a['vocab_size']:,}")
    tied = " (embedding and head are one)" if a["tied_embeddings"] else ""
    sizes.add_row("parameters", f"{counted.total:,}{tied}")
    for kind, count in counted.by_kind.items():
        sizes.add_row(f"  {kind}", f"{count:,}  {count / counted.total:6.1%}")
    position = a["position"]
    sizes.add_row("context", f"{profile.context_length:,} tokens, RoPE {position['type']}")
    if profile.checkpoint:
        files = profile.checkpoint
        sizes.add_row("checkpoint", f"{files.tensors:,} tensors in {files.files} files, {size(files.bytes)}")
    costs = _table(f"at {profile.context:,} tokens × {profile.concurrency}")
    costs.add_row("KV cache a token", f"{cache.bytes_per_token:,} B ({cache.dtype})")
    costs.add_row("KV cache in all", size(cache.bytes_at_context))
    for phase, work in a["work"].items():
        costs.add_row(phase, f"{work['flops']:.3g} FLOPs, {size(work['bytes'])}, {work['flops_per_byte']:.3g} FLOPs/B")
    checks = _table("checks")
    for check in profile.checks:
        checks.add_row(check.name, f"{check.verdict}: {check.reason}")
    return Group(sizes, costs, checks, *(f"warning: {warning}" for warning in profile.warnings))


def size(count: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def _table(title: str) -> Table:
    table = Table(title=title, show_header=False, title_justify="left", box=None, pad_edge=False)
    table.add_column(min_width=24)
    table.add_column(overflow="fold")
    return table
