"""Inventories of published models, from their configs alone, against the closed formulas of the profile."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.parallel import Sizes
from day0.architecture.stored import stored_from_config
from day0.architecture.structure import structure_of
from day0.architecture.work import Step, WorkModel
from day0.target import load_target
from day0.verdict import Verdict
from tasks.operators.corrections import corrections
from tasks.operators.formulas import BYTES_OF
from tasks.operators.records import ATTENTION, Capture, CaptureRequest
from tasks.operators.scan import judge
from tasks.operators.settings import operator_settings

pytestmark = pytest.mark.reference

CONFIGS = Path(__file__).parents[1] / "data/configs"

LENGTH = 512
PASSES = {"prefill": (LENGTH, 0), "decode": (1, LENGTH)}

#: What the library does otherwise than engines, by phase; nothing else is corrected.
EXPECTED: dict[str, dict[str, tuple[str, ...]]] = {
    "meta-llama__Meta-Llama-3.1-405B": {},
    "Qwen__Qwen3-235B-A22B-FP8": {},
    "Qwen__Qwen3-VL-235B-A22B-Instruct": {},
    "deepseek-ai__DeepSeek-V3": {"decode": ("attention",)},
    "openai__gpt-oss-120b": {"prefill": ("attention",)},
    "deepseek-ai__DeepSeek-V3.2": {"prefill": ("attention",), "decode": ("attention",)},
    "deepseek-ai__DeepSeek-V4-Flash": {"prefill": ("attention",)},
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": {"prefill": ("experts",), "decode": ("experts",)},
}


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


def ask(name: str, **fields: Any) -> Capture:
    from tasks.operators.capture import capture  # torch: only where these tests run

    request = CaptureRequest(config=config_of(name), prompt=LENGTH, context=LENGTH, dispatch_key="CPU", **fields)
    return capture(request)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_work_is_that_of_the_closed_formulas(name: str) -> None:
    found = ask(name)
    structure = structure_of(config_of(name), name)
    work = WorkModel(structure, stored_from_config(structure, None), BYTES_OF)
    corrected = corrections(structure, found, PASSES)
    for phase, (new, past) in PASSES.items():
        assert tuple(c.what for c in corrected[phase]) == EXPECTED[name].get(phase, ())
        flops = sum(o.flops or 0 for o in found.phases[phase]) + sum(c.flops for c in corrected[phase])
        assert flops == pytest.approx(work.rank_work(Step(1, new, past), Sizes(1, 1)).flops, rel=0.01)


@pytest.mark.parametrize("name", ["Qwen__Qwen3-VL-235B-A22B-Instruct", "Qwen__Qwen3.5-35B-A3B"])
def test_a_vision_tower_is_a_phase_of_its_own(name: str) -> None:
    found = ask(name)
    calls = {o.name: o.calls for o in found.phases["vision"]}
    assert calls["aten::scaled_dot_product_attention"] == config_of(name)["vision_config"]["depth"]
    assert "aten::convolution" in calls
    assert not any("vision" in note for note in found.notes)


def test_a_tower_without_a_grid_is_traced_by_positions() -> None:
    found = ask("google__gemma-4-26B-A4B")
    calls = {o.name: o.calls for o in found.phases["vision"]}
    vision = config_of("google__gemma-4-26B-A4B")["vision_config"]
    assert calls["aten::scaled_dot_product_attention"] == vision["num_hidden_layers"]
    # It strips what is padded by a mask, whose values are not there.
    assert "the masks of aten::index.Tensor were taken to choose all: there is no data" in found.notes


def test_a_tower_that_the_config_does_not_describe_is_not_made_up() -> None:
    assert set(ask("meta-llama__Llama-4-Maverick-17B-128E-Instruct").phases) == {"prefill", "decode"}


def test_a_vision_tower_that_cannot_be_traced_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(tower: Any) -> Any:
        raise TypeError("forward() missing 1 required positional argument: 'new'")

    monkeypatch.setattr("tasks.operators.tracing.image_inputs", unknown)
    found = ask("Qwen__Qwen3-VL-2B-Instruct")
    assert set(found.phases) == {"prefill", "decode"}
    assert any("vision tower could not be traced (TypeError: forward() missing" in note for note in found.notes)


def test_a_type_that_the_library_lacks_is_traced_by_the_class_that_its_config_names() -> None:
    name = "moonshotai__Kimi-K2-Instruct"
    raw = config_of(name)
    found = ask(name)
    assert found.read_as == "deepseek_v3"
    settings = operator_settings("cpu", load_target("cpu"))
    report = judge(raw, settings, found)
    check = next(c for c in report.checks if c.name == "formulas")
    assert check.verdict is Verdict.PASS
    assert abs(check.measured["off"]["prefill"]) < 0.001
    # With other work than its own family's it is not taken for that type.
    raw["num_hidden_layers"] //= 2
    check = next(c for c in judge(raw, settings, found).checks if c.name == "formulas")
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "off its family's formulas" in check.reason


def test_calls_stand_apart_by_their_tensors() -> None:
    found = ask("deepseek-ai__DeepSeek-V3")
    products = next(o for o in found.phases["decode"] if o.name == "aten::mm")
    assert sum(call.calls for call in products.by_signature) == products.calls
    assert sum(call.flops or 0 for call in products.by_signature) == products.flops
    head = [c for c in products.by_signature if c.outputs[0].shape == (1, 129280)]
    assert [(c.calls, c.dtype, c.inputs[1].stride) for c in head] == [(1, "bfloat16", (1, 7168))]
    # Experts: 256 there, 8 of them read for one token.
    experts = next(o for o in found.phases["decode"] if o.name == "aten::_grouped_mm")
    assert experts.bytes == pytest.approx(58 * 8 * 3 * 7168 * 2048 * 2, rel=0.01)


def test_composite_operators_are_whole_before_dispatch() -> None:
    found = ask("Qwen__Qwen3-0.6B")
    before = {o.name: o for o in found.before["prefill"]}
    after = {o.name: o for o in found.phases["prefill"]}
    assert "aten::mm" not in before
    assert "aten::linear" not in after
    assert before["aten::linear"].flops == after["aten::mm"].flops
    assert found.parts["aten::linear"]["decomposed"] == ("aten::t", "aten::matmul")
    assert "aten::mm" in found.parts["aten::matmul"]["decomposed"]
    assert before["aten::scaled_dot_product_attention"] == after["aten::scaled_dot_product_attention"].model_copy(
        update={"by_signature": ()}
    )


def test_what_generation_calls_comes_where_it_is_used() -> None:
    """generate() needs `isin` before the model, and chooses a token at the end."""
    names = [o.name for o in ask("Qwen__Qwen3-0.6B").phases["prefill"]]
    order = ["aten::isin.Tensor_Tensor", "aten::embedding", "aten::mm", "aten::argmax"]
    assert sorted(order, key=names.index) == order


PATTERNS = {
    "meta-llama__Meta-Llama-3.1-405B": {"attention": 1, "rms_norm": 3, "add_rms_norm": 2, "rotary": 2}
    | {"gated_activation": 1},
    "openai__gpt-oss-120b": {"attention": 2, "attention_with_sinks": 2, "rms_norm": 5, "add_rms_norm": 4, "rotary": 4}
    | {"gated_activation": 2, "router_topk": 2, "grouped_experts": 2},
    "Qwen__Qwen3-235B-A22B-FP8": {"attention": 1, "rms_norm": 5, "add_rms_norm": 2, "rotary": 2, "norm_rotary": 2}
    | {"gated_activation": 1, "router_topk": 1, "grouped_experts": 1},
}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_exported_graph_has_a_models_patterns(name: str) -> None:
    graph = ask(name, graph=True).graph
    assert graph is not None
    assert graph.failed is None
    assert {pattern: count for pattern, count in graph.patterns.items() if count} == PATTERNS[name]
    assert graph.operators["aten::linear"] > 4


DENSE = {"model_type": "llama"} | dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 4)
DENSE |= {"num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128}
EXPERTS = DENSE | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

#: What generate() does around the model when it decodes: the next token, the test for the end, mask and positions.
AROUND = {
    *("_local_scalar_dense", "_to_copy", "add.Tensor", "alias", "any.dim", "arange", "argmax", "bitwise_and.Tensor"),
    *("bitwise_not", "bitwise_or.Tensor", "cat", "clone", "eq.Scalar", "full", "isin.Tensor_Tensor", "max"),
    *("mul.Tensor", "new_ones", "rsub.Scalar", "select.int", "slice.Tensor", "sub.Tensor", "unsqueeze", "view"),
}


@pytest.mark.parametrize("config", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_the_inventory_is_what_a_model_with_weights_calls(config: dict[str, Any]) -> None:
    """Counted by torch's own means on the CPU: a dispatch mode around the real model, and its counter of FLOPs."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    from tasks.operators.capture import capture

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called[func.name()] += 1
            return func(*args, **(kwargs or {}))

    called: collections.Counter[str] = collections.Counter()
    known = {key: value for key, value in config.items() if key != "model_type"}
    described = AutoConfig.for_model(config["model_type"], **known)
    model = AutoModelForCausalLM.from_config(described, dtype=torch.bfloat16).eval()  # type: ignore[no-untyped-call]
    cache, tokens = DynamicCache(config=described), torch.arange(48).reshape(1, 48)
    with torch.no_grad():
        model(tokens, cache=cache)
        with Counter(), FlopCounterMode(display=False) as flops:  # type: ignore[no-untyped-call]
            model(tokens[:, :1], cache=cache)
    found = capture(CaptureRequest(config=config, prompt=32, context=48, dispatch_key="CPU"))
    ours = {o.name: o for o in found.phases["decode"]}
    # Attention is whole in the inventory, and on the CPU one kernel of it.
    assert called.pop("aten::_scaled_dot_product_flash_attention_for_cpu") == ours[ATTENTION].calls == 4
    counts = {name: o.calls for name, o in ours.items() if name != ATTENTION}
    differing = {name for name in counts.keys() | called.keys() if counts.get(name, 0) != called[name]}
    assert differing <= {f"aten::{name}" for name in AROUND}
    assert all(counts[name] >= called[name] for name in differing - {"aten::alias"})
    products = flops.get_flop_counts()["Global"]
    assert ours["aten::mm"].flops == products[torch.ops.aten.mm]
