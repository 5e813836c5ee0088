"""Published checkpoints planned whole: every stored byte goes somewhere, and every rank gets a loadable share."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.binding import bind
from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from day0.errors import InputError
from tasks.reshard.layouts.known import LAYOUTS
from tasks.reshard.planner import plan_writes, tensors_of
from tasks.reshard.writes import WritePlan
from tests.architecture.test_families import SIZES
from tests.architecture.test_families_moe import SIZES as MOE_SIZES
from tests.models.published import NAMES, make_published, published_config, table, with_experts

KNOWN = SIZES | MOE_SIZES
TABLES = [name for name in NAMES if name in KNOWN or published_config(name)]
#: Experts a layer of those that have thousands of tensors; benchmarks/published.py takes them whole.
EXPERTS = 8
LARGE = 5_000
DENSE = {
    "gemma_4_31b_it", "llama2-7b-awq", "llama_3.2_3b_instruct", "meta_llama_3.1_8b_instruct", "qwen2.5_7b_instruct",
    "qwen3.5_4b", "qwen3_vl_8b_instruct",
}  # fmt: skip

#: tp, pp, ep; ep is 1 for models without experts.
WORLDS = {
    "hf": [(2, 1, 1), (8, 1, 1), (1, 1, 8), (1, 4, 1), (4, 2, 8)],
    "vllm": [(2, 1, 1), (8, 1, 1), (8, 1, 8), (1, 4, 1), (4, 2, 4)],
    "deepseek": [(2, 1, 2), (8, 1, 8)],
}

#: What is refused, and why: by table, in these layouts, at these sizes.
HEADS = "num_attention_heads = {} is not divisible by tp 8; choose a tp that divides it"
BLOCK = "{} divided by tp 8 is {}, which is no multiple of its quantisation block of 128; legal are tp 1, 2"
REFUSED: dict[tuple[str, str], tuple[str, str]] = {
    ("glm_4.7_flash", "hf"): ("tp 8", HEADS.format(20)),
    ("glm_4.7_flash", "vllm"): ("tp 8", HEADS.format(20)),
    ("qwen2.5_7b_instruct", "hf"): ("tp 8", HEADS.format(28)),
    ("qwen2.5_7b_instruct", "vllm"): ("tp 8", HEADS.format(28)),
    ("llama2-7b-awq", "hf"): ("tp 4 or 8", "11,008 divided by tp"),
    ("minimax_m2.7", "hf"): ("tp 8, ep 1", BLOCK.format("1,536", "192")),
    ("minimax_m2.7", "vllm"): ("tp 8, ep 1", BLOCK.format("1,536", "192")),
    ("qwen3_235b_a22b_instruct_2507_fp8", "hf"): ("tp 8, ep 1", BLOCK.format("1,536", "192")),
    ("qwen3_235b_a22b_instruct_2507_fp8", "vllm"): ("tp 8, ep 1", BLOCK.format("1,536", "192")),
    # The engine has neither such tensors nor such an order.
    ("glm_5.1_w8a8", "vllm"): ("any", "'rot.weight' has no name in layout 'vllm'"),
    ("llama2-7b-awq", "vllm"): ("any", "(GPTQ or AWQ) has input features first, and layout 'vllm' does not join such"),
}

#: The dtypes that are no weights': tables of ids.
IDS = ("I64",)
PLAIN = ("BF16", "F16", "F32")
#: Conversions that are refused, at TP=2: table, dtype → why.
UNCONVERTED = {
    ("glm_5.1_w8a8", "bfloat16"): "weight_offset': int8 weights with an offset are not converted",
    ("glm_5.1_w8a8", "int8"): "weight_offset': int8 weights with an offset are not converted",
    ("glm_5.1_w8a8", "fp8"): "weight_offset': int8 weights with an offset are not converted",
    ("glm_4.5v", "fp8"): "10,944 divided by tp 2 is 5,472, which is no multiple of its quantisation block of 128",
}


def is_large(name: str) -> bool:
    return bool(table(name)["stated"]["tensors"] > LARGE)


def config_of(name: str) -> dict[str, Any]:
    config = published_config(name) or KNOWN[name]
    return with_experts(config, EXPERTS) if is_large(name) else config


def layouts_of(checkpoint: Checkpoint) -> list[str]:
    bound = bind(find_family(checkpoint.config), checkpoint.config, checkpoint.tensors)
    return sorted({"hf", *bound.layouts} & LAYOUTS.keys())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


@lru_cache(maxsize=1)
def opened(name: str, place: Path) -> Checkpoint:
    root = make_published(name, place / name, shards=2, experts=EXPERTS if is_large(name) else None)
    (root / "config.json").write_text(json.dumps(config_of(name)))
    return open_checkpoint(root)


def test_all_tables_but_two_have_a_config() -> None:
    assert set(NAMES) - set(TABLES) == {"deepseek_ocr", "mimo_v2.5"}


@pytest.mark.parametrize("name", TABLES)
def test_every_tensor_is_read_once_and_its_bytes_are_all_there(name: str, place: Path) -> None:
    checkpoint = opened(name, place)
    family = find_family(checkpoint.config)
    for layout in layouts_of(checkpoint):
        for tp, pp, ep in WORLDS[layout]:
            sizes = (tp, pp, 1 if name in DENSE else ep)
            if why := refusal(name, layout, *sizes):
                with pytest.raises(InputError) as error:
                    plan_writes(checkpoint, family, layout, *sizes)
                assert why in str(error.value)
            else:
                plan = plan_writes(checkpoint, family, layout, *sizes)
                check_all_is_there(plan, checkpoint)


@pytest.mark.parametrize("name", TABLES)
def test_weights_are_written_as_another_dtype_or_refused_by_name(name: str, place: Path) -> None:
    checkpoint = opened(name, place)
    family = find_family(checkpoint.config)
    for dtype, allowed in (("bfloat16", PLAIN), ("int8", (*PLAIN, "I8")), ("fp8", (*PLAIN, "F8_E4M3"))):
        if why := UNCONVERTED.get((name, dtype)):
            with pytest.raises(InputError) as error:
                plan_writes(checkpoint, family, "hf", 2, weight_dtype=dtype)
            assert why in str(error.value)
            continue
        plan = plan_writes(checkpoint, family, "hf", 2, weight_dtype=dtype)
        gone = {dropped.tensor for dropped in plan.dropped}
        assert tensors_of(plan) == dict.fromkeys(checkpoint.tensors.keys() - gone, 1)
        other = {t.name: t.dtype for file in plan.files for t in file.tensors if t.dtype not in allowed}
        kept = {tensor: dtype for tensor, dtype in other.items() if dtype not in IDS}
        # What is in that form already stays as it is, with its scales.
        assert not kept or (dtype == "fp8" and all(dtype == "F8_E8M0" for dtype in kept.values())), kept


def test_a_model_without_experts_has_no_expert_parallelism(place: Path) -> None:
    for name in sorted(DENSE):
        checkpoint = opened(name, place)
        with pytest.raises(InputError, match=r"ep is 8, but family .* has no experts in this model"):
            plan_writes(checkpoint, find_family(checkpoint.config), "hf", 1, 1, 8)


def refusal(name: str, layout: str, tp: int, pp: int, ep: int) -> str | None:
    sizes, why = REFUSED.get((name, layout), ("none", None))
    applies = {"any": True, "tp 8": tp == 8, "tp 4 or 8": tp > 2, "tp 8, ep 1": (tp, ep) == (8, 1), "none": False}
    return why if applies[sizes] else None


def check_all_is_there(plan: WritePlan, checkpoint: Checkpoint) -> None:
    gone = {dropped.tensor for dropped in plan.dropped}
    assert tensors_of(plan) == dict.fromkeys(checkpoint.tensors.keys() - gone, 1)
    covered: dict[str, set[tuple[tuple[int, int], ...]]] = {}
    shortened: set[str] = set()
    """Of which the engine has fewer rows than the release."""
    for file in plan.files:
        assert all(tensor.origins for tensor in file.tensors)
        for written in file.tensors:
            for origin in written.origins:
                if origin.tensor:
                    covered.setdefault(origin.tensor, set()).add(origin.slice)
                if origin.tensor and origin.conversion.startswith("not the last"):
                    shortened.add(origin.tensor)
    scales = {t.name for streams in plan.streams.values() for stream in streams for t in stream.inputs[1:]}
    assert covered.keys() | scales == checkpoint.tensors.keys() - gone
    computed = {s.inputs[0].name for streams in plan.streams.values() for s in streams if len(s.inputs) > 1}
    assert all(tensor.endswith(".A_log") for tensor in shortened)
    for tensor in covered.keys() - computed - shortened:
        # Replicas are one box, and boxes of one tensor are disjoint: together they are all of it.
        volume = sum(math.prod(last - first for first, last in box) for box in covered[tensor])
        assert volume == checkpoint.tensors[tensor].numel, tensor
