"""A quantised weight and its scale stand or fall together, whatever the format calls them; published ones all stand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from day0.architecture.quantised import Format, quantised
from day0.safetensors_header import DTYPE_BITS
from day0.verdict import Verdict
from tasks.download.scales import fits, stated_block
from tasks.download.verify import verify_folder
from tests.download.builder import ONE, TWO, release
from tests.models.published import NAMES, make_published, table


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))


#: Tensor → dtype and shape. Every format of configs/quantised.yaml in the form in which it is met.
WEIGHT = ("F8_E4M3", [576, 256])
PAIRS = {
    "FP8 block": {"x.weight": WEIGHT, "x.weight_scale_inv": ("F32", [5, 2])},
    "FP8 block, bf16 scales": {"x.weight": WEIGHT, "x.weight_scale_inv": ("BF16", [5, 2])},
    "MXFP8": {"x.weight": WEIGHT, "x.weight_scale_inv": ("U8", [576, 8])},
    "FP8 row": {"x.weight": WEIGHT, "x.weight_scale": ("F32", [576, 1])},
    "FP8 row, one dimension": {"x.weight": WEIGHT, "x.weight_scale": ("BF16", [576])},
    "FP8 tensor": {"x.weight": WEIGHT, "x.weight_scale": ("F32", []), "x.input_scale": ("F32", [1])},
    "FP8 tensor, [1, 1]": {"x.weight": WEIGHT, "x.weight_scale": ("F32", [1, 1])},
    "E8M0 scale": {"x.weight": WEIGHT, "x.scale": ("F8_E8M0", [5, 2])},
    "Mistral's names": {
        "x.weight": WEIGHT, "x.qscale_weight": ("F32", []), "x.qscale_act": ("F32", []),
    },
    "torchao": {"x._weight_qdata": ("F8_E4M3", [576, 256]), "x._weight_scale": ("F32", [576, 1])},
    "FNUZ": {"x.weight": ("F8_E4M3FNUZ", [128, 128]), "x.weight_scale": ("F32", [])},
    "parts with blocks of their own": {"x.weight": ("F8_E4M3", [13568, 256]), "x.weight_scale_inv": ("F32", [108, 2])},
    "stacked experts": {"e.gate_up_proj": ("F8_E4M3", [4, 256, 128]), "e.gate_up_proj_scale_inv": ("F32", [4, 2, 1])},
    "stacked experts, row": {"e.down_proj": ("F8_E4M3", [4, 256, 128]), "e.down_proj_scale": ("F32", [4, 256, 1])},
    "stacked experts, modelopt's FP8": {
        "e.down_proj": ("F8_E4M3", [4, 256, 128]), "e.down_proj_weight_scale": ("F32", [4]),
        "e.down_proj_input_scale": ("F32", [4]),
    },
    "stacked experts, modelopt's FP4": {
        "e.down_proj": ("U8", [4, 256, 64]), "e.down_proj_weight_scale": ("F8_E4M3", [4, 256, 8]),
        "e.down_proj_weight_scale_2": ("F32", [4]),
    },
    "int8 row": {"x.weight": ("I8", [8, 64]), "x.weight_scale": ("F32", [8, 1]), "x.weight_offset": ("F32", [8, 1])},
    "int8 block": {"x.weight": ("I8", [576, 256]), "x.weight_scale_inv": ("F32", [5, 2])},
    "int8 static": {
        "x.weight": ("I8", [8, 64]), "x.deq_scale": ("F32", [8]), "x.quant_bias": ("I32", [8]),
        "x.input_scale": ("F32", [1]), "x.input_offset": ("F32", [1]),
    },
    "int8 of bitsandbytes": {"x.weight": ("I8", [8, 64]), "x.SCB": ("F32", [8])},
    "FP4 pairs in int8": {"x.weight": ("I8", [64, 2048]), "x.scale": ("F8_E8M0", [64, 128])},
    "MXFP4 in bytes": {"x.weight": ("U8", [64, 1792]), "x.weight_scale": ("F8_E8M0", [64, 112])},
    "MXFP4 in its own dtype": {"x.weight": ("F4", [64, 64]), "x.weight_scale": ("F8_E8M0", [64, 2])},
    "NVFP4 in its own dtype": {"x.weight": ("F4", [64, 64]), "x.weight_scale": ("F8_E4M3", [64, 4])},
    "MXFP4 packed": {"x.weight_packed": ("U8", [64, 1792]), "x.weight_scale": ("U8", [64, 112])},
    "MXFP4 blocks": {"e.gate_up_proj_blocks": ("U8", [2, 64, 9, 16]), "e.gate_up_proj_scales": ("U8", [2, 64, 9])},
    "NVFP4 packed": {
        "x.weight_packed": ("U8", [64, 128]), "x.weight_scale": ("F8_E4M3", [64, 16]),
        "x.weight_global_scale": ("F32", [1]), "x.input_global_scale": ("F32", [1]),
    },
    "NVFP4": {
        "x.weight": ("U8", [64, 128]), "x.weight_scale": ("F8_E4M3", [64, 16]), "x.weight_scale_2": ("F32", []),
        "x.input_scale": ("F32", []),
    },
    "int4 packed": {
        "x.weight_packed": ("I32", [2048, 896]), "x.weight_scale": ("BF16", [2048, 224]),
        "x.weight_shape": ("I32", [2]),
    },
    "AWQ": {"x.qweight": ("I32", [256, 16]), "x.qzeros": ("I32", [2, 16]), "x.scales": ("F16", [2, 128])},
    "GPTQ": {
        "x.qweight": ("I32", [32, 128]), "x.qzeros": ("I32", [2, 16]), "x.scales": ("F16", [2, 128]),
        "x.g_idx": ("I32", [256]),
    },
    "MLX": {"x.weight": ("U32", [64, 32]), "x.scales": ("BF16", [64, 4]), "x.biases": ("BF16", [64, 4])},
    "NF4": {
        "x.weight": ("U8", [4096, 1]), "x.weight.absmax": ("U8", [128]), "x.weight.quant_map": ("F32", [16]),
        "x.weight.nested_absmax": ("F32", [1]), "x.weight.nested_quant_map": ("F32", [256]),
        "x.weight.quant_state.bitsandbytes__nf4": ("U8", [80]),
    },
    "ternary": {"x.weight": ("U8", [16, 64]), "x.weight_scale": ("BF16", [1])},
    "not quantised": {
        "x.weight": ("BF16", [4, 4]), "x.bias": ("F32", [4]), "layer.scale": ("F32", [3]),
        "hc_attn_scale": ("F32", [3]), "v.std_scale": ("BF16", [8]), "x.weight_scaled": ("BF16", [1]),
        "tid2eid": ("I64", [8, 2]),
    },
}  # fmt: skip


def build(root: Path, tensors: dict[str, tuple[str, list[int]]]) -> Path:
    """A release of two shards whose weights and scales lie apart."""
    halves: dict[str, dict] = {ONE: {"model.norm": ("BF16", [1], 2)}, TWO: {"lm_head": ("BF16", [1], 2)}}
    for number, (name, (dtype, shape)) in enumerate(tensors.items()):
        halves[(ONE, TWO)[number % 2]][name] = (dtype, shape, math.prod(shape) * DTYPE_BITS[dtype] // 8)
    return release(root, halves)


def faults(root: Path) -> list[tuple[str, str | None, str]]:
    return [(fault.kind, fault.tensor, fault.detail) for fault in verify_folder(root, None).faults]


@pytest.mark.parametrize("case", PAIRS)
def test_a_pair_is_sound(case: str, tmp_path: Path) -> None:
    assert faults(build(tmp_path / "m", PAIRS[case])) == []


#: Those that may be absent: what a scale is for is told without them.
OPTIONAL = ("offset", "qscale_act", "input_scale", "bias", "g_idx", "nested", "quant_state", "input_global")
#: By these names alone it cannot be told that they are a scale, or a weight.
UNTOLD = {"x.biases", "x.weight.quant_state.bitsandbytes__nf4", "e.down_proj_scale"}


@pytest.mark.parametrize("case", [case for case in PAIRS if case != "not quantised"])
def test_neither_stands_alone(case: str, tmp_path: Path) -> None:
    """T9: each tensor of a pair is taken away in turn; what is left is a fault that names it."""
    tensors = PAIRS[case]
    weight = next(iter(tensors))
    for number, gone in enumerate(name for name in tensors if not any(word in name for word in OPTIONAL)):
        left = {name: value for name, value in tensors.items() if name != gone}
        found = faults(build(tmp_path / str(number), left))
        if left.keys() <= UNTOLD:
            continue
        assert {kind for kind, _, _ in found} == {"scale_pair"}
        named = {tensor for _, tensor, _ in found}
        if gone == weight:
            assert named == left.keys() - UNTOLD
        else:
            assert weight in named or gone.removeprefix(weight) in named


@pytest.mark.parametrize(
    ("tensors", "names", "words"),
    [
        ({"xx.weight": WEIGHT, "x.weight_scale_inv": ("F32", [5, 2])}, {"xx.weight", "x.weight_scale_inv"}, "missing"),
        ({"x.weight": WEIGHT, "x.weight_scale_inv": ("F32", [4, 2])}, {"x.weight"}, "does not fit"),  # floor, not ceil
        ({"x.weight": WEIGHT, "x.weight_scale_inv": ("F32", [2, 5])}, {"x.weight"}, "does not fit"),
        ({"x.weight": WEIGHT, "x.weight_scale_inv": ("I32", [5, 2])}, {"x.weight"}, "stored as I32"),
        ({"x.weight": WEIGHT, "x.weight_scale": ("F32", [575, 1])}, {"x.weight"}, "does not fit"),
        ({"x.weight": ("BF16", [4, 4]), "x.weight_scale_inv": ("F32", [1, 1])}, {"x.weight_scale_inv"}, "BF16"),
        ({"x.weight": ("BOOL", [4, 4]), "x.weight_scale": ("F32", [4, 1])}, {"x.weight_scale"}, "BOOL"),
        ({"x.qweight": ("I32", [256, 16]), "x.qzeros": ("I32", [2, 16]), "x.scales": ("F16", [2, 100])},
         {"x.qweight"}, "does not fit"),
        ({"e_blocks": ("U8", [2, 64, 9, 16]), "e_scales": ("U8", [2, 64, 8])}, {"e_blocks"}, "does not fit"),
        ({"x.weight_packed": ("U8", [64, 1792]), "x.weight_scale": ("U8", [64, 56])}, {"x.weight_packed"}, "not fit"),
    ],
)  # fmt: skip
def test_pairs_that_do_not_fit(tensors: dict, names: set[str], words: str, tmp_path: Path) -> None:
    found = faults(build(tmp_path / "m", tensors))
    assert {(kind, tensor) for kind, tensor, _ in found} == {("scale_pair", name) for name in names}
    assert any(words in detail for _, _, detail in found)


def test_a_scale_in_a_shard_that_is_missing_is_told_once(tmp_path: Path) -> None:
    root = build(tmp_path / "m", PAIRS["FP8 block"])
    (root / TWO).unlink()
    assert [fault[0] for fault in faults(root)] == ["missing_shard"]


def test_the_configs_block_stands_in_place_of_the_usual_one() -> None:
    config = {"text_config": {"quantization_config": {"weight_block_size": [64, 64]}}}
    assert stated_block(config) == (64, 64)
    assert fits((576, 256), (9, 4), "128x128", (64, 64))
    assert not fits((576, 256), (5, 2), "128x128", (64, 64))
    for wrong in ({}, {"quantization_config": 3}, {"quantization_config": {"weight_block_size": [0, "x"]}}):
        assert stated_block(wrong) is None


def test_every_format_has_a_case() -> None:
    def shows(tensors: dict[str, tuple[str, list[int]]], format_: Format) -> bool:
        return any(
            dtype in format_.dtypes
            and name.endswith(format_.weight)
            and tensors.get(name.removesuffix(format_.weight) + format_.scale, ("", []))[0] in format_.scales
            for name, (dtype, _) in tensors.items()
        )

    for format_ in quantised().formats:
        assert any(shows(tensors, format_) for tensors in PAIRS.values()), format_


#: Releases with up to 20,000 tensors as a whole; of the greater ones four experts a layer (the rest are alike).
WHOLE = 20_000


@pytest.mark.parametrize("name", NAMES)
def test_no_fault_in_published_checkpoints(name: str, tmp_path: Path) -> None:
    root = make_published(name, tmp_path / "m", experts=None if table(name)["stated"]["tensors"] <= WHOLE else 4)
    report = verify_folder(root, None)
    assert report.faults == ()
    assert report.verdict is Verdict.PASS
    kinds = {warning.kind for warning in report.warnings}
    assert "size" in kinds  # no data: holes
    assert ("missing_shard" in kinds) == (name == "minimax_m2.7")  # numbered up to "of 130"
