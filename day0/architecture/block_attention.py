"""The operators of attention: projections, the core of each kind, and the projection back.

The core is a fused kernel, so that no scores are written but an indexer's. Each kind is written down as vLLM 0.32.0 has
it; where a part was read elsewhere, it says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from day0.architecture.attention.base import Attention
from day0.architecture.attention.block_sparse import BlockSparseAttention
from day0.architecture.attention.compressed import CompressedAttention
from day0.architecture.attention.full import FullAttention
from day0.architecture.attention.latent import LatentAttention, SparseLatentAttention
from day0.architecture.attention.recurrent import DELTA_CHUNK, DeltaNet, KimiDelta, LightningAttention, Mamba2
from day0.architecture.block_parts import FLOAT32, INT32, Load, Matrix, Ops, together
from day0.architecture.structure import TensorGroup

#: Tokens of a cached past that latent attention expands at a time: model_executor/layers/attention/mla_attention.py
#: `determine_chunked_prefill_workspace_size`.
EXPANDED_PAST = 64 * 1024

#: Most bytes of an indexer's scores at a time: envs.py VLLM_SPARSE_INDEXER_MAX_LOGITS_MB.
INDEX_SCORES = 512 << 20

_KINDS = ("attention", "linear_attention", "indexer")
_EXPANDS_LATENT = re.compile(r"\.kv_b_proj\.")
_AFTER_CORE = re.compile(r"\.wo_a\.")
_QK_NORM = re.compile(r"\.[qk]_(norm|layernorm)\.weight$")


def attention_ops(
    ops: Ops,
    groups: Sequence[TensorGroup],
    matrices: Sequence[Matrix],
    attention: Attention | None,
    hidden: int,
    flow: str,
    load: Load,
) -> str:
    """Add the attention of one layer on one rank, whose share `attention` is; gives what holds the result.

    Projections that take the hidden state come first, then those that take what these give, normed where there is a
    norm of that size; a layer without such tensors adds nothing.
    """
    own = [matrix for matrix in matrices if matrix.kind in _KINDS]
    if not own:
        return flow
    n = load.tokens
    back = [m for m in own if m.is_output and m.gives == hidden]
    after = [m for m in own if _AFTER_CORE.search(m.rule.name)]
    latent = [m for m in own if _EXPANDS_LATENT.search(m.rule.name)]
    left = [m for m in own if m not in (*back, *after, *latent)]
    norms = {g.rule.shape for g in groups if g.kind == "norm"}
    projected = [ops.write(name, (flow,), n * g) for name, g, _ in together([m for m in left if m.takes == hidden])]
    reads = list(projected)
    for name, gives, takes in together([m for m in left if m.takes != hidden]):
        source = [ops.write(f"{name}: input, normed", projected, n * takes)] if (takes,) in norms else projected
        reads.append(ops.write(name, source, n * gives))
    values = n * sum(m.rank_takes for m in back)  # what the projection back reads is what the core writes
    core = _core(ops, groups, attention, projected, reads, values, load)
    for name, gives, _ in together(after):
        core = ops.write(name, (core,), n * gives)
    return ops.write("attention output", (core,), n * hidden)


def _core(
    ops: Ops,
    groups: Sequence[TensorGroup],
    attention: Attention | None,
    projected: Sequence[str],
    reads: list[str],
    values: int,
    load: Load,
) -> str:
    if isinstance(attention, LatentAttention):
        if isinstance(attention, SparseLatentAttention):
            if attention.index_heads:
                reads = [*reads, _chosen(ops, reads, attention.topk, load.past + load.tokens, load)]
            return _absorbed(ops, attention, projected, reads, values, load)
        return (_absorbed if load.absorbed else _expanded)(ops, attention, projected, reads, values, load)
    if isinstance(attention, CompressedAttention):
        if attention.index_heads:
            compressed = (load.past + load.tokens) // max(1, attention.ratio)
            reads = [*reads, _chosen(ops, reads, attention.topk, compressed, load)]
        return ops.write("attention", reads, load.tokens * attention.heads * attention.dim)
    if isinstance(attention, DeltaNet | KimiDelta):
        return _delta_rule(ops, attention, projected, reads, values, load)
    if isinstance(attention, Mamba2):
        return _mamba2(ops, attention, reads, values, load)
    if isinstance(attention, LightningAttention):
        states = math.ceil(load.tokens / attention.block) * attention.state_size
        held = ops.write("states of chunks", reads, states, FLOAT32)
        return ops.write("attention", (ops.write("scanned", (*reads, held), values), *reads), values)
    if isinstance(attention, BlockSparseAttention):
        reads = [*reads, _chosen(ops, reads, attention.topk, load.past + load.tokens, load)]
    if isinstance(attention, FullAttention) and any(_QK_NORM.search(group.rule.name) for group in groups):
        normed = load.tokens * (attention.heads + attention.kv_heads) * attention.key_dim
        reads = [*reads, ops.write("q and k, normed", reads, normed)]
    return ops.write("attention", reads, values)


def _chosen(ops: Ops, reads: Sequence[str], topk: int, length: int, load: Load) -> str:
    """An indexer's scores of `length` entries for each token, as many tokens at a time as fit, and what it chooses."""
    scores = ops.write("indexer scores", reads, min(load.tokens * length, INDEX_SCORES // FLOAT32), FLOAT32)
    return ops.write("chosen entries", (scores,), load.tokens * topk, INT32)


def _absorbed(
    ops: Ops, attention: LatentAttention, projected: Sequence[str], reads: Sequence[str], values: int, load: Load
) -> str:
    """Queries are taken into the latent space, and values out of it."""
    n, heads = load.tokens, attention.heads
    latent = ops.write("latent, normed", projected, n * attention.latent)
    queries = ops.write("queries in latent space", reads, n * heads * (attention.latent + attention.rope_dim))
    core = ops.write("attention in latent space", (queries, latent, *reads), n * heads * attention.latent)
    return ops.write("attention", (core,), values)


def _expanded(
    ops: Ops, attention: LatentAttention, projected: Sequence[str], reads: Sequence[str], values: int, load: Load
) -> str:
    """Keys and values of all heads are expanded; those of a cached past in pieces, while those of the pass are held."""
    n, heads, entry = load.tokens, attention.heads, attention.latent + attention.rope_dim
    both = heads * (attention.nope_dim + attention.value_dim)
    keys = heads * (attention.nope_dim + attention.rope_dim)
    latent = ops.write("latent, normed", projected, n * attention.latent)
    held = [ops.write("keys and values", (latent,), n * both)]
    held.append(ops.write("keys", (*held, *projected), n * keys))
    core = ops.write("attention", (*reads, *held), values)
    if not load.past:
        return core
    past = min(load.past, EXPANDED_PAST)
    cached = ops.write("latents of the past", (), past * entry)
    expanded = ops.write("keys and values of the past", (cached,), past * both)
    past_keys = ops.write("keys of the past", (expanded, cached), past * keys)
    of_past = ops.write("attention to the past", (*reads, expanded, past_keys), values)
    return ops.write("attention to all", (core, of_past, *held), values)


def _delta_rule(
    ops: Ops,
    attention: DeltaNet | KimiDelta,
    projected: Sequence[str],
    reads: Sequence[str],
    values: int,
    load: Load,
) -> str:
    """What is computed within chunks of tokens, and the state at the start of each; the result passes a norm with its
    gate. third_party/flash_linear_attention/ops/chunk.py `chunk_gated_delta_rule_fwd`; KDA has a gate a channel."""
    n, chunks = load.tokens, math.ceil(load.tokens / DELTA_CHUNK)
    if isinstance(attention, DeltaNet):
        heads, keys, query_keys = attention.value_heads, attention.value_heads * attention.key_dim, attention.key_heads
        channels, gate = 2 * query_keys * attention.key_dim + heads * attention.value_dim, heads
        normed = 2 * query_keys * attention.key_dim
    else:
        heads, keys = attention.heads, attention.heads * attention.dim
        channels, gate, normed = 3 * keys, keys, 2 * keys
    convolved = ops.write("convolved", projected, n * channels)
    gates = ops.write("gates", reads, n * gate, FLOAT32)
    query = ops.write("q and k, normed", (convolved,), n * normed)
    products = ops.write("products in chunks", (query, gates), n * heads * DELTA_CHUNK, FLOAT32)
    solved = ops.write("solved", (products,), n * heads * DELTA_CHUNK)
    erased = ops.write("keys to erase", (query, solved, gates), n * keys)
    written = ops.write("values to write", (convolved, solved, gates), values)
    states = ops.write("states of chunks", (query, erased, written, gates), chunks * attention.state_size)
    new = ops.write("values written", (written, erased, states), values)
    core = ops.write("scanned", (query, new, states, gates, solved, erased), values)
    return ops.write("attention", (core, *reads), values)


def _mamba2(ops: Ops, attention: Mamba2, reads: Sequence[str], values: int, load: Load) -> str:
    """The scan in chunks (model_executor/layers/mamba/ops/ssd_combined.py), and its norm with the gate."""
    n, chunks = load.tokens, math.ceil(load.tokens / attention.chunk)
    channels = attention.heads * attention.head_dim + 2 * attention.groups * attention.state
    convolved = ops.write("convolved", reads, n * channels)
    steps = ops.write("steps and decays", reads, 2 * n * attention.heads, FLOAT32)
    states = ops.write("states of chunks", (convolved, steps), chunks * attention.state_size, FLOAT32)
    products = ops.write("products in chunks", (convolved,), chunks * attention.groups * attention.chunk**2, FLOAT32)
    core = ops.write("scanned", (convolved, steps, states, products), values)
    return ops.write("attention", (core, *reads), values)
