"""Converted checkpoints are what the library itself makes of the quantised ones, tensor by tensor, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from day0.architecture.family import find_family
from day0.checkpoint import open_checkpoint
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import write_shards
from tests.models.families import make_tiny_gpt_oss
from tests.models.layout import write_index
from tests.models.tiny import make_tiny_llama

pytestmark = pytest.mark.reference


def fp8_llama(root: Path) -> Path:
    """A tiny Llama with FP8 projections, in whole blocks of 128: transformers 5.24 divides partial ones wrongly."""
    import torch
    from safetensors.torch import load_file, save_file

    make_tiny_llama(root, hidden=256, heads=4, kv_heads=2)
    random = torch.Generator().manual_seed(0)
    weight_map: dict[str, str] = {}
    for path in sorted(root.glob("*.safetensors")):
        tensors = load_file(path)
        for name in [name for name in tensors if "proj" in name]:
            weight = tensors[name].float()
            blocks = [-(-n // 128) for n in weight.shape]
            scale = torch.rand(blocks, generator=random) * 0.01 + 0.001
            whole = scale.repeat_interleave(128, 0)[: weight.shape[0]].repeat_interleave(128, 1)[:, : weight.shape[1]]
            tensors[name] = (weight / whole).clamp(-448, 448).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scale
        save_file(tensors, path, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, path.name)
    write_index(root, weight_map, 0)
    config = json.loads((root / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    }  # fmt: skip
    (root / "config.json").write_text(json.dumps(config))
    return root


@pytest.mark.parametrize("make", [make_tiny_gpt_oss, fp8_llama])
def test_computed_out_as_the_library_does(make: Callable[[Path], Path], tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import FineGrainedFP8Config, Mxfp4Config

    source = make(tmp_path / "source")
    checkpoint = open_checkpoint(source)
    plan = plan_writes(checkpoint, find_family(checkpoint.config), "hf", 1, weight_dtype="bfloat16")
    (tmp_path / "out").mkdir()
    write_shards(plan, checkpoint, tmp_path / "out")
    rank = tmp_path / "out/rank-00000"
    assert "quantization_config" not in json.loads((rank / "config.json").read_text())
    method = checkpoint.config["quantization_config"]["quant_method"]
    quantization: Any = {"fp8": FineGrainedFP8Config, "mxfp4": Mxfp4Config}[method](dequantize=True)
    ours = AutoModelForCausalLM.from_pretrained(rank, dtype=torch.bfloat16).state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.bfloat16, quantization_config=quantization
    ).state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_int8_scales_are_those_of_whole_rows_however_many_ranks(tmp_path: Path) -> None:
    """A row-parallel rank that took the largest value of its own part of a row would have another scale."""
    from tests.reshard.merging import element

    checkpoint = open_checkpoint(make_tiny_llama(tmp_path / "m"))
    found: dict[int, dict[str, np.ndarray[Any, Any]]] = {}
    for tp in (1, 2):
        target = tmp_path / f"tp{tp}"
        target.mkdir()
        plan = plan_writes(checkpoint, find_family(checkpoint.config), "hf", tp, weight_dtype="int8")
        write_shards(plan, checkpoint, target)
        joined: dict[str, list[np.ndarray[Any, Any]]] = {}
        for rank in range(tp):
            folder = open_checkpoint(target / f"rank-{rank:05d}")
            for name, tensor in folder.tensors.items():
                data = folder.path(tensor.file).read_bytes()[tensor.begin : tensor.end]
                joined.setdefault(name, []).append(np.frombuffer(data, element(tensor.dtype)).reshape(tensor.shape))
        row = {name for name in joined if name.endswith(("o_proj.weight", "down_proj.weight"))}
        found[tp] = {name: np.concatenate(parts, 1) if name in row else parts[0] for name, parts in joined.items()}
        if tp == 2:
            whole = {name: parts for name, parts in joined.items() if name.endswith("down_proj.weight_scale")}
            assert all(np.array_equal(*parts) for parts in whole.values())
    for name in (name for name in found[1] if "down_proj" in name or "o_proj" in name):
        np.testing.assert_array_equal(found[1][name], found[2][name], name)
