"""Which part of a dimension a rank holds, which experts, and which layers a pipeline stage holds."""

from __future__ import annotations

from dataclasses import dataclass

from day0.architecture.pipeline import pipeline_stages
from day0.errors import InputError

MAX_RANKS = 4096

#: [first, one past the last).
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rank:
    """Where a rank stands in each kind of parallelism. Ranks of one pipeline stage are neighbours."""

    rank: int
    tp: int
    pp: int
    ep: int


@dataclass(frozen=True)
class World:
    """Tensor, pipeline and expert parallel sizes, and the ranks that they make.

    A pipeline stage has max(tp, ep) ranks, and one of the two divides the other. With ep ≥ tp the experts are divided
    over all ranks of a stage and everything else over tp of them, ep / tp times (data-parallel attention); with
    ep < tp each group of tp / ep ranks holds a share of the experts and divides each of them (as Megatron's expert
    tensor parallelism, vLLM's and SGLang's ep and moe_tp).
    """

    tp: int
    pp: int
    ep: int

    def __post_init__(self) -> None:
        for name, size in (("tp", self.tp), ("pp", self.pp), ("ep", self.ep)):
            if size < 1:
                raise InputError(f"{name} is {size}; it must be at least 1")
        if max(self.tp, self.ep) % min(self.tp, self.ep):
            raise InputError(f"of tp {self.tp} and ep {self.ep} one must divide the other")
        if self.stage_ranks * self.pp > MAX_RANKS:
            raise InputError(
                f"tp {self.tp} × pp {self.pp} × ep {self.ep} is {self.stage_ranks * self.pp:,} ranks; "
                f"at most {MAX_RANKS:,} are written"
            )

    @property
    def stage_ranks(self) -> int:
        return max(self.tp, self.ep)

    @property
    def expert_tp(self) -> int:
        """How many ranks share each expert."""
        return self.stage_ranks // self.ep

    def ranks(self) -> tuple[Rank, ...]:
        """Every rank; those of a stage are neighbours."""
        return tuple(
            Rank(stage * self.stage_ranks + i, i % self.tp, stage, i // self.expert_tp)
            for stage in range(self.pp)
            for i in range(self.stage_ranks)
        )


def rank_range(length: int, units: int, ranks: int, rank: int, replicate: bool, uneven: bool, what: str) -> Range:
    """The range of a dimension of `length` that `rank` of `ranks` holds; `units` of equal size are never cut.

    With `replicate` and fewer units than ranks, rank r holds unit r // (ranks / units), as vLLM and Megatron have it
    (cutting the dimension into `ranks` pieces would cut a head in two). With `uneven` every rank holds as many units
    as the first, the last ones what is left, maybe nothing.

    Raises:
        InputError: it does not divide; names the dimension, its size and the divisor.
    """
    unit = length // units
    if replicate and units < ranks:
        if ranks % units:
            raise InputError(f"tp {ranks} is not divisible by {what} = {units}, so they cannot be shared evenly")
        held = rank // (ranks // units)
        return held * unit, (held + 1) * unit
    if uneven:
        each = -(-units // ranks)
        return min(rank * each, units) * unit, min((rank + 1) * each, units) * unit
    if units % ranks:
        raise InputError(f"{what} = {units} is not divisible by tp {ranks}; choose a tp that divides it")
    held = units // ranks
    return rank * held * unit, (rank + 1) * held * unit


def expert_range(experts: int, groups: int, group: int) -> Range:
    """The experts of a group: neighbours, and one more for the first ones where they do not divide.

    As vLLM's linear placement (`determine_expert_map`).

    Raises:
        InputError: fewer experts than groups.
    """
    if groups > experts:
        raise InputError(f"ep {groups} is more than the model's {experts} experts; choose a smaller ep")
    base, more = divmod(experts, groups)
    first = group * base + min(group, more)
    return first, first + base + (1 if group < more else 0)


def stage_layers(layers: int, stages: int) -> list[Range]:
    """The layers of each pipeline stage, as vLLM's `get_pp_indices` has it.

    What does not divide goes to the stages before the last, from the back: the last holds the head.

    Raises:
        InputError: more stages than layers.
    """
    if stages > layers:
        raise InputError(f"pp {stages} is more than the model's {layers} layers; choose a smaller pp")
    return list(pipeline_stages(layers, stages))
