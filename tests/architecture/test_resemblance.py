"""A model type that no family names: the right family on evidence, or none; never a plain model for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from day0.architecture.family import find_family
from day0.architecture.resemblance import Recognised, recognise
from day0.architecture.structure import structure_of
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tests.architecture.data import config
from tests.architecture.published_configs import CONFIGS, read
from tests.models.published import NAMES, published_config, published_tensors, with_experts

#: Tables of checkpoints whose config is at hand.
WITH_CONFIG = [name for name in NAMES if published_config(name)]

DENSE = {"llama", "qwen2", "qwen3", "gemma3", "gemma3_text", "phi3", "mimo", "qwen3_vl"}


def unknown(raw: dict[str, Any], architecture: str | None = "BrandNewForCausalLM") -> dict[str, Any]:
    """The config under a name that nobody has given it."""
    named = {} if architecture is None else {"architectures": [architecture]}
    return {**raw, "model_type": "brand_new", **named}


def info(name: str, dtype: str, shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo(name, dtype, shape, "model.safetensors", 0, 0)


#: Experts a layer, of tables that have each by itself, so that the tests are quick.
FEW = {
    "deepseek_v3.1": 8, "deepseek_v3.2": 8, "glm_4.5_fp8": 8, "glm_5.1_fp8": 8, "glm_5.1_w8a8": 8, "kimi_k2.5": 8,
    "kimi_k2_instruct": 8, "kimi_k3": 16, "minimax_m2.7": 8, "minimax_m3_mxfp8": 8, "qwen3_next_80b_a3b_instruct": 10,
    "qwen3_235b_a22b_instruct_2507_fp8": 8, "qwen3_30b_a3b_instruct_2507": 8,
}  # fmt: skip


def table(name: str) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """A published checkpoint's config and tensors."""
    raw, few = published_config(name), FEW.get(name)
    assert raw
    return with_experts(raw, few) if few else raw, {t[0]: info(*t) for t in published_tensors(name, few)}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_by_a_config_alone_it_is_counted_right(path: Path) -> None:
    raw = read(path)
    right = structure_of(raw, path.name)
    found = structure_of(unknown(raw), path.name)
    assert not found.recognised.sure
    assert found.recognised.evidence
    assert found.recognised.evidence.startswith(f"by its config alone family {found.family.family.name!r}")
    assert found.total == pytest.approx(right.total, rel=0.005)
    routed = [(r.experts, r.per_token, len(r.layers)) for r in right.routing]
    assert [(r.experts, r.per_token, len(r.layers)) for r in found.routing] == routed
    assert not routed or found.family.family.name not in DENSE
    kinds = {entry.attention.kind for entry in right.attention}
    assert {entry.attention.kind for entry in found.attention} == kinds


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_name_of_the_class_decides_between_families_that_fit(path: Path) -> None:
    """As in a release that has its own type, and the class of the model that it was made from."""
    raw = read(path)
    found = recognise(unknown(raw, None))
    assert structure_of(raw, path.name).family.family.name == found.family.name


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_every_tensor_explained_is_exactly_one_family(name: str) -> None:
    raw, tensors = table(name)
    found = recognise(unknown(raw, None), tensors)
    assert found == Recognised(found.family, f"all {len(tensors):,} tensors are those of family {found.family.name!r}")
    assert found.family.name == find_family(raw).name
    assert found.sure


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_a_tensor_that_is_in_no_family_refuses_all(name: str) -> None:
    raw, tensors = table(name)
    right = find_family(raw).name
    foreign = info("model.layers.3.self_attn.memory_proj.weight", "BF16", (64, 64))
    with pytest.raises(InputError, match=r"'model\.layers\.3\.self_attn\.memory_proj\.weight'") as refused:
        recognise(unknown(raw, None), {**tensors, foreign.name: foreign})
    assert "leaves 1 unexplained" in str(refused.value)
    nearest = str(refused.value).split("the nearest is '")[1].split("'")[0]
    described = find_family({"model_type": nearest}).name
    assert described == right or described in {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}  # which have the same


def test_a_tensor_of_another_shape_refuses_all() -> None:
    raw, tensors = table("meta_llama_3.1_8b_instruct")
    name = "model.layers.7.mlp.up_proj.weight"
    tensors[name] = info(name, "BF16", (14336, 4000))
    with pytest.raises(InputError, match=r"nearest is 'llama'.*14336, 4000.*configs/families"):
        recognise(unknown(raw), tensors)


def test_a_missing_tensor_refuses_all() -> None:
    raw, tensors = table("meta_llama_3.1_8b_instruct")
    del tensors["model.layers.7.mlp.up_proj.weight"]
    with pytest.raises(InputError, match=r"lacks tensor 'model.layers.7.mlp.up_proj.weight'"):
        recognise(unknown(raw), tensors)


def test_a_size_that_no_family_reads_refuses_all() -> None:
    with pytest.raises(
        InputError, match=r"'brand_new' has no family.*nearest.*leaves 1.*num_memory_slots 64.*families/"
    ):
        recognise(unknown(config(num_memory_slots=64)))


@pytest.mark.parametrize(
    "part",
    [{"num_experts": 64}, {"num_shadow_experts": 64}, {"kv_lora_rank": 512, "v_head_dim": 64}, {"mamba_d_state": 16}],
    ids=str,
)
def test_a_part_is_never_dropped_for_a_plain_model(part: dict[str, Any]) -> None:
    """Some of a mixture's or of latent attention's sizes, but not all that a family needs."""
    with pytest.raises(InputError, match="'brand_new' has no family"):
        recognise(unknown(config(**part)))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "gelu_pytorch_tanh", "quick_gelu"])
def test_an_mlp_without_a_gate_is_not_one_with(activation: str) -> None:
    """Of GPT-J's, Phi's and StarCoder's configs every size would be explained, and a third of each MLP made up."""
    with pytest.raises(InputError, match=f"hidden_act {activation}, of an MLP without a gate"):
        recognise(unknown(config(hidden_act=activation)))
    assert not recognise(unknown(config(hidden_act="silu"))).sure


@pytest.mark.parametrize("raw", [{}, {"hidden_size": 64}, {"text_config": []}, {"architectures": {"a": 1}}], ids=str)
def test_what_is_hardly_a_config_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="has no family description"):
        recognise({**raw, "model_type": "brand_new"})


def test_a_known_type_needs_no_evidence() -> None:
    assert recognise(config()) == Recognised(find_family(config()))
