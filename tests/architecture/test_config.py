"""A config.json is read strictly: what is hostile is refused, and the key is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.config import ModelConfig, load_model_config, parse_model_config
from day0.architecture.structure import structure_of
from day0.errors import InputError
from tests.architecture.data import DATA, LLAMA_70B, config, read, write_config
from tests.architecture.published_configs import CONFIGS

COUNTS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip


def parse(**changes: Any) -> ModelConfig:
    return parse_model_config(config(**changes), "config.json")


def test_a_published_config() -> None:
    got = load_model_config(LLAMA_70B)
    assert (got.rope.type, got.rope.factor, got.rope.original_context) == ("llama3", 8.0, 8192)
    assert (got.dtype, got.context_length) == ("bfloat16", 131072)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_published_config_is_read(path: Path) -> None:
    got = parse_model_config(read(path), path.name)
    assert got.context_length >= 8192
    assert got.notes == ()


def test_of_a_model_of_several_parts_the_text_counts() -> None:
    got = load_model_config(DATA / "configs/google__gemma-4-26B-A4B.json")
    assert got.context_length == 262_144
    assert (got.rope.type, got.rope.theta) == ("proportional", 1_000_000.0)  # that of full attention


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", ["64", -1, 0, 64.0, 1e30, True, [], {}, 10**30, 10**400])
def test_a_hostile_size_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=key):
        structure_of(config(**{key: value}), "config.json")


@pytest.mark.parametrize("key", COUNTS)
def test_a_missing_size_is_refused_by_name(key: str) -> None:
    with pytest.raises(InputError, match=f"{key} is missing"):
        structure_of(config(**{key: None}), "config.json")


@pytest.mark.parametrize("text", ['{"model_type": "llama", "hidden_size": NaN}', "[1]", "{", '"x"', "[" * 100_000])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        load_model_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"rope_scaling": {"rope_type": ["spiral"]}}, "rope_scaling has the type ['spiral']"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "rope_scaling.factor"),
        ({"rope_scaling": [2]}, "rope_scaling"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"auto_map": "x"}, "auto_map"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ],
)
def test_other_faults_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(**changes)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 4096),
        ({"type": "linear", "factor": 2.0}, 8192),
        ({"rope_type": "dynamic", "factor": 2}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
    ],
)
def test_context_length_follows_the_engine(scaling: dict[str, Any] | None, length: int) -> None:
    assert parse(rope_scaling=scaling).context_length == length


def test_both_generations_of_rope_and_dtype_keys() -> None:
    old = parse(rope_theta=5e5, torch_dtype="float16")
    new = parse(rope_parameters={"rope_type": "default", "rope_theta": 5e5}, torch_dtype=None, dtype="torch.float16")
    assert (old.rope.theta, old.dtype) == (new.rope.theta, new.dtype) == (5e5, "float16")


def test_a_scaling_that_is_not_known_is_said_and_extends_nothing() -> None:
    got = parse(rope_scaling={"rope_type": "spiral", "factor": 8.0})
    assert got.context_length == 4096
    assert "'spiral'" in got.notes[0]


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
        max_leaves=4,
    ),
    st.sampled_from(sorted(config(head_dim=8, rope_scaling={}, quantization_config={}))),
)
def test_any_value_gives_sizes_or_an_input_error(value: Any, key: str) -> None:
    try:
        total = structure_of({**config(), key: value}, "config.json").total
    except InputError:
        return
    assert total > 0


@pytest.mark.parametrize(
    "foreign",
    [
        {"num_local_experts": 8},
        {"n_routed_experts": 256},
        {"moe_intermediate_size": 768},
        {"kv_lora_rank": 512},
        {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        {"num_nextn_predict_layers": 2},
        {"vision_config": {"hidden_size": 8}},
        {"mamba_d_state": 16},
    ],
)
def test_a_foreign_part_under_a_known_model_type_is_refused(foreign: dict[str, Any]) -> None:
    """An unknown mixture of experts must never be counted as a dense model."""
    with pytest.raises(InputError, match="'llama'"):
        structure_of(config(**foreign), "config.json")


def test_absent_features_are_no_features() -> None:
    plain = structure_of(config(), "config.json")
    silent = config(num_experts=0, sliding_window=False, layer_types=["full_attention"] * 3, quantization_config={})
    assert structure_of(silent, "config.json").total == plain.total


def test_model_type_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model_type is missing"):
        structure_of(json.loads(write_config(tmp_path, config(model_type=None)).read_text()), "config.json")
