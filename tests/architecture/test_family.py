"""Families as data: every tensor has a rule, and what is not known is named with the nearest known thing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from day0.architecture.binding import bind
from day0.architecture.bound import match_all
from day0.architecture.expressions import evaluate
from day0.architecture.family import Family, Include, LayoutRule, SizeRule, find_family
from day0.architecture.grains import Grain, grains
from day0.architecture.keys import When, flag
from day0.architecture.layers import LayerSet, resolve_layers
from day0.architecture.quantised import weight_names
from day0.architecture.rules import Constant, Segment, Split, Target, TensorRule
from day0.errors import InputError
from day0.home import configs
from day0.safetensors_header import TensorInfo

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


def tensor(name: str, *shape: int, dtype: str = "BF16") -> TensorInfo:
    return TensorInfo(name, dtype, shape, "model.safetensors", 0, 0)


def test_a_known_type_is_found_and_every_tensor_of_llama_has_a_rule() -> None:
    bound = bind(find_family(LLAMA), LLAMA)
    match = bound.match(tensor("model.layers.17.self_attn.k_proj.weight", 32, 64))
    assert (match.rule.rule.kind, match.rule.dim, match.number("layer"), match.companion) == ("attention", 0, 17, None)
    (segment,) = match.rule.segments
    assert (segment.size, segment.units, segment.counted, segment.replicate) == (32, 2, "num_key_value_heads", True)
    assert bound.match(tensor("lm_head.weight", 512, 64)).rule.rule.kind == "head"
    assert find_family({"model_type": "mistral"}) == find_family(LLAMA)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("model.layers.3.mlp.up_prj.weight", "model.layers.{layer}.mlp.up_proj.weight"),
        ("model.layers.3.self_attn.q_proj.weight_scaly", "model.layers.{layer}.self_attn.q_proj.weight"),
        ("model.layers.03.mlp.up_proj.weight", "model.layers.{layer}.mlp.up_proj.weight"),
        ("xmodel.norm.weight", "model.norm.weight"),
        ("model.norm.weight\n", "model.norm.weight"),
    ],
)
def test_an_unknown_tensor_is_named_with_the_nearest_rule(name: str, nearest: str) -> None:
    with pytest.raises(InputError) as error:
        bind(find_family(LLAMA), LLAMA).match(tensor(name, 64))
    assert repr(name) in str(error.value)
    assert repr(nearest) in str(error.value)


def test_a_tensor_of_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"layer is one of 18, 0 to 17"):
        bind(find_family(LLAMA), LLAMA).match(tensor("model.layers.18.input_layernorm.weight", 64))


def test_a_shape_that_the_config_does_not_say_is_refused() -> None:
    with pytest.raises(InputError, match=r"has shape \[64, 32\] \(BF16\), but config.json says \[32, 64\]"):
        bind(find_family(LLAMA), LLAMA).match(tensor("model.layers.1.self_attn.k_proj.weight", 64, 32))


def test_a_missing_tensor_is_named() -> None:
    bound = bind(find_family(LLAMA), LLAMA)
    names = {}
    for rule in bound.rules:
        if not rule.optional:
            for layer in rule.numbers.get("layer") or (0,):
                names[rule.named({"layer": layer})] = tensor(rule.named({"layer": layer}), *rule.shape)
    assert len(match_all(bound, names)) == len(names)
    del names["model.layers.11.mlp.up_proj.weight"]
    with pytest.raises(InputError, match=r"lacks tensor 'model.layers.11.mlp.up_proj.weight'"):
        match_all(bound, names)


def test_an_unknown_type_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r"'lama' has no family description; the nearest known one is 'llama'"):
        find_family({"model_type": "lama"})
    with pytest.raises(InputError, match="no model_type"):
        find_family({"model_type": 3})


def sizes(config: dict[str, Any]) -> dict[str, int]:
    return dict(bind(find_family(config), config).sizes)


def test_sizes_come_from_the_config_or_its_defaults() -> None:
    assert sizes(LLAMA)["head_dim"] == 16
    assert sizes({**LLAMA, "head_dim": 32})["head_dim"] == 32
    without_kv = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert sizes(without_kv)["kv_heads"] == 4


@pytest.mark.parametrize("value", [0, -1, "64", 6.4, True, None, [], 1 << 60])
def test_a_size_that_is_none_is_refused_by_name(value: object) -> None:
    with pytest.raises(InputError, match=r"config\.json: hidden_size"):
        sizes({**LLAMA, "hidden_size": value})


def test_a_head_size_that_is_not_whole_is_refused() -> None:
    with pytest.raises(InputError, match=r"head_dim = hidden/heads is not whole: 64 is not divisible by 5"):
        sizes({**LLAMA, "num_attention_heads": 5})


def test_expressions_and_flags() -> None:
    assert evaluate("heads*head_dim/2", {"heads": 3, "head_dim": 4}, "x") == 6
    assert evaluate("2*key + value - 1", {"key": 3, "value": 4}, "x") == 9
    assert flag({"attention_bias": True}, "attention_bias")
    assert not flag({"attention_bias": None}, "attention_bias")
    with pytest.raises(InputError, match="attention_bias"):
        flag({"attention_bias": "yes"}, "attention_bias")


def test_layer_sets() -> None:
    sets = {
        "moe": LayerSet(start="dense"),
        "mtp": LayerSet(start="layers", end="layers+mtp"),
        "full": LayerSet(every="4", remainder="3"),
        "linear": LayerSet(but=("full",)),
        "listed": LayerSet(key="numbers", base=1),
        "kinds": LayerSet(key="pattern", values=("M",)),
        "ones": LayerSet(of=("moe",), key="freq"),
        "absent": LayerSet(key="nothing", absent="all"),
    }
    config = {"numbers": [1, 6], "pattern": "M-M*M-", "freq": [1, 1, 0, 0, 1, 0]}
    found = resolve_layers(sets, config, {"dense": 1, "layers": 6, "mtp": 2}, 6)
    assert found["moe"] == {1, 2, 3, 4, 5}
    assert found["mtp"] == {6, 7}
    assert found["full"] == {3}
    assert found["linear"] == {0, 1, 2, 4, 5}
    assert found["listed"] == {0, 5}
    assert found["kinds"] == {0, 2, 4}
    assert found["ones"] == {1, 4}
    assert found["absent"] == found["all"] == set(range(6))
    with pytest.raises(InputError, match="nothing is missing"):
        resolve_layers({"x": LayerSet(key="nothing")}, config, {}, 6)


@pytest.mark.parametrize(
    ("ending", "stored", "dtype", "expected"),
    [
        ("", (576, 7168), "F8_E4M3", [(0, 1), (1, 1)]),
        ("", (576, 3584), "I8", [(0, 1), (1, 2)]),
        ("_scale_inv", (5, 56), "F32", [(0, 128), (1, 128)]),
        ("_scale_inv", (576, 224), "U8", [(0, 1), (1, 32)]),
        ("_scale", (576, 1), "F32", [(0, 1), (None, 0)]),
        ("_scale", (576,), "F32", [(0, 1)]),
        ("_scale", (), "F32", []),
        ("_packed", (576, 896), "I32", [(0, 1), (1, 8)]),
        ("_packed", (576, 3584), "U8", [(0, 1), (1, 2)]),
        ("_packed", (576, 3585), "U8", None),
        ("_shape", (2,), "I32", [(None, 0)]),
        ("_scale_inv", (7, 56), "F32", None),
    ],
)
def test_what_a_quantised_weights_tensors_cover(
    ending: str, stored: tuple[int, ...], dtype: str, expected: list[tuple[int | None, int]] | None
) -> None:
    name = f"a.weight{ending}"
    companion = None if not ending else next(held for weight, held in weight_names(name) if weight == "a.weight")
    found = grains(stored, (576, 7168), dtype, companion)
    assert found == (None if expected is None else tuple(Grain(dim, size) for dim, size in expected))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": ["hiden"]}, "'hiden' is not among `sizes`"),
        ({"split": {"how": "column"}}, "needs `by` or `segments`"),
        ({"split": {"how": "drop"}}, "a reason in `drop`"),
        ({"targets": {"vlm": {"name": "x"}}}, "'vlm' is not among `layouts`"),
        ({"stage": None}, "give {layer} in the name or a stage"),
    ],
)
def test_a_wrong_family_description_is_refused(change: dict[str, object], reason: str) -> None:
    rule = {"name": "a.weight", "kind": "norm", "shape": ["hidden"], "split": {"how": "replicated"}, "stage": "first"}
    content = {
        "name": "x",
        "model_types": ["x"],
        "tied": "tie_word_embeddings",
        "sizes": {"hidden": {"key": "hidden_size"}},
        "tensors": [{**rule, **change}],
        "layouts": {"hf": {}},
    }
    with pytest.raises(ValueError, match=reason.replace("{", r"\{").replace("}", r"\}")):
        Family.model_validate(content)


def test_a_wrong_key_in_a_family_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: bad\nmodel_typs: [x]\n")
    with pytest.raises(InputError, match=r"bad\.yaml"):
        find_family({"model_type": "x"}, tmp_path)


def test_the_grammar_is_described_as_it_is() -> None:
    """The example in README.md is a family, and has every key that there is."""
    text = (configs() / "families/README.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert Family.model_validate(yaml.safe_load(example)).name == "example"
    parts = (Family, Include, SizeRule, LayerSet, TensorRule, When, Split, Segment, Target, LayoutRule, Constant)
    keys = {key for part in parts for key in part.model_fields}
    assert keys - set(re.findall(r"(\w+):", example)) == set()
