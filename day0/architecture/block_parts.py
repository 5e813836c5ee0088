"""What the operators of a layer are made from: the load of a pass, matrices with their sizes on a rank, a list."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from day0.architecture.bound import BoundRule
from day0.architecture.lifetimes import Op
from day0.architecture.parallel import Sizes

FLOAT32 = 4
INT32 = 4
INT64 = 8

#: How many times the even share of (token, expert) pairs the rank with the busiest experts has to hold: an assumption.
EXPERT_IMBALANCE = 1.5


@dataclass(frozen=True)
class Load:
    """What an attention replica handles in one pass."""

    tokens: int
    past: int = 0
    """Tokens that the longest sequence has cached before the pass."""
    rows: int = 1
    """Tokens whose logits are computed."""
    width: int = 2
    """Bytes of an element of the activations."""
    absorbed: bool = False
    """Latent attention in the latent space, as engines do for few new tokens a sequence."""
    sorted_sampling: bool = False
    """For top-k and top-p the sampler sorts all logits (vLLM without Triton) instead of masking them in place."""
    imbalance: float = EXPERT_IMBALANCE


class Ops:
    """A list of operators in the making. Each is called by what it writes; a name given again gets a number."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.made: list[Op] = []
        self._names: set[str] = set()

    def write(self, name: str, inputs: Sequence[str], elements: int, width: int | None = None) -> str:
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name} {number}"
        self._names.add(unique)
        self.made.append(Op(unique, tuple(inputs), unique, elements, self.width if width is None else width))
        return unique


@dataclass(frozen=True)
class Matrix:
    """What one matrix takes and gives for each token, in all and on a rank."""

    rule: BoundRule
    takes: int
    gives: int
    rank_takes: int
    rank_gives: int
    writes: str
    """What it writes, together with those that the engine computes as one."""

    @property
    def kind(self) -> str:
        return self.rule.rule.kind

    @property
    def is_numbered(self) -> bool:
        """There is one for each of a layer's experts."""
        return self.rule.rule.experts is not None or "expert" in self.rule.numbers

    @property
    def is_output(self) -> bool:
        """Its input is divided over the ranks, and its result added up."""
        return self.rule.rule.split.how == "row"


def matrix_of(rule: BoundRule, sizes: Sizes) -> Matrix | None:
    """None for what no token is multiplied by: vectors, convolutions, tables."""
    expert_dim = rule.rule.experts
    shape = [size for dim, size in enumerate(rule.shape) if dim != expert_dim]
    if len(shape) != 2 or rule.rule.kind in ("norm", "embedding", "head", "buffer"):
        return None
    dim = None if rule.dim is None else rule.dim - (expert_dim is not None and expert_dim < rule.dim)
    row = rule.rule.split.how == "row"
    out = 0 if dim is None else 1 - dim if row else dim
    gives, takes = shape[out], shape[1 - out]
    divided = _on_rank(rule, sizes.expert_tp if rule.rule.kind == "routed_expert" else sizes.tp)
    target = rule.targets.get("vllm")
    name = (target.name if target else rule.name).removesuffix(".weight")
    return Matrix(
        rule,
        takes,
        gives,
        rank_takes=takes if divided is None or not row else divided,
        rank_gives=gives if divided is None or row else divided,
        writes=name.rsplit(".", 1)[-1],
    )


def _on_rank(rule: BoundRule, ranks: int) -> int | None:
    """Of the divided dimension what the rank with most has; None where nothing is divided."""
    if rule.dim is None:
        return None
    return sum(segment.size // segment.units * math.ceil(segment.units / ranks) for segment in rule.segments)


def together(matrices: Sequence[Matrix]) -> Iterator[tuple[str, int, int]]:
    """What matrices write, those as one that the engine fuses: name, elements a token, and what each takes."""
    fused: dict[tuple[str, int], list[Matrix]] = defaultdict(list)
    for matrix in matrices:
        fused[matrix.writes, matrix.takes].append(matrix)
    for (name, takes), parts in fused.items():
        yield name, sum(part.rank_gives for part in parts), takes
