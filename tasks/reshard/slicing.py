"""Which part of a dimension a rank holds, and which layers a pipeline stage holds."""

from __future__ import annotations

from day0.errors import InputError

Range = tuple[int, int]


def rank_range(length: int, units: int, ranks: int, rank: int, replicate: bool, what: str) -> Range:
    """The range of a dimension of `length` that `rank` of `ranks` holds; `units` of equal size are never cut.

    With `replicate` and fewer units than ranks, rank r holds unit r // (ranks / units), as vLLM and Megatron have it
    (cutting the dimension into `ranks` pieces would cut a head in two).

    Raises:
        InputError: it does not divide; names the dimension, its size and the divisor.
    """
    unit = length // units
    if replicate and units < ranks:
        if ranks % units:
            raise InputError(f"tp {ranks} is not divisible by {what} = {units}, so they cannot be shared evenly")
        held = rank // (ranks // units)
        return held * unit, (held + 1) * unit
    if units % ranks:
        raise InputError(f"{what} = {units} is not divisible by tp {ranks}; choose a tp that divides it")
    held = units // ranks
    return rank * held * unit, (rank + 1) * held * unit


def stage_layers(layers: int, stages: int) -> list[Range]:
    """The layers of each pipeline stage, as vLLM's `get_pp_indices` has it.

    What does not divide goes to the stages before the last, from the back: the last holds the head.

    Raises:
        InputError: more stages than layers.
    """
    if stages > layers:
        raise InputError(f"pp {stages} is more than the model's {layers} layers; choose a smaller pp")
    counts = [layers // stages] * stages
    for extra in range(layers % stages):
        counts[-2 - extra] += 1
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return [(start, start + count) for start, count in zip(starts, counts, strict=True)]
