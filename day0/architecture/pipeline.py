"""Pipeline parallelism: which layers a stage holds, as the engine divides them."""

from __future__ import annotations

import itertools
from functools import lru_cache


def stage_layers(layers: int, pp: int, stage: int) -> int:
    """How many layers a pipeline stage holds.

    What does not divide goes one layer each to the stages before the last, backwards (vLLM 0.32.0,
    distributed/utils.py `get_pp_indices`): 61 layers at pp 4 are 15, 15, 16, 15.
    """
    return layers // pp + (1 if pp - 1 - layers % pp <= stage < pp - 1 else 0)


@lru_cache(1 << 12)
def pipeline_stages(layers: int, pp: int) -> tuple[tuple[int, int], ...]:
    """The layers of each stage, as (first, one past the last)."""
    counts = (stage_layers(layers, pp, stage) for stage in range(pp))
    return tuple(itertools.pairwise(itertools.accumulate(counts, initial=0)))
