"""One rank of vLLM after another in a single process: which tensors its model has, without a world of processes.

For scripts that run inside an environment that has vLLM (not this project's own). Nothing is communicated when a
model is made or loaded, so the process groups are torch's `fake` ones: each knows its size and its own rank, and
does nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_KIMI_K3_GEMM_AR", "0")  # kernels of an accelerator alone, which have no tensors
os.environ.setdefault("VLLM_ENABLE_GEMM_RS", "0")

import torch


def torchvision_without_its_operators() -> None:
    """Let a torchvision built for another torch be imported: transformers' image processors ask for it.

    Two of its operators are registered by name alone; they are never called here.
    """
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # it ends with its object


torchvision_without_its_operators()


@dataclass(frozen=True)
class World:
    """`ep`: the experts of a layer are spread over the ranks of its stage, each whole."""

    tp: int
    pp: int
    ep: bool = False

    @property
    def size(self) -> int:
        return self.tp * self.pp


@contextlib.contextmanager
def rank_of(folder: str, world: World, rank: int, moe_backend: str = "auto") -> Iterator[Any]:
    """As if this process were number `rank` of `world`: yields vLLM's configuration for the model in `folder`.

    `moe_backend`: the kernels that an accelerator would take for the experts, where the layout depends on them.
    """
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry
    from vllm.model_executor.models import utils as model_utils

    model_utils._model_to_pp_missing_layer_names.clear()  # kept by id(), which the next rank's model may have again
    registry._run_in_subprocess = lambda function: function()  # imports the model's module here
    args = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=128,
        enable_expert_parallel=world.ep,
        enable_prefix_caching=False,  # on a CPU, hybrid models refuse what it is by default
        moe_backend=moe_backend,
    )
    config = args.create_engine_config()
    config.parallel_config.tensor_parallel_size = world.tp
    config.parallel_config.pipeline_parallel_size = world.pp
    config.parallel_config.world_size = world.size
    config.parallel_config.rank = rank
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world.size)
    with _no_communication(parallel_state), _any_kernel(moe_backend), set_current_vllm_config(config):
        parallel_state._WORLD = parallel_state.init_world_group(list(range(world.size)), rank, "fake")
        parallel_state._NODE_COUNT = 1
        parallel_state.initialize_model_parallel(world.tp, world.pp, backend="fake")
        before = torch.get_default_dtype()
        torch.set_default_dtype(config.model_config.dtype)
        try:
            yield config
        finally:
            torch.set_default_dtype(before)
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()


@contextlib.contextmanager
def _no_communication(parallel_state: Any) -> Iterator[None]:
    """Groups without shared memory, message queues and gloo, for as long as the context lasts."""
    new_group, make = torch.distributed.new_group, parallel_state.GroupCoordinator

    def fake_group(ranks: list[int], backend: str = "fake", timeout: object = None) -> object:
        return new_group(ranks, backend="fake")

    class Silent(make):  # type: ignore[misc, valid-type]
        def __init__(self, group_ranks: Any, local_rank: int, torch_distributed_backend: str, *_: Any, **named: Any):
            super().__init__(group_ranks, local_rank, torch_distributed_backend, False, False, named.get("group_name"))

    torch.distributed.new_group = fake_group
    parallel_state.GroupCoordinator = Silent
    try:
        yield
    finally:
        torch.distributed.new_group = new_group
        parallel_state.GroupCoordinator = make


@contextlib.contextmanager
def _any_kernel(moe_backend: str) -> Iterator[None]:
    """Layers take kernels that this machine cannot run: their tensors are the same, and none is called here.

    The tensors of experts are not: `auto` takes only kernels that can run here.
    """
    from unittest.mock import MagicMock, patch

    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers.fused_moe import config as moe_config
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts
    from vllm.platforms import current_platform
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.workspace import init_workspace_manager

    init_workspace_manager(torch.device("cpu"))
    _accelerators_models()

    supported = FusedMoEExperts.is_supported_config if moe_backend == "auto" else lambda *_: (True, None)

    class Accelerator(type(current_platform)):  # type: ignore[misc]
        def is_cuda_alike(self) -> bool:
            return True

    attention = CpuPlatform.get_attn_backend_cls.__func__

    def any_attention(cls: type, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None) -> str:
        if attn_selector_config.use_sparse:
            return "vllm.v1.attention.backends.mla.flashmla_sparse.FlashMLASparseBackend"
        return str(attention(cls, selected_backend, attn_selector_config, num_heads))

    with (
        patch.object(linear, "is_supported_and_can_implement_kernel", lambda *_: (True, "")),
        patch.object(FusedMoEExperts, "is_supported_config", staticmethod(supported)),
        patch.object(moe_config, "current_platform", Accelerator()),
        patch.object(torch.cuda, "Event", MagicMock),
        patch.object(torch.cuda, "Stream", MagicMock),
        patch.object(torch.accelerator, "empty_cache", lambda: None),
        patch.object(CpuPlatform, "get_attn_backend_cls", classmethod(any_attention)),
    ):
        yield


def _accelerators_models() -> None:
    """On NVIDIA's devices V3.2's sparse attention has a model class of its own, with other names."""
    import vllm.models.deepseek_v32 as v32
    from vllm.models.deepseek_v32.nvidia.model import DeepseekV32ForCausalLM

    v32.DeepseekV32ForCausalLM = v32.GlmMoeDsaForCausalLM = DeepseekV32ForCausalLM


def make_model(config: Any) -> Any:
    """The model as it is right after construction."""
    from vllm.model_executor.model_loader.utils import initialize_model

    return initialize_model(config, prefix="")


def state(model: Any) -> dict[str, Any]:
    """What the sharded_state loader expects to find: tensors that share another's memory are left out."""
    from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

    return dict(sorted(ShardedStateLoader._filter_subtensors(model.state_dict()).items()))


def version() -> str:
    import vllm

    return str(vllm.__version__)


if __name__ == "__main__":
    sys.exit("this is imported by the scripts beside it")
