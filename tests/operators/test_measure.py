"""Measured support: a model's operators run on the CPU, and on the simulated accelerator with faults of every kind."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from day0.errors import EvidenceMissing
from tasks.operators.measure import CONTEXT, PROMPT, Measurement, measure
from tasks.operators.records import Capture, CaptureRequest, WrittenCall
from tasks.operators.simulated.faults import Faults

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}

SIMULATED = "tasks.operators.simulated.start"


def captured(config: dict[str, Any] = CONFIG, **fields: Any) -> Capture:
    from tasks.operators.capture import capture  # torch: only where these tests run

    asked = {"prompt": 8, "context": 8, "dispatch_key": "CPU", "calls_at": (PROMPT, CONTEXT), **fields}
    return capture(CaptureRequest(config=config, **asked))


def on_simulated(folder: Path, **faults: Any) -> Measurement:
    file = folder / "faults.json"
    file.write_text(json.dumps(Faults.model_validate(faults).to_json()))
    return measure(captured(), "simulated", modules=(SIMULATED,), env={"DAY0_SIMULATED": str(file)}, most_seconds=10)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    return on_simulated(
        tmp_path_factory.mktemp("device"),
        missing=["aten::silu.*", "aten::rsqrt.*"],
        wrong={"aten::mul.*": "scaled", "aten::sin.*": "tail", "aten::mm.*": "strides", "aten::argmax.*": "tail"},
        slow={"aten::neg.*": 0.05, "aten::isin.*": 60},
        fallback=["aten::cos.*"],
        crashes=["aten::pow.*"],
    )


@pytest.mark.reference
def test_every_fault_is_found_and_named(faulty: Measurement) -> None:
    found = faulty.measured
    for name in ("aten::silu", "aten::rsqrt"):
        assert not found[name].works
        assert not found[name].wrong
        assert f"Could not run '{name}.out'" in found[name].detail
    for name in ("aten::mul.Tensor", "aten::sin", "aten::argmax"):
        assert found[name].wrong, name
        assert not found[name].works
    assert "against float64" in found["aten::mul.Tensor"].detail
    assert found["aten::mm"].wrong  # its weights are transposed in memory, as nn.Linear leaves them
    assert found["aten::cos"].falls_back
    assert found["aten::cos"].works
    assert found["aten::neg"].slow
    assert not found["aten::pow.Tensor_Scalar"].works
    assert "ended the process by signal 6" in found["aten::pow.Tensor_Scalar"].detail
    assert found["aten::isin.Tensor_Tensor"].detail == "it did not end, and was stopped"


@pytest.mark.reference
def test_what_is_sound_is_found_to_work_after_a_crash_too(faulty: Measurement) -> None:
    sound = {"aten::embedding", "aten::cat", "aten::transpose.int", "aten::add.Tensor", "aten::_softmax", "aten::view"}
    for name in sound & set(faulty.measured):
        its = faulty.measured[name]
        assert (its.works, its.wrong, its.falls_back) == (True, False, False), its
    assert len(sound & set(faulty.measured)) >= 5


@pytest.mark.reference
def test_the_cpu_has_all_operators_of_a_mixture_of_experts_too() -> None:
    config = CONFIG | {
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
        "decoder_sparse_step": 1,
    }
    found = measure(captured(config), "cpu").measured
    assert {"aten::_grouped_mm", "aten::topk"} <= set(found)
    assert [m for m in found.values() if not m.works or m.wrong or m.falls_back] == []


VLM = {
    "model_type": "qwen3_vl",
    "text_config": CONFIG
    | {"model_type": "qwen3_vl_text", "head_dim": 16, "rope_scaling": {"mrope_section": [4, 2, 2]}},
    "vision_config": {
        "model_type": "qwen3_vl", "depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2,
        "out_hidden_size": 64, "patch_size": 4, "deepstack_visual_indexes": [0], "num_position_embeddings": 64,
    },
}  # fmt: skip


@pytest.mark.reference
def test_a_vision_tower_is_measured_too(tmp_path: Path) -> None:
    capture = captured(VLM)
    tower = {o.name for o in capture.phases["vision"]} - {o.name for o in capture.phases["prefill"]}
    assert {"aten::native_layer_norm", "aten::convolution"} <= tower
    file = tmp_path / "faults.json"
    faults = Faults.model_validate({"wrong": {"aten::native_layer_norm": "scaled"}, "missing": ["aten::gelu.*"]})
    file.write_text(json.dumps(faults.to_json()))
    found = measure(capture, "simulated", modules=(SIMULATED,), env={"DAY0_SIMULATED": str(file)})
    assert found.measured["aten::native_layer_norm"].wrong
    assert not found.measured["aten::gelu"].works
    assert tower - set(found.measured) == set(found.unmeasured) & tower


OWN = Path(__file__).parents[1] / "data/own-code"


@pytest.mark.reference
def test_what_a_release_s_own_code_calls_is_measured_without_that_code(tmp_path: Path) -> None:
    release = tmp_path / "release"
    shutil.copytree(OWN, release)
    code = release / "modeling_own.py"
    begin, end = "        # What code that is not trusted", "    def forward(self, input_ids"
    text = code.read_text()
    code.write_text(text[: text.index(begin)] + "\n" + text[text.index(end) :])
    capture = captured(json.loads((OWN / "config.json").read_text()), code=str(release))
    shutil.rmtree(release)
    found = measure(capture, "cpu")
    assert capture.source == "code"
    assert {"aten::sin", "aten::addmm", "aten::view"} <= set(found.measured)
    assert [name for name, its in found.measured.items() if not its.works] == []


@pytest.mark.reference
def test_nothing_measured_is_no_evidence() -> None:
    with pytest.raises(EvidenceMissing, match=r"cannot be measured on simulated: .*device"):
        measure(captured(), "simulated")
    with pytest.raises(EvidenceMissing, match="not measured on cpu: no call of one was recorded"):
        measure(Capture(), "cpu")


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(EvidenceMissing, match="torch_nothing not installed here"):
        measure(Capture(calls=(WrittenCall(overload="aten::mm"),)), "npu", modules=("torch_nothing",))


@pytest.mark.reference
def test_large_operands_are_cut_where_the_call_stays_right() -> None:
    import torch

    from tasks.operators.calls import Call, specs
    from tasks.operators.cutting import MOST_ELEMENTS, cut
    from tasks.operators.records import TensorSpec

    def call(operator: Any, *shapes: tuple[int, ...]) -> Call:
        made = (TensorSpec("bfloat16", shape, torch.empty(shape, device="meta").stride()) for shape in shapes)
        return Call(operator, tuple(made), {})

    aten = torch.ops.aten
    for operator, shapes in (
        (aten.bmm.default, ((128, 17, 5120), (128, 5120, 16384))),
        (aten.mm.default, ((17, 5120), (5120, 16384))),
        (aten.t.default, ((16384, 5120),)),
        (aten.embedding.default, ((200_000, 7168), (1, 17))),
    ):
        smaller = cut(call(operator, *shapes))
        assert max(math.prod(s.shape) for s in specs(smaller)) <= MOST_ELEMENTS
        operator(*(torch.empty(s.shape, device="meta").long() if n and operator is aten.embedding.default
                   else torch.empty(s.shape, device="meta") for n, s in enumerate(specs(smaller))))  # fmt: skip
    experts = cut(call(aten._grouped_mm.default, (16, 2880), (128, 2880, 5760), (128,)))
    assert experts.args[1].shape == (4, 2880, 320)  # rows of a multiple of 16 bytes
    small = call(aten.bmm.default, (4, 17, 64), (4, 64, 32))
    assert cut(small) is small


@pytest.mark.reference
def test_an_operator_that_breaks_the_device_for_good_ends_the_process() -> None:
    """As an illegal access does on a GPU: what is called after it would fail for its sake."""
    from tasks.operators.bench import Bench, DeviceLost

    error = RuntimeError("an illegal memory access was encountered. More of it")
    Bench("cpu", 0)._check_alive("aten::mm", error)
    with pytest.raises(DeviceLost, match=r"aten::mm: an illegal memory access was encountered$"):
        Bench("meta", 0)._check_alive("aten::mm", error)  # nothing comes back from it


@pytest.mark.reference
def test_a_value_that_is_read_on_the_host_is_compared() -> None:
    from tasks.operators.comparison import difference

    read: tuple[str, tuple[Any, ...], dict[str, Any]] = ("aten::_local_scalar_dense", (), {})
    assert difference(*read, [3], [3], [3.0]) is None
    assert difference(*read, [math.nan], [math.nan], [math.nan]) is None
    assert difference(*read, [4], [3], [3.0]) == "[4], not [3]"


@pytest.mark.reference
def test_many_rows_and_heads_are_cut() -> None:
    import torch

    from tasks.operators.calls import Call
    from tasks.operators.cutting import MOST_HEADS, MOST_ROWS, cut
    from tasks.operators.records import TensorSpec

    aten = torch.ops.aten
    rows = TensorSpec("bfloat16", (2520, 64), (64, 1))
    weight, bias = TensorSpec("bfloat16", (64, 32), (1, 64)), TensorSpec("bfloat16", (32,), (1,))
    assert cut(Call(aten.mm.default, (rows, weight), {})).args[0].shape == (MOST_ROWS, 64)
    smaller = cut(Call(aten.addmm.default, (bias, rows, weight), {}))
    assert [s.shape for s in smaller.args] == [(32,), (MOST_ROWS, 64), (64, 32)]
    heads = TensorSpec("bfloat16", (1, 16, 2520, 72), (2903040, 72, 1152, 1))
    attention = aten.scaled_dot_product_attention.default
    smaller = cut(Call(attention, (heads, heads, heads), {}))
    assert {s.shape for s in smaller.args} == {(1, MOST_HEADS, 2520, 72)}
    # One mask for all heads fits fewer of them; one of each head's own does not.
    for masks, kept in ((1, MOST_HEADS), (16, 16)):
        mask = TensorSpec("bool", (1, masks, 300, 300), (masks * 90000, 90000, 300, 1))
        short = heads._replace(shape=(1, 16, 300, 72))
        assert cut(Call(attention, (short, short, short, mask), {})).args[0].shape[1] == kept
