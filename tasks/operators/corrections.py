"""Where the library computes more, or otherwise, than engines do: stated apart, by the profile's closed formulas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from day0.architecture.attention import pairs
from day0.architecture.attention.base import Attention
from day0.architecture.attention.block_sparse import BlockSparseAttention
from day0.architecture.attention.compressed import CompressedAttention
from day0.architecture.attention.latent import LatentAttention, SparseLatentAttention
from day0.architecture.parallel import Sizes
from day0.architecture.stored import stored_from_config
from day0.architecture.structure import LayerAttention, Structure, structure_of
from day0.architecture.work import Step, WorkModel
from day0.artifacts.operators import Correction
from day0.errors import InputError
from tasks.operators.formulas import BYTES_OF
from tasks.operators.records import Capture

#: Differences up to this share of what was traced are biases and the like.
NEGLIGIBLE = 0.005

#: Kinds whose core the library computes in its attention function, which the trace observes.
OBSERVED = ("full", "sliding", "chunked", "latent", "sparse_latent", "compressed", "block_sparse")

REASONS = {
    "latent": "the library expands the latents of all cached tokens again and attends with expanded heads; engines "
    "attend in the latent space",
    "sparse_latent": "the library computes all scores and masks; engines attend to the chosen tokens, in the latent "
    "space",
    "compressed": "the library computes all scores of the window's and the compressed entries and masks; engines those "
    "that are seen",
    "block_sparse": "the library computes all scores and masks; engines compute those of the chosen blocks",
    "sliding": "the library computes all scores and masks; engines compute those of the window",
    "chunked": "the library computes all scores and masks; engines compute those of the chunk",
    "full": "the library computes all scores and masks; engines compute the causal ones",
}


def structure_or_none(config: Mapping[str, Any]) -> Structure | None:
    """The model by its profile; None where no family describes it."""
    try:
        return structure_of(config, "config.json")
    except InputError:
        return None


def corrections(
    structure: Structure | None, capture: Capture, passes: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[Correction, ...]]:
    """By phase. `passes` are new tokens and cached ones of each phase."""
    if structure is None:
        return {}
    return {
        phase: (
            *_attention(structure, capture.scopes.get(phase, {}), *span),
            *_experts(structure, capture, phase, span[0]),
        )
        for phase, span in passes.items()
    }


def off_by(structure: Structure, flops: Mapping[str, float], passes: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """By phase, the relative difference of traced FLOPs, corrections added, to those of the profile's closed
    formulas: what a trace adds is work of single elements, which in a model of usual sizes is under 1 %."""
    work = WorkModel(structure, stored_from_config(structure, None), BYTES_OF)
    return {
        phase: flops[phase] / work.rank_work(Step(1, *passes[phase]), Sizes(1, 1)).flops - 1
        for phase in passes
        if phase in flops
    }


def _attention(structure: Structure, traced: Mapping[str, float], new: int, past: int) -> Iterator[Correction]:
    entries = [entry for entry in structure.attention if not entry.mtp]
    softmax = [entry for entry in entries if entry.attention.kind in OBSERVED]
    # Where other kinds go through the library's attention function too, the traced sum is not these layers' alone.
    if "attention" not in traced or len(softmax) != len([e for e in entries if not _recurrent(e.attention)]):
        return
    computed = traced["attention"] + sum(_expanded_again(e, past) for e in softmax)
    wanted = sum(_core(e.attention, new, past) * len(e.layers) for e in softmax)
    if abs(wanted - computed) > NEGLIGIBLE * computed:
        kinds = dict.fromkeys(e.attention.kind for e in softmax)
        yield Correction(
            what="attention", flops=float(wanted - computed), reason="; ".join(REASONS[kind] for kind in kinds)
        )


def _recurrent(attention: Attention) -> bool:
    return any(item.held in ("state", "conv") for item in attention.cache)


def _core(attention: Attention, new: int, past: int) -> int:
    """The engine's work, without an indexer's scores, which the library computes as the engine does."""
    whole = attention.flops(new, past)
    if isinstance(attention, SparseLatentAttention | BlockSparseAttention):
        whole -= 2 * attention.index_heads * attention.index_dim * pairs.causal(new, past)
    if isinstance(attention, CompressedAttention) and attention.ratio:
        whole -= 2 * attention.index_heads * attention.index_dim * pairs.grouped(new, past, attention.ratio)
    return whole


def _expanded_again(entry: LayerAttention, past: int) -> int:
    """FLOPs of the library's products with `kv_b_proj` for tokens of before."""
    latent = entry.attention
    if not isinstance(latent, LatentAttention):
        return 0
    return 2 * past * latent.latent * latent.heads * (latent.nope_dim + latent.value_dim) * len(entry.layers)


def _experts(structure: Structure, capture: Capture, phase: str, new: int) -> Iterator[Correction]:
    traced = capture.scopes.get(phase, {}).get("experts")
    if traced is None:
        return
    wanted = 0.0
    for group in structure.groups:
        if group.kind != "routed_expert" or group.mtp or len(group.rule.shape) < 2 or group.layers is None:
            continue
        routing = next((r for r in structure.routing if not r.mtp and set(group.layers) & r.layers), None)
        if routing is None:
            return
        wanted += 2.0 * new * group.elements * routing.per_token / routing.experts
    if wanted and abs(wanted - traced) > NEGLIGIBLE * traced and not math.isclose(wanted, traced):
        reason = "the library computes every expert for every token; engines compute the chosen ones"
        yield Correction(what="experts", flops=wanted - traced, reason=reason)
