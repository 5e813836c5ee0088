"""Layout `vllm` plans exactly the tensors of the engine's own model, for every rank (data/engine/README.md)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.binding import bind
from day0.architecture.family import find_family
from day0.architecture.rules import Target
from day0.errors import InputError
from tasks.reshard.planner import plan_writes
from tests.models.by_rules import plain, rule_tensors, write_sparse

RECORDS = sorted((Path(__file__).parent / "data/engine").glob("*.json"))

TORCH = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "I32": "int32", "I64": "int64", "U8": "uint8",
}  # fmt: skip
STORED = {engine: name for name, engine in TORCH.items()}

#: The engine pads these experts on a rank for its kernels, by how much depends on the device: we leave that to it.
PADDED = "gpt_oss-mxfp4"


@functools.cache
def record_of(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def test_there_are_records() -> None:
    assert len(RECORDS) > 90
    assert {record_of(path)["vllm"] for path in RECORDS} == {"0.32.0"}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_plan_has_the_tensors_of_the_engines_own_model(path: Path, tmp_path: Path) -> None:
    engine = record_of(path)
    config = engine["config"]
    checkpoint = write_sparse(tmp_path, config, stored(config, engine))
    ep = engine["ep"]
    plan = plan_writes(checkpoint, find_family(config), "vllm", engine["tp"], engine["pp"], ep)
    for number, rank in enumerate(engine["ranks"]):
        planned = {
            tensor.name: [TORCH[tensor.dtype], list(tensor.shape)]
            for file in plan.files
            if file.rank == number and not file.name.startswith("mtp-")
            for tensor in file.tensors
        }
        expected = {
            name: expected_of(path.stem, name, planned.get(name), *described)
            for name, described in rank["tensors"].items()
        }
        assert planned == expected, f"rank {number}"


def test_shares_of_experts_that_the_engine_would_pad_are_refused(tmp_path: Path) -> None:
    config = {**record_of(RECORDS[0].with_name("kimi_linear-bf16-1-1.json"))["config"], "moe_intermediate_size": 384}
    checkpoint = write_sparse(tmp_path, config, plain(config))
    message = "384 rows over tp 2 are 192 each; the engine would pad them to 256"
    with pytest.raises(InputError, match=message):
        plan_writes(checkpoint, find_family(config), "vllm", 2)
    assert plan_writes(checkpoint, find_family(config), "vllm", 2, ep=2).ep == 2


def expected_of(record: str, name: str, planned: list[Any] | None, dtype: str, shape: list[int]) -> list[Any]:
    """What a plan has to have for a tensor of the engine, given what it has: the same, but for two cases.

    Where the engine makes a tensor larger than its part (PADDED), of zeros, its loader fills the beginning in every
    dimension, whether from our file or from the original. Records of a shape, which nothing in the engine reads, are
    integers, for which it has whatever dtype the model is in.
    """
    if name.endswith("_weight_shape"):
        return ["int32", shape]
    if planned is None or not record.startswith(PADDED) or ".routed_experts." not in name:
        return [dtype, shape]
    smaller = len(planned[1]) == len(shape) and all(n <= m for n, m in zip(planned[1], shape, strict=True))
    return [dtype, planned[1] if smaller else shape]


def stored(config: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """A checkpoint for the config, quantised where the engine's own model is, with names as the family has them."""
    bound = bind(find_family(config), config)
    held = {name: dtype for rank in engine["ranks"] for name, (dtype, _) in rank["tensors"].items()}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (rule, shape) in rule_tensors(bound).items():
        target = rule.targets.get("vllm")
        if target is None:
            tensors[name] = "BF16", shape
            continue
        numbers = {slot: n for slot, n in zip(rule.slots, _numbers(name), strict=True) if isinstance(slot, str)}
        if target.first:  # more than the engine takes
            tensors[name] = "F32", (shape[0] + 2, *shape[1:])
            continue
        target = target.model_copy(update={"suffixes": {**bound.layouts["vllm"].suffixes, **target.suffixes}})
        engine_name = target.name.format(**numbers)
        tensors |= _stored(name, shape, target, engine_name, held)
    return tensors


def _stored(
    name: str, shape: tuple[int, ...], target: Target, engine_name: str, held: Mapping[str, str]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """A weight as it is on disk, with what stands beside it, by the dtype that the engine has for it."""
    if f"{engine_name}_packed" in held:  # compressed-tensors, 4 bits, groups of 32
        out, into = shape
        return {
            f"{name}_packed": ("I32", (out, into // 8)),
            f"{name}_scale": ("BF16", (out, into // 32)),
            f"{name}_shape": ("I32", (2,)),
        }
    if "blocks" in target.suffixes and held.get(engine_name) == "uint8":  # gpt-oss: pairs, in blocks of 32
        *stack, out, into = shape
        return {
            f"{name}_blocks": ("U8", (*stack, out, into // 32, 16)),
            f"{name}_scales": ("U8", (*stack, out, into // 32)),
        }
    viewed = {engine: disk for disk, engine in target.view.items() if disk != "F8_E8M0"}
    scale = next((end for end in ("_scale_inv", "_scale") if f"{engine_name}{end}" in held), None)
    dtype = STORED[held.get(engine_name, "bfloat16")]
    if scale is None or not name.endswith(".weight"):
        # What a layout casts is held to be of the usual dtype.
        usual = "I64" if target.dtype == "I32" else "BF16"
        return {name: (usual if target.dtype else viewed.get(dtype, dtype), shape)}
    ending = {engine: disk for disk, engine in target.suffixes.items()}.get(f"weight{scale}", f"weight{scale}")
    scales = STORED[held[f"{engine_name}{scale}"]]
    *stack, out, into = shape
    block, packed = ((1, 32), 2) if dtype == "U8" else ((128, 128), 1)
    return {
        name: (viewed.get(dtype, dtype), (*stack, out, into // packed)),
        name.removesuffix("weight") + ending: (
            "F8_E8M0" if "F8_E8M0" in target.view else scales, (*stack, -(-out // block[0]), -(-into // block[1])),
        ),
    }  # fmt: skip


def _numbers(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdecimal()]
