"""The sizes of a parallel layout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Sizes:
    """Tensor, pipeline, expert, data and decode-context parallel sizes, as vLLM and SGLang count them.

    A pipeline stage of a replica group has max(tp, ep) ranks, one of the two dividing the other. With ep > tp the
    experts are divided over ep ranks and attention is data-parallel, ep / tp times; with ep ≤ tp each group of tp / ep
    ranks shares its experts. `dp` counts the replicas of attention: `max(tp, ep)` divides `tp · dp`.
    `dcp` ranks of a tensor parallel group share the tokens of a cache that they would otherwise all hold.
    """

    tp: int
    pp: int
    ep: int = 1
    dp: int = 1
    dcp: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def stage_ranks(self) -> int:
        """Ranks among which the experts of one stage are divided."""
        return max(self.tp, self.ep)

    @property
    def expert_tp(self) -> int:
        """How many ranks share each expert."""
        return self.stage_ranks // self.ep

    @property
    def group_replicas(self) -> int:
        """Attention replicas that share one set of experts."""
        return self.stage_ranks // self.tp

    @property
    def groups(self) -> int:
        """Whole copies of the model."""
        return self.tp * self.dp // self.stage_ranks
