"""The operators of one decoder layer as an engine runs it, with the sizes of what they write.

For one rank of a layout and one pass, from the family's rules (a matrix writes its rows for each token) and the kind of
attention (what its core writes besides). What an engine does in place writes nothing: rotary embeddings, adding to the
residual stream, all-reduces. What vLLM does was read in 0.32.0. The lists are what `lifetimes.pools` is given.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from day0.architecture.block_attention import attention_ops
from day0.architecture.block_parts import FLOAT32, INT32, INT64, Load, Matrix, Ops, matrix_of
from day0.architecture.decoder_rules import BoundRouting
from day0.architecture.keys import look_up
from day0.architecture.lifetimes import Op
from day0.architecture.parallel import Sizes
from day0.architecture.structure import Structure

#: Bytes for each logit that torch.sort takes on CUDA beside its results: the unsorted indices, and a second copy of
#: keys and indices (aten/src/ATen/native/cuda/SortStable.cu `segmented_sort_pairs`).
SORT_SCRATCH = INT64 + FLOAT32 + INT64

#: The config key of how many layers a block of attention residuals has.
BLOCK_KEY = "attn_res_block_size"


def alike(structure: Structure, span: tuple[int, int]) -> list[tuple[int, ...]]:
    """The layers of a span, those together that have the same rules and the same attention."""
    seen: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(structure.groups):
        for layer in () if group.mtp else group.layers or ():
            seen[layer].append(index)
    attention = {layer: i for i, entry in enumerate(structure.attention) if not entry.mtp for layer in entry.layers}
    kinds: dict[tuple[int | None, tuple[int, ...]], list[int]] = defaultdict(list)
    for layer in range(*span):
        kinds[attention.get(layer), tuple(seen[layer])].append(layer)
    return [tuple(layers) for layers in kinds.values()]


def layer_ops(structure: Structure, layer: int, sizes: Sizes, load: Load, end: int | None = None) -> tuple[Op, ...]:
    """The operators of one decoder layer, in a stage whose last layer comes before `end` (None: the model's last):
    attention, then MLP or experts, as far as it has them."""
    groups = [group for group in structure.groups if not group.mtp and group.layers and layer in group.layers]
    matrices = [matrix for group in groups if (matrix := matrix_of(group.rule, sizes))]
    ops = Ops(load.width)
    hidden = structure.hidden
    residual = _residual(ops, structure, structure.layers if end is None else end, load)
    flow = ops.write("hidden", (residual,), load.tokens * hidden)
    entry = next((e for e in structure.attention if not e.mtp and layer in e.layers), None)
    attention = entry.attention.rank(sizes.tp) if entry else None
    flow = attention_ops(ops, groups, matrices, attention, hidden, flow, load)
    routing = next((r for r in structure.routing if not r.mtp and layer in r.layers), None)
    flow = _feed_forward(ops, matrices, routing, hidden, sizes, flow, load)
    ops.write("next layer", (residual, flow), 0)
    return tuple(ops.made)


def end_ops(structure: Structure, sizes: Sizes, load: Load) -> tuple[Op, ...]:
    """The last norm, logits of `load.rows` tokens, and sampling (v1/sample/sampler.py). The engine keeps `hidden`.

    With a sampler that sorts, Llama-3-8B (8,192 tokens, 256 sequences) has its peak here: 1.22 GiB on one device and
    on each of two. vllm-project/vllm#10511 measured 1.26 on both, which layers divided over two ranks could not be.
    """
    ops = Ops(load.width)
    logits = load.rows * structure.padded_vocab
    ops.write("hidden", (_residual(ops, structure, structure.layers, load),), load.tokens * structure.hidden)
    ops.write("last tokens", ("hidden",), load.rows * structure.hidden)
    ops.write("logits", ("last tokens",), math.ceil(logits / sizes.tp))
    gathered = ops.write("gathered logits", ("logits",), logits) if sizes.tp > 1 else "logits"
    ops.write("float32 logits", (gathered,), logits, FLOAT32)
    if load.sorted_sampling:
        ops.write("sort scratch", ("float32 logits",), logits, SORT_SCRATCH)
        ops.write("sorted logits", ("float32 logits", "sort scratch"), logits, FLOAT32)
        ops.write("sorted indices", ("sort scratch", "sorted logits"), logits, INT64)
        ops.write("top-k mask", ("sorted logits",), logits, 1)
        ops.write("sorted probabilities", ("sorted logits",), logits, FLOAT32)
        ops.write("top-p mask", ("sorted probabilities",), logits, 1)
        ops.write("masked", ("top-p mask", "sorted logits", "sorted indices", "float32 logits"), 0)
    ops.write("probabilities", ("float32 logits",), logits, FLOAT32)
    ops.write("noise", ("probabilities",), logits, FLOAT32)
    ops.write("sampled", ("probabilities", "noise", "float32 logits", gathered), load.rows, INT64)
    return tuple(ops.made)


def _residual(ops: Ops, structure: Structure, end: int, load: Load) -> str:
    """The residual stream; of hyper-connections several (DeepSeek V4), and of attention residuals (Kimi-K3) the sums of
    all blocks of layers before `end` (models/kimi_k3/nvidia/model.py `block_residual`)."""
    one, config = load.tokens * structure.hidden, structure.family.config
    mixing = (g.rule.shape[1] for g in structure.groups if g.kind == "residual" and len(g.rule.shape) == 2)
    streams = max((size // structure.hidden for size in mixing if size % structure.hidden == 0), default=1)
    block = look_up(config, BLOCK_KEY) or look_up(config, f"text_config.{BLOCK_KEY}")
    blocks = math.ceil(end / block) if isinstance(block, int) and block > 0 else 0
    return ops.write("residual", (), one * (streams + blocks))


def _feed_forward(
    ops: Ops,
    matrices: Sequence[Matrix],
    routing: BoundRouting | None,
    hidden: int,
    sizes: Sizes,
    flow: str,
    load: Load,
) -> str:
    """MLP, or shared experts and then routed ones; gives what holds the result."""
    experts = [m for m in matrices if m.kind == "routed_expert" and m.is_numbered]
    inner = next((m.takes for m in experts if not m.is_output), hidden)  # latent experts take less (Kimi-K3)
    beside = [m for m in matrices if inner == hidden or (m.takes, m.gives) not in ((hidden, inner), (inner, hidden))]
    results = []
    for what, kind in (("MLP", "dense_mlp"), ("shared experts", "shared_expert")):
        held = _mlp(ops, what, [m for m in beside if m.kind == kind], hidden, flow, load)
        results += [held] if held else []
    if experts and routing:
        results.append(_experts(ops, experts, routing, hidden, inner, sizes, flow, load))
    if len(results) > 1:  # added up in place, so that the last is alive until all are there
        ops.write("sum", results, 0)
    return results[-1] if results else flow


def _mlp(ops: Ops, what: str, matrices: Sequence[Matrix], hidden: int, flow: str, load: Load) -> str | None:
    """Gate and up as one, their product, and down. A gate of one value a token (Qwen's shared expert) is no part."""
    up = sum(m.rank_gives for m in matrices if not m.is_output and m.takes == hidden and m.gives > 1)
    down = sum(m.rank_takes for m in matrices if m.is_output)
    if not up or not down:
        return None
    opened = ops.write(f"{what}: gate and up", (flow,), load.tokens * up)
    product = ops.write(f"{what}: activation", (opened,), load.tokens * down)
    return ops.write(f"{what}: down", (product,), load.tokens * hidden)


def _experts(
    ops: Ops,
    matrices: Sequence[Matrix],
    routing: BoundRouting,
    hidden: int,
    inner: int,
    sizes: Sizes,
    flow: str,
    load: Load,
) -> str:
    """Router, experts in two workspaces that each hold the larger of what goes through them (model_executor/layers/
    fused_moe/experts/triton_moe.py `workspace_shapes`), and the weighted sum. Experts take `inner` elements a token.

    A rank of an expert parallel group holds its share of all tokens' (token, expert) pairs, times the imbalance.
    """
    n = load.tokens
    up = sum(m.rank_gives for m in matrices if not m.is_output)
    down = sum(m.rank_takes for m in matrices if m.is_output)
    chosen = ops.write("router logits", (flow,), n * routing.experts, FLOAT32)
    weights = ops.write("chosen experts", (chosen,), 2 * n * routing.per_token, INT32)
    pairs = expert_pairs(routing, n * sizes.group_replicas, sizes.ep, load.imbalance)
    source = flow if inner == hidden else ops.write("experts' input", (flow,), n * inner)
    if sizes.ep > sizes.tp:
        source = ops.write("tokens received", (source, weights), pairs * inner)
    second = ops.write("experts: gate and up, then down", (source, weights), pairs * max(up, inner))
    first = ops.write("experts: activation", (second,), pairs * max(down, inner))
    result = ops.write("experts: result", (first, second, weights), n * inner)
    return result if inner == hidden else ops.write("experts: output", (result,), n * hidden)


def expert_pairs(routing: BoundRouting, tokens: int, ep: int, imbalance: float) -> int:
    """Most (token, expert) pairs that one of `ep` groups of experts is planned to hold of `tokens` tokens."""
    every = tokens * routing.per_token
    if ep == 1:
        return every
    most = tokens * min(routing.per_token, math.ceil(routing.experts / ep))
    return min(most, math.ceil(every / ep * imbalance))
