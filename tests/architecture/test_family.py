"""Families as data: every tensor has a rule, and what is not known is named with the nearest known thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from day0.architecture.family import Family, evaluate, find_family, flag, resolve_sizes
from day0.errors import InputError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


def test_a_known_type_is_found_and_every_tensor_of_llama_has_a_rule() -> None:
    family = find_family(LLAMA)
    rule, layer = family.match("model.layers.17.self_attn.k_proj.weight")
    assert (rule.kind, rule.split.how, rule.split.by, rule.split.replicate, layer) == (
        "attention",
        "column",
        "kv_heads",
        True,
        17,
    )
    assert family.match("lm_head.weight")[0].kind == "head"
    assert find_family({"model_type": "mistral"}) == family


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("model.layers.3.mlp.up_prj.weight", "model.layers.{layer}.mlp.up_proj.weight"),
        ("model.layers.3.self_attn.q_proj.weight_scale", "model.layers.{layer}.self_attn.q_proj.weight"),
        ("model.layers.03.mlp.up_proj.weight", "model.layers.{layer}.mlp.up_proj.weight"),
        ("xmodel.norm.weight", "model.norm.weight"),
        ("model.norm.weight\n", "model.norm.weight"),
    ],
)
def test_an_unknown_tensor_is_named_with_the_nearest_rule(name: str, nearest: str) -> None:
    with pytest.raises(InputError) as error:
        find_family(LLAMA).match(name)
    assert repr(name) in str(error.value)
    assert repr(nearest) in str(error.value)


def test_an_unknown_type_is_named_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r"'lama' has no family description; the nearest known one is 'llama'"):
        find_family({"model_type": "lama"})
    with pytest.raises(InputError, match="no model_type"):
        find_family({"model_type": 3})


def test_sizes_come_from_the_config_or_its_defaults() -> None:
    family = find_family(LLAMA)
    assert resolve_sizes(family, LLAMA)["head_dim"] == 16
    assert resolve_sizes(family, {**LLAMA, "head_dim": 32})["head_dim"] == 32
    without_kv = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert resolve_sizes(family, without_kv)["kv_heads"] == 4


@pytest.mark.parametrize("value", [0, -1, "64", 6.4, True, None, [], 1 << 60])
def test_a_size_that_is_none_is_refused_by_name(value: object) -> None:
    with pytest.raises(InputError, match=r"config\.json: hidden_size"):
        resolve_sizes(find_family(LLAMA), {**LLAMA, "hidden_size": value})


def test_a_head_size_that_is_not_whole_is_refused() -> None:
    with pytest.raises(InputError, match=r"head_dim = hidden/heads is not whole: 64 is not divisible by 5"):
        resolve_sizes(find_family(LLAMA), {**LLAMA, "num_attention_heads": 5})


def test_expressions_and_flags() -> None:
    assert evaluate("heads*head_dim/2", {"heads": 3, "head_dim": 4}, "x") == 6
    assert flag({"attention_bias": True}, "attention_bias")
    assert not flag({"attention_bias": None}, "attention_bias")
    with pytest.raises(InputError, match="attention_bias"):
        flag({"attention_bias": "yes"}, "attention_bias")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": ["hiden"]}, "'hiden' is not among `sizes`"),
        ({"split": {"how": "column"}}, "needs `by`"),
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
