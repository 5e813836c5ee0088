"""Quantisation configs as published, and malformed ones."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.binding import bind
from day0.architecture.bound import BoundRule
from day0.architecture.family import find_family
from day0.architecture.module_names import ModuleMap, ModuleNames
from day0.architecture.quantised import quantised
from day0.architecture.quantization import Quantization, quantization_of
from day0.architecture.quantization_forms import quantizations
from day0.errors import InputError
from tests.architecture.data import config
from tests.architecture.published_configs import CONFIGS, quant_file, read

#: Config → method, dtype of the KV cache, and how some weights are stored (None: as they are).
PUBLISHED: dict[str, tuple[str, str | None, dict[str, str | None]]] = {
    "deepseek-ai__DeepSeek-V3": ("fp8", None, {
        "model.layers.7.mlp.experts.3.up_proj.weight": "fp8_block", "model.layers.7.mlp.gate.weight": None,
        "model.layers.61.eh_proj.weight": None, "lm_head.weight": None,
    }),
    "deepseek-ai__DeepSeek-V4-Flash": ("fp8", None, {
        "layers.7.ffn.experts.3.w1.weight": "mxfp4", "layers.7.ffn.shared_experts.w1.weight": "fp8_block",
        "layers.7.attn.wq_a.weight": "fp8_block",
    }),
    "nvidia__DeepSeek-V4-Flash-NVFP4": ("fp8", None, {
        "layers.7.ffn.experts.3.w1.weight": "nvfp4", "layers.7.ffn.shared_experts.w1.weight": "fp8_block",
    }),
    "moonshotai__Kimi-K2.5": ("compressed-tensors", None, {
        "language_model.model.layers.7.mlp.experts.3.up_proj.weight": "int4",
        "language_model.model.layers.7.mlp.shared_experts.up_proj.weight": None,
        "language_model.model.layers.7.self_attn.o_proj.weight": None, "language_model.lm_head.weight": None,
        "mm_projector.proj.0.weight": None,
    }),
    "moonshotai__Kimi-K3": ("compressed-tensors", None, {
        "language_model.model.layers.7.block_sparse_moe.experts.3.w1.weight": "mxfp4",
        "language_model.model.layers.7.block_sparse_moe.routed_expert_up_proj.weight": None,
    }),
    "MiniMaxAI__MiniMax-M2.7": ("fp8", None, {
        "model.layers.7.block_sparse_moe.experts.3.w1.weight": "fp8_block",
        "model.layers.7.block_sparse_moe.gate.weight": None,
    }),
    "openai__gpt-oss-120b": ("mxfp4", None, {"model.layers.7.self_attn.q_proj.weight": None}),
    "nvidia__DeepSeek-V3.1-NVFP4": ("modelopt", "fp8", {
        "model.layers.7.self_attn.o_proj.weight": "nvfp4", "model.layers.7.self_attn.q_a_proj.weight": None,
        "model.layers.7.mlp.experts.3.up_proj.weight": "nvfp4",
    }),
    "nvidia__GLM-5.1-NVFP4": ("modelopt", "fp8", {
        "model.layers.0.mlp.up_proj.weight": None, "model.layers.10.mlp.experts.3.up_proj.weight": "nvfp4",
        "model.layers.10.mlp.shared_experts.up_proj.weight": None,
    }),
    "nvidia__Llama-3.1-70B-Instruct-FP8": ("modelopt", "fp8", {
        "model.layers.7.mlp.up_proj.weight": "fp8", "lm_head.weight": None,
    }),
    "Qwen__Qwen3-32B-FP8-Static-PerTensor": ("modelopt", "fp8", {"model.layers.7.mlp.up_proj.weight": "fp8"}),
    "nvidia__Qwen3.6-35B-A3B-NVFP4": ("modelopt", "fp8", {
        "lm_head.weight": "nvfp4", "model.language_model.layers.3.self_attn.q_proj.weight": "fp8",
        "model.language_model.layers.4.linear_attn.in_proj_qkv.weight": "fp8",
        "model.language_model.layers.4.linear_attn.in_proj_a.weight": None,
    }),
}  # fmt: skip


def published(name: str) -> tuple[dict[str, Any], Quantization | None]:
    path = next(path for path in CONFIGS if path.stem == name)
    beside = quant_file(path)
    raw = read(path)
    return raw, quantization_of(raw, read(beside) if beside else None, path.name)


def rule_of(raw: dict[str, Any], name: str) -> BoundRule:
    held = bind(find_family(raw), raw).rule_named(name)
    assert held is not None, name
    return held[0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_quantisations(name: str) -> None:
    method, kv_dtype, weights = PUBLISHED[name]
    raw, found = published(name)
    assert found is not None
    assert (found.method, found.kv_dtype, found.unread) == (method, kv_dtype, ())
    for weight, wanted in weights.items():
        held = found.format_of(weight, rule_of(raw, weight))
        assert (held.format if held else None) == wanted, weight


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_published_config_is_understood_whole(path: Any) -> None:
    _, found = published(path.stem)
    stated = any(key in path.read_text() for key in ("quantization_config", "compression_config"))
    assert (found is not None) == (stated or quant_file(path) is not None)
    assert found is None or (found.unread == () and found.excluded.unread == ())


def llama(quantization: dict[str, Any], **more: Any) -> Quantization:
    found = quantization_of(config(**more) | {"quantization_config": quantization}, None, "config.json")
    assert found is not None
    return found


def format_of(found: Quantization, weight: str = "model.layers.0.mlp.up_proj.weight") -> str | None:
    raw = config()
    held = found.format_of(weight, rule_of(raw, weight))
    return held.format if held else None


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, **more.pop("group", {})}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


@pytest.mark.parametrize(
    ("quantization", "wanted"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "mxfp8"}, "mxfp8"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, format="float-quantized"), "fp8"),
        (
            compressed(
                {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
                format="float-quantized",
            ),
            "fp8_block",
        ),
        (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, format="int-quantized"), "int8"),
        (
            compressed(
                {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
                format="nvfp4-pack-quantized",
            ),
            "nvfp4",
        ),
        (
            compressed({"num_bits": 8, "type": "int", "strategy": "group", "group_size": 64}, format="pack-quantized"),
            "int8",
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8_block"),
        ({"quant_algo": "NVFP4", "group_size": 16}, "nvfp4"),
    ],
)
def test_methods_and_schemes(quantization: dict[str, Any], wanted: str) -> None:
    found = llama(quantization)
    assert found.unread == ()
    assert format_of(found) == wanted
    assert format_of(found, "model.layers.0.input_layernorm.weight") is None
    assert format_of(found, "model.embed_tokens.weight") is None


def test_the_first_group_that_names_a_module_decides() -> None:
    groups = {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
        "group_1": {
            "targets": ["re:.*down_proj$"],
            "format": "pack-quantized",
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
        },
    }
    found = llama({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups})
    assert format_of(found) == "fp8"
    assert format_of(found, "model.layers.0.mlp.down_proj.weight") == "int4"


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "fancy"}, "'fancy' is not known"),
        ({}, None),
        ({"bits": 4}, "'unnamed' is not known"),
        ({"quant_algo": "FP3"}, "quant_algo 'FP3' is not known"),
        (compressed({"num_bits": 3, "type": "float"}), "3 bits of float"),
        (
            compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, ignore=["re:((a+)+)+$"]),
            "leaves out 're:((a+)+)+$'",
        ),
    ],
)
def test_what_is_not_known_is_said(quantization: dict[str, Any], named: str | None) -> None:
    found = quantization_of(config() | {"quantization_config": quantization}, None, "config.json")
    if named is None:
        assert found is None
        return
    assert found is not None
    assert any(named in reason for reason in found.unread)


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ("fp8", "quantization_config is 'fp8'; it must be an object"),
        ({"quant_method": 8}, "quantization_config.quant_method is 8"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size is [0, 128]"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size is 128"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list"),
        ({"quant_method": "awq", "bits": 4, "group_size": 1 << 40}, "group_size is 1099511627776"),
        ({"quant_method": "awq", "bits": True}, "bits is True"),
        ({"quant_method": "gptq", "bits": 5}, "bits is 5; it must divide 32"),
        ({"quant_method": "compressed-tensors", "config_groups": []}, "config_groups is '[]'; it must be an object"),
        (compressed([8]), "group_0.weights is '[8]'; it must be an object"),  # type: ignore[arg-type]
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": 1}}, "'a' must be"),
    ],
)
def test_a_malformed_quantisation_names_its_key(quantization: Any, named: str) -> None:
    with pytest.raises(InputError) as error:
        quantization_of(config() | {"quantization_config": quantization}, None, "config.json")
    assert named in str(error.value)


def test_a_malformed_file_beside_the_config_is_named() -> None:
    with pytest.raises(InputError, match=r"hf_quant_config\.json has no object"):
        quantization_of(config(), {"producer": {}}, "config.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "quant_method", "quant_algo", "bits", "group_size", "weight_block_size", "ignore", "exclude_modules", "targets",
    "modules_to_not_convert", "config_groups", "weights", "format", "type", "num_bits", "strategy",
    "quantized_layers", "kv_cache_scheme", "activation_scheme",
]  # fmt: skip
METHODS = [*quantizations().methods, *quantizations().algorithms, "MIXED_PRECISION"]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), json_values | st.sampled_from(METHODS), max_size=6))
def test_whatever_stands_there_is_read_or_refused(quantization: dict[str, Any]) -> None:
    raw = config() | {"quantization_config": quantization}
    try:
        found = quantization_of(raw, None, "config.json")
    except InputError as error:
        message = str(error)
    else:
        message = "config.json: quantization_config"
        assert found is None or format_of(found) is None or format_of(found) != ""
    assert message.startswith("config.json: quantization_config")


def test_an_expression_that_would_take_forever_is_not_run() -> None:
    names = ModuleNames(["re:" + pattern for pattern in ("(a+)+$", "(.*)*x", "(a|a)*$", "a*" * 30, "[", r"(a)\1+")])
    assert len(names.unread) == 6
    start = time.process_time()
    assert not names.match("a" * 400)
    assert ModuleNames(["re:.*a.*b.*c.*d$"]).match("a" * 400 + "bcd")
    assert not ModuleNames(["*a*b*c*d*e*f*g"]).match("abcdef" * 60)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("entry", "module", "matches"),
    [
        ("lm_head", "lm_head", True),
        ("lm_head", "language_model.lm_head", True),
        ("gate", "model.layers.0.mlp.gate", True),
        ("gate", "model.layers.0.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("model.layers.1*", "model.layers.10.mlp.up_proj", True),
        ("model.layers.*.self_attn", "model.layers.3.self_attn", True),
        (r"re:.*mlp\.(gate|up)_proj.*", "model.layers.0.mlp.up_proj", True),
        (r"re:mlp", "model.layers.0.mlp.up_proj", False),
    ],
)
def test_names_of_modules(entry: str, module: str, matches: bool) -> None:
    names = ModuleNames([entry])
    assert names.unread == ()
    assert names.match(module) is matches


def test_the_longest_name_decides() -> None:
    held = ModuleMap({"layers.0.experts": 1, "layers.0.experts.3": 2, "experts": 3})
    assert [held.get(name) for name in ("layers.0.experts.3.w1", "layers.0.experts.4.w1", "layers.1.experts")] == [
        2, 1, 3,
    ]  # fmt: skip
    assert held.get("layers.0.mlp") is None


def test_every_ending_is_known_to_whoever_matches_tensors() -> None:
    known = {companion.ending for companion in quantised().companions} | {".weight", ""}
    for name, form in quantizations().forms.items():
        for part in (form.weight, *form.beside):
            assert {part.ending, part.stacked or ""} <= known, name
