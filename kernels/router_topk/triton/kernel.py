"""Choice of experts in Triton: a warp has a token's scores in its registers and takes the best of them k times.

Scores are ordered as integers: floats' bits, those of negative numbers inverted, order as the floats do, and NaN is
made the largest. The least integer is no float's, and stands for nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

NOTHING, NAN, FAR = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1), tl.constexpr(2**31 - 1)
#: Experts for each warp and tile, as far as tokens have so few: 8 for each thread.
_WARP = 256


@triton.jit
def _order(score):
    bits = score.to(tl.int32, bitcast=True)
    return tl.where(score != score, NAN, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _score(order):
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)  # of NAN: a NaN


@triton.jit
def _sqrt_softplus(x):
    """The root of log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), the logarithm as 2 artanh(e / (2 + e)), e at most 1."""
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    z = s * s
    p = tl.fma(z, 2.0 / 15, 2.0 / 13)
    p = tl.fma(p, z, 2.0 / 11)
    p = tl.fma(p, z, 2.0 / 9)
    p = tl.fma(p, z, 2.0 / 7)
    p = tl.fma(p, z, 2.0 / 5)
    p = tl.fma(p, z, 2.0 / 3)
    p = tl.fma(p, z, 2.0)
    return tl.sqrt(tl.fma(p, s, tl.where(x > 0.0, x, 0.0)))


@triton.jit
def _scores(x, SCORING: tl.constexpr):
    if SCORING == "softmax":
        e = tl.exp(x - tl.max(tl.max(x, 2), 1)[:, None, None])  # a NaN makes the sum one, and so each score
        return e / tl.sum(tl.sum(e, 2), 1)[:, None, None]
    elif SCORING == "sigmoid":
        return 1.0 / (1.0 + tl.exp(-x))
    else:
        return _sqrt_softplus(x)


@triton.jit
def _without_dropped(order, member, PAIR: tl.constexpr, KEPT: tl.constexpr, GROUPS: tl.constexpr):
    """The orders, (tokens, groups, members), with nothing in groups that are not among the KEPT best."""
    best = tl.max(order, 2)
    if PAIR:
        first = tl.min(tl.where(order == best[:, :, None], member, FAR), 2)
        second = tl.max(tl.where(member == first[:, :, None], NOTHING, order), 2)
        best = tl.where(second == NOTHING, best, _order(_score(best) + _score(second)))
    group = tl.arange(0, GROUPS)
    before = group[None, None, :] < group[None, :, None]
    better = (best[:, None, :] > best[:, :, None]) | ((best[:, None, :] == best[:, :, None]) & before)
    rank = tl.sum(better.to(tl.int32), 2)
    return tl.where((rank < KEPT)[:, :, None], order, NOTHING)


#: Numbers of tokens are no reason to compile anew.
@triton.jit(do_not_specialize=["tokens"])
def _tokens(logits, bias, weights, experts, tokens, stride, scale, SCORING: tl.constexpr, BIASED: tl.constexpr,
            RENORMALISE: tl.constexpr, K: tl.constexpr, K_SLOTS: tl.constexpr, GROUPS: tl.constexpr,
            MEMBERS: tl.constexpr, KEPT: tl.constexpr, GROUP_SLOTS: tl.constexpr, MEMBER_SLOTS: tl.constexpr,
            TOKENS: tl.constexpr):  # fmt: skip
    """TOKENS tokens; experts as (groups, members), each a power of two of slots."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    group = tl.arange(0, GROUP_SLOTS)[None, :, None]
    member = tl.arange(0, MEMBER_SLOTS)[None, None, :]
    expert = group * MEMBERS + member
    real = (group < GROUPS) & (member < MEMBERS)
    place = logits + token.to(tl.int64)[:, None, None] * stride + expert
    x = tl.load(place, real & (token < tokens)[:, None, None], float("-inf")).to(tl.float32)
    scores = _scores(x, SCORING)
    order = _order(scores + tl.load(bias + expert, real, 0.0) if BIASED else scores)
    order = tl.where(real, order, NOTHING)
    if GROUPS > 1:
        order = _without_dropped(order, member, BIASED, KEPT, GROUP_SLOTS)
    order = tl.reshape(order, [TOKENS, GROUP_SLOTS * MEMBER_SLOTS])
    bits = tl.reshape(scores.to(tl.int32, bitcast=True), [TOKENS, GROUP_SLOTS * MEMBER_SLOTS])
    expert = tl.reshape(tl.where(real, expert, FAR), [1, GROUP_SLOTS * MEMBER_SLOTS])
    slot = tl.arange(0, K_SLOTS)[None, :]
    chosen_experts = tl.zeros([TOKENS, K_SLOTS], tl.int32)
    chosen_bits = tl.zeros([TOKENS, K_SLOTS], tl.int32)
    for i in range(K):
        best = tl.max(order, 1)[:, None]
        at = tl.min(tl.where(order == best, expert, FAR), 1)[:, None]
        chosen = expert == at
        score = tl.max(tl.where(chosen, bits, NOTHING), 1)[:, None]
        order = tl.where(chosen, NOTHING, order)
        chosen_experts = tl.where(slot == i, at, chosen_experts)
        chosen_bits = tl.where(slot == i, score, chosen_bits)
    weight = chosen_bits.to(tl.float32, bitcast=True)
    if RENORMALISE:
        weight = weight / tl.sum(tl.where(slot < K, weight, 0.0), 1)[:, None]
    target = token.to(tl.int64)[:, None] * K + slot
    inside = (token < tokens)[:, None] & (slot < K)
    tl.store(weights + target, weight * scale, inside)
    tl.store(experts + target, chosen_experts, inside)


def run(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    scoring: str,
    groups: int,
    groups_kept: int,
    renormalise: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, float32, and experts, int32, both (tokens, k), for logits (tokens, experts), best first."""
    tokens, experts = logits.shape
    if scoring not in ("softmax", "sigmoid", "sqrtsoftplus"):
        raise ValueError(f"router_topk: scoring must be softmax, sigmoid or sqrtsoftplus, got {scoring!r}")
    if groups < 1 or experts % groups:
        raise ValueError(f"router_topk: {experts} experts do not divide into {groups} groups")
    if not 1 <= groups_kept <= groups:
        raise ValueError(f"router_topk: {groups_kept} of {groups} groups cannot be kept")
    if not 1 <= k <= experts // groups * groups_kept:
        raise ValueError(f"router_topk: {k} experts cannot be chosen of {experts // groups * groups_kept}")
    if bias is not None and (bias.shape != (experts,) or bias.dtype != torch.float32):
        raise ValueError(f"router_topk: bias must be float32 of {experts} numbers, got {tuple(bias.shape)}")
    weights = torch.empty(tokens, k, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(tokens, k, dtype=torch.int32, device=logits.device)
    if not tokens:
        return weights, chosen
    logits = logits if logits.stride(1) == 1 or experts == 1 else logits.contiguous()
    given = logits if bias is None else bias.contiguous()  # a place for what is not used
    members = experts // groups
    slots = (triton.next_power_of_2(groups), triton.next_power_of_2(members))
    together, warps = configuration(tokens, slots[0] * slots[1])
    options = {"GROUPS": groups, "MEMBERS": members, "KEPT": groups_kept, "GROUP_SLOTS": slots[0]}
    options |= {"MEMBER_SLOTS": slots[1], "K": k, "K_SLOTS": triton.next_power_of_2(k), "TOKENS": together}
    with torch.accelerator.device_index(logits.device.index):
        _tokens[(triton.cdiv(tokens, together),)](
            logits, given, weights, chosen, tokens, logits.stride(0), scale, SCORING=scoring,
            BIASED=bias is not None, RENORMALISE=renormalise, **options, num_warps=warps,
        )  # fmt: skip
    return weights, chosen


def configuration(tokens: int, slots: int) -> tuple[int, int]:
    """Tokens of a tile, and its warps: one warp for a token, or for several that have few experts."""
    warps = 4 if tokens * slots >= 1 << 18 else 1
    together = max(1, min(warps * _WARP // slots, triton.next_power_of_2(tokens)))
    return max(together, warps) if slots >= _WARP else together, warps


_TYPES = ("*bf16", "*fp16", "*fp32")

#: Experts, choices, scoring, biased, groups, groups kept: DeepSeek-V3 and V4, Kimi K2 and K3, Qwen3, gpt-oss.
_KINDS = [
    (256, 8, "sigmoid", True, 8, 4),
    (256, 6, "sqrtsoftplus", True, 1, 1),
    (384, 8, "sigmoid", True, 1, 1),
    (896, 16, "sigmoid", True, 1, 1),
    (128, 8, "softmax", False, 1, 1),
    (128, 4, "softmax", False, 1, 1),
]


def _ahead(
    type: str, tokens: int, experts: int, k: int, scoring: str, biased: bool, groups: int, kept: int
) -> dict[str, object]:
    slots = (triton.next_power_of_2(groups), triton.next_power_of_2(experts // groups))
    together, warps = configuration(tokens, slots[0] * slots[1])
    data = {"logits": type, "bias": "*fp32" if biased else type, "weights": "*fp32", "experts": "*i32"}
    sizes = {"GROUPS": groups, "MEMBERS": experts // groups, "KEPT": kept, "TOKENS": together}
    slots_of = {"GROUP_SLOTS": slots[0], "MEMBER_SLOTS": slots[1], "K": k, "K_SLOTS": triton.next_power_of_2(k)}
    return {
        "name": f"{scoring}-{k}-of-{experts}-{type[1:]}-{tokens}",
        "function": _tokens,
        "signature": data | {"tokens": "i32", "stride": "i32", "scale": "fp32"},
        "config": {"SCORING": scoring, "BIASED": biased, "RENORMALISE": True, "num_warps": warps} | sizes | slots_of,
        "divisible": (*data, "stride"),
    }


AHEAD = [_ahead(type, tokens, *kind) for type in _TYPES for kind in _KINDS for tokens in (16, 4096)]
