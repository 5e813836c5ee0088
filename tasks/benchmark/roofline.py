"""How near decoding comes to what the memory allows."""

from __future__ import annotations

from dataclasses import dataclass

from day0.architecture.dtypes import BYTES
from day0.artifacts.benchmark import Roofline
from day0.artifacts.profile import Profile


@dataclass(frozen=True)
class DecodeBytes:
    """Bytes that one decode step at batch 1 must read."""

    weights: int
    kv_cache: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache


def decode_bytes(profile: Profile, weight_dtype: str, mean_context: float) -> DecodeBytes | None:
    """What a decode step reads from memory at least, summed over the ranks; None for an unknown dtype.

    Weights: every active parameter once, at the served dtype. The embedding is a lookup of one row
    (`hidden_size` elements), so with untied embeddings its matrix is taken off; with tied ones the same matrix is the
    head, which is read whole. Cache: `bytes_per_token` times the mean context, plus what a sequence
    costs whatever its length. Activations stay in the caches and are not counted.
    """
    element = BYTES.get(weight_dtype)
    if element is None:
        return None
    shape = profile.architecture
    parameters = profile.parameters.active
    if not shape.get("tied_embeddings"):
        parameters -= (int(shape["vocab_size"]) - 1) * int(shape["hidden_size"])
    kv = profile.kv_cache.bytes_per_token * mean_context + profile.kv_cache.bytes_per_sequence
    return DecodeBytes(weights=round(parameters * element), kv_cache=round(kv))


def roofline(work: DecodeBytes, bandwidth: float, tpot: float) -> Roofline:
    """least time per token = bytes per step / bandwidth; share = least / measured TPOT at concurrency 1.

    All ranks of a CPU target read from the same memory, hence one bandwidth for the sum of their bytes.
    After Williams, Waterman and Patterson, "Roofline" (2009), for a step far left of the ridge.
    """
    least = work.total / bandwidth
    return Roofline(
        bytes_per_step=work.total,
        weight_bytes=work.weights,
        kv_bytes=work.kv_cache,
        bandwidth=bandwidth,
        least_seconds_per_token=least,
        measured_seconds_per_token=tpot,
        share=least / tpot,
    )
