"""Layouts `vllm` and `deepseek`: what the engines' own loaders look for."""

from __future__ import annotations

from collections.abc import Mapping

from day0.architecture.bound import BoundFamily
from day0.architecture.cuts import Cutter
from day0.architecture.slicing import World
from day0.artifacts.shards import Dropped
from day0.errors import InputError
from tasks.reshard.layouts.named import NamedLayout
from tasks.reshard.units import Unit


class VllmLayout(NamedLayout):
    """vLLM's sharded_state: the state dict of each rank's own model."""

    name = "vllm"

    @staticmethod
    def expert_parallel(tp: int, pp: int, ep: int) -> int:
        if ep not in (1, tp):
            raise InputError(
                f"layout 'vllm' with tp {tp} has ep 1 or {tp}, not {ep}: its loader tells files apart by the tensor "
                "and pipeline parallel rank alone, and the engine divides experts over all ranks of a stage"
            )
        return ep

    def file_name(self, stage: int, rank: int, part: int) -> str:
        if self.world.pp > 1:
            return f"model-pp-{stage}-tp-{rank}-part-{part}.safetensors"
        return f"model-rank-{rank}-part-{part}.safetensors"


class DeepSeekLayout(NamedLayout):
    """What DeepSeek's own inference code loads: one file a rank, experts whole."""

    name = "deepseek"

    def __init__(
        self, bound: BoundFamily, world: World, cutter: Cutter, part_bytes: int, cut_to_share: bool = False
    ) -> None:
        super().__init__(bound, world, cutter, 1 << 62, cut_to_share)

    @staticmethod
    def expert_parallel(tp: int, pp: int, ep: int) -> int:
        if pp > 1:
            raise InputError("layout 'deepseek' has no pipeline parallelism; use pp 1")
        if ep not in (1, tp):
            raise InputError(f"layout 'deepseek' with tp {tp} has ep {tp}: every rank holds whole experts")
        return tp

    def _apart(self, unit: Unit, joins: Mapping[tuple[int, str], object]) -> None:
        reason = "multi-token prediction: the loader takes no tensor that its model lacks"
        self.dropped += [Dropped(tensor=tensor.name, reason=reason) for tensor in unit.draft.inputs]

    def file_name(self, stage: int, rank: int, part: int) -> str:
        return f"model{rank}-mp{self.world.tp}.safetensors"
