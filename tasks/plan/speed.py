"""How long a decode step should take under a layout, for ranking layouts on one target. No promise of speed."""

from __future__ import annotations

from day0.architecture.dtypes import BYTES
from day0.architecture.pipeline import stage_layers
from day0.architecture.structure import Structure
from day0.target import Target
from tasks.plan.constraints import Sizes
from tasks.plan.memory import MemoryModel, replica_sequences

BYTES_OF_ACTIVATION = 2


def seconds_per_token(model: MemoryModel, target: Target, sizes: Sizes, context: int, concurrency: int) -> float | None:
    """One decode step of one replica: the sum over its pipeline stages, which a token passes one after another.

    A stage takes the longer of reading its weights and cache and of its FLOPs (2 for each weight and sequence), at
    the target's rates, and two all-reduces a layer of the hidden state, each moving 2 · (tp - 1) / tp of it
    (ring all-reduce) over the links. None where the target's memory bandwidth is not known.
    """
    if target.bandwidth is None:
        return None
    structure = model.structure
    sequences = replica_sequences(concurrency, sizes)
    rate = target.flops.get(model.weight_dtype)
    total = 0.0
    for stage in range(sizes.pp):
        weights = model.weights(sizes, stage)
        read = weights + sequences * context * model.kv_bytes_per_token(sizes, stage)
        time = read / target.bandwidth.value
        if rate:
            parameters = weights / BYTES[model.weight_dtype]
            time = max(time, 2 * parameters * sequences / rate.value)
        total += time + _all_reduce(structure, target, sizes, stage, sequences)
    return total


def _all_reduce(structure: Structure, target: Target, sizes: Sizes, stage: int, sequences: int) -> float:
    if sizes.tp == 1 or target.link_bandwidth is None:
        return 0.0
    layers = stage_layers(structure.config.layers, sizes.pp, stage)
    moved = 2 * (sizes.tp - 1) / sizes.tp * structure.config.hidden_size * BYTES_OF_ACTIVATION * sequences
    return 2 * layers * moved / target.link_bandwidth.value
