"""Published checkpoints planned whole: every stored byte goes somewhere, and every rank gets a loadable share."""

from __future__ import annotations

import json
import math

import pytest

from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from tasks.reshard.planner import plan_writes, tensors_of
from tests.architecture.test_families import SIZES
from tests.models.published import make_published

NAMES = ["gemma_4_31b_it", "qwen2.5_7b_instruct", "qwen3.5_35b_a3b", "qwen3.6_35b_a3b", "qwen3_vl_30b_a3b_instruct"]
EXPERTS = {"qwen3.5_35b_a3b", "qwen3.6_35b_a3b", "qwen3_vl_30b_a3b_instruct"}


@pytest.fixture(scope="module", params=NAMES)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Checkpoint]:
    name: str = request.param
    root = make_published(name, tmp_path_factory.mktemp("published"))
    if name in SIZES:
        (root / "config.json").write_text(json.dumps(SIZES[name]))
    return name, open_checkpoint(root)


@pytest.mark.parametrize("layout", ["hf", "vllm"])
@pytest.mark.parametrize(("tp", "pp", "ep"), [(2, 1, 1), (4, 3, 1), (4, 2, 4)])
def test_every_tensor_is_read_once_and_its_bytes_are_all_there(
    published: tuple[str, Checkpoint], layout: str, tp: int, pp: int, ep: int
) -> None:
    name, checkpoint = published
    plan = plan_writes(checkpoint, find_family(checkpoint.config), layout, tp, pp, ep if name in EXPERTS else 1)
    assert not plan.dropped
    assert tensors_of(plan) == dict.fromkeys(checkpoint.tensors, 1)
    covered: dict[str, set[tuple[tuple[int, int], ...]]] = {}
    for file in plan.files:
        for written in file.tensors:
            for origin in written.origins:
                if origin.tensor:
                    covered.setdefault(origin.tensor, set()).add(origin.slice)
    exchanged = {tensor for tensor in covered if layout == "vllm" and ".experts." in tensor and "vl" in name}
    for tensor, boxes in covered.items():
        # Replicas are one box, and boxes of one tensor are disjoint: together they are all of it.
        volume = sum(math.prod(last - first for first, last in box) for box in boxes)
        assert volume == checkpoint.tensors[tensor].numel, tensor
        shape = checkpoint.tensors[tensor].shape
        limits = (*shape[:-2], shape[-1], shape[-2]) if tensor in exchanged else shape
        assert all(0 <= a < b <= n for box in boxes for (a, b), n in zip(box, limits, strict=True)), tensor
