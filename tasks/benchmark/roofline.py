"""How near decoding comes to what the memory allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from day0.architecture.attention.base import Held
from day0.architecture.cache import dtypes_of
from day0.architecture.dtypes import BYTES
from day0.architecture.parallel import Sizes
from day0.architecture.stored import Stored
from day0.architecture.structure import Structure
from day0.architecture.work import Step, WorkModel
from day0.artifacts.benchmark import Roofline


@dataclass(frozen=True)
class DecodeBytes:
    """Bytes that one decode step at batch 1 must read."""

    weights: int
    kv_cache: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache


def decode_bytes(structure: Structure, stored: Stored, kv_dtype: str, context: float) -> DecodeBytes:
    """What a decode step of one sequence reads from memory at least, summed over the ranks, at `context` tokens.

    Weights as `stored`, with their scales: every matrix once, the chosen ones of the experts, and of the embedding one
    row (a tied one is the head too, which is read whole). Cache: what the attention of each layer reads, at most its
    window, and recurrent states. Activations stay in the processor's caches and are not counted.
    """
    dtypes = dtypes_of(structure, kv_dtype, kv_dtype)
    work = WorkModel(structure, stored, {held: BYTES.get(dtypes.of(held), 1) for held in get_args(Held)})
    classes = work.rank_work(Step(sequences=1, new=1, past=round(context)), Sizes(1, 1)).classes
    return DecodeBytes(
        weights=round(sum(part.weight_bytes for part in classes)),
        kv_cache=round(sum(part.cache_bytes for part in classes)),
    )


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
