"""The profile's numbers against published ones, and what a checkpoint at odds with its config is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from day0.artifacts.profile import Profile
from day0.errors import InputError
from day0.verdict import Verdict
from tasks.profile.describe import describe_model
from tasks.profile.settings import ProfileSettings
from tests.architecture.data import DATA, LLAMA_8B, LLAMA_70B, LLAMA_405B, config, write_config
from tests.architecture.published_configs import CONFIGS, published, stated, write_model
from tests.models.safetensors_file import write_holes
from tests.models.tiny import make_tiny_llama

SMOLLM2 = config(  # HuggingFaceTB/SmolLM2-135M-Instruct
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=49152,
    max_position_embeddings=8192,
    rope_theta=100000,
    tie_word_embeddings=True,
)


def describe(path: Path, **asked: Any) -> Profile:
    return describe_model(path, ProfileSettings(**asked))


@pytest.mark.parametrize(
    ("path", "total", "slope"),
    [(LLAMA_8B, 8_030_261_248, 131_072), (LLAMA_70B, 70_553_706_496, 327_680), (LLAMA_405B, 405_853_388_800, 516_096)],
)
def test_published_numbers(path: Path, total: int, slope: int) -> None:
    profile = describe(path)
    assert profile.parameters.total == profile.parameters.active == total
    assert profile.kv_cache.bytes_per_token == slope
    assert profile.kv_cache.bytes_per_sequence == 0
    assert profile.context_length == 131072
    assert profile.checkpoint is None
    assert profile.verdict is Verdict.PASS


#: What is more or less in the exact counts of released tensors than in the config alone, and why.
TOLD_BY_TENSORS = {
    "MiniMaxAI__MiniMax-M3": (610_000_640, "the vision tower and its projector, of which the config says nothing"),
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": (871_932_416, "the vision tower, which this config leaves out"),
    "moonshotai__Kimi-K3": (69 * 32, "A_log is stored for 128 heads of 96"),
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (-23 * 128, "correction biases, which that count leaves out"),
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": (-23 * 128, "the same"),
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_published_total_of_every_config(path: Path, tmp_path: Path) -> None:
    counted = describe(write_model(path, tmp_path)).parameters
    known = published()[path.stem]
    kinds = counted.by_kind
    assert counted.total == sum(count for kind, count in kinds.items() if kind != "mtp")
    if "total" in known:
        without = sum(kinds.get(kind, 0) for kind in known.get("without", ()) if kind != "mtp")
        value, rounding = stated(known["total"])
        off = abs(counted.total - without - value)
        assert off <= max(rounding, 0.005 * value) or known.get("explained"), f"{counted.total:,} for {value:,.0f}"
    else:
        assert "exact" in known or known.get("explained")
    if "exact" in known:
        copies = 2 * kinds["embedding"] if "mtp_copies" in known.get("exact_with", ()) else 0
        more = TOLD_BY_TENSORS.get(path.stem, (0, ""))[0]
        assert counted.total + kinds.get("mtp", 0) + copies + more == known["exact"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_active_parameters_of_every_config(path: Path) -> None:
    counted = describe(path).parameters
    known = published()[path.stem]
    assert counted.active_without_embedding == counted.active - counted.by_kind["embedding"]
    assert counted.active <= counted.total
    if "active_modules" in known:  # counted from the library's modules, which have no correction biases
        assert counted.active == pytest.approx(stated(known["active_modules"]).value, rel=0.0025)
    towers = {"vision", "audio", "projector"}
    if "active" in known and not {"mtp", *towers} & kinds_left(known):
        left = sum(counted.by_kind.get(kind, 0) for kind in kinds_left(known))
        value, rounding = stated(known["active"])
        assert counted.active - left == pytest.approx(value, abs=max(rounding, 0.2 * value))


def kinds_left(known: dict[str, Any]) -> set[str]:
    """What a published figure of active parameters leaves out."""
    return set(known.get("active_without", ()))


def test_gpt_oss_has_5_1_billion_active_parameters_beside_its_embedding() -> None:
    counted = describe(DATA / "configs/openai__gpt-oss-120b.json").parameters
    assert round(counted.active_without_embedding / 1e7) == 513
    assert round(counted.active / 1e7) == 571


def test_experts_are_active_by_the_chosen_share() -> None:
    counted = describe(DATA / "configs/mistralai__Mixtral-8x7B-v0.1.json").parameters
    assert counted.active == counted.total - counted.by_kind["routed_expert"] * 6 // 8


def test_multi_token_prediction_is_beside_the_total() -> None:
    counted = describe(DATA / "configs/deepseek-ai__DeepSeek-V3.json").parameters
    assert counted.total == 671_026_404_352 + 58 * 256
    assert counted.by_kind["mtp"] == 11_610_068_224
    assert len(counted.by_layer) == 61
    assert counted.by_layer[0] == counted.by_layer[2] < counted.by_layer[3] == counted.by_layer[60]


def test_layers_that_a_plan_must_place_by_themselves() -> None:
    found = {row.what: row for row in describe(DATA / "configs/deepseek-ai__DeepSeek-V3.json").concentration}
    assert found["dense layers"].layers == (0, 1, 2)
    assert found["embedding"].parameters == found["head"].parameters == 129_280 * 7168
    assert found["mtp"].layers == (61,)
    assert found["routed_expert"].share > 0.97
    assert all(row.reason for row in found.values())


def test_layers_much_larger_than_the_others_are_named() -> None:
    found = {
        row.what: row
        for row in describe(DATA / "configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json").concentration
    }
    layers = found["large layers"].layers
    assert layers is not None
    assert len(layers) == 23, "those with experts, between layers of Mamba and attention"


def test_a_tied_model_names_the_copy_of_its_embedding() -> None:
    found = {row.what: row for row in describe(DATA / "configs/Qwen__Qwen3-0.6B.json").concentration}
    assert "head" not in found
    assert "output head too" in found["embedding"].reason


def test_how_weights_are_stored_is_part_of_the_architecture(tmp_path: Path) -> None:
    path = DATA / "configs/nvidia__Qwen3.6-35B-A3B-NVFP4.json"
    profile = describe(write_model(path, tmp_path))
    held = profile.architecture["quantization"]
    assert held["method"] == "modelopt"
    assert held["kv_dtype"] == "fp8"
    assert list(held["parameters"]) == ["nvfp4", "bfloat16", "fp8", "float32"]
    assert any("--kv-dtype" in warning for warning in profile.warnings)


def test_an_unknown_quantisation_is_inconclusive_and_the_counts_are_right(tmp_path: Path) -> None:
    value = json.loads(LLAMA_8B.read_text()) | {"quantization_config": {"quant_method": "sesquipedalian"}}
    profile = describe(write_config(tmp_path, value))
    assert profile.verdict is Verdict.INCONCLUSIVE
    check = next(check for check in profile.checks if check.name == "quantisation")
    assert "'sesquipedalian' is not known" in check.reason
    assert any("sesquipedalian" in warning for warning in profile.warnings)
    assert profile.parameters.total == 8_030_261_248


def test_no_framework_and_no_network_is_loaded(tmp_path: Path) -> None:
    """The command itself, in a process of its own that may not open a socket."""
    path = write_model(DATA / "configs/moonshotai__Kimi-K3.json", tmp_path)
    program = (
        "import socket, sys\n"
        "def refuse(*args, **kwargs): raise AssertionError('a socket was opened')\n"
        "socket.socket.connect = refuse\n"
        "from flows.cli import main\n"
        "try: main(['profile', sys.argv[1], '--json'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'prefect', 'numba', 'matplotlib', 'huggingface_hub'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"]["total"] == 2_779_931_834_976


def test_a_million_tokens_of_llama_70b() -> None:
    assert describe(LLAMA_70B, context=1_000_000).kv_cache.bytes_at_context == 327_680_000_000


def test_tied_embeddings_are_counted_once(tmp_path: Path) -> None:
    profile = describe(write_config(tmp_path, SMOLLM2))
    assert profile.parameters.total == 134_515_008
    assert profile.parameters.active_without_embedding == 134_515_008 - 49152 * 576
    assert "head" not in profile.parameters.by_kind


def test_counts_by_kind_and_by_layer_are_the_whole() -> None:
    counted = describe(LLAMA_8B).parameters
    assert sum(counted.by_kind.values()) == counted.total
    outside = counted.by_kind["embedding"] + counted.by_kind["head"] + 4096  # and the final norm
    assert sum(counted.by_layer) + outside == counted.total


def published_table(tmp_path: Path) -> dict[str, tuple[str, list[int]]]:
    """The tensors of Llama-3.1-8B-Instruct as its published table lists them."""
    table = json.loads((DATA / "headers/meta_llama_3.1_8b_instruct.json").read_text())
    tensors: dict[str, tuple[str, list[int]]] = {}
    for row in table["tensors"]:
        for layer in range(row["count"]):
            tensors[row["name"].replace("0-31", str(layer))] = (row["dtype"], row["shape"])
    (tmp_path / "config.json").write_bytes(LLAMA_8B.read_bytes())
    return tensors


def test_a_published_checkpoint_is_explained_to_the_element(tmp_path: Path) -> None:
    write_holes(tmp_path / "model.safetensors", published_table(tmp_path))
    profile = describe(tmp_path)
    assert profile.verdict is Verdict.PASS
    shapes = next(check for check in profile.checks if check.name == "shapes")
    assert shapes.measured == {"by_config": 8_030_261_248, "by_headers": 8_030_261_248}
    assert profile.checkpoint is not None
    assert (profile.checkpoint.tensors, profile.checkpoint.bytes) == (291, 16_060_522_496)


@pytest.mark.parametrize(
    ("change", "check", "named"),
    [
        (
            {"model.layers.7.mlp.up_proj.weight": None},
            "tensors present",
            "model.layers.7.mlp.up_proj.weight is missing",
        ),
        ({"model.layers.0.self_attn.q_proj.bias": ("BF16", [4096])}, "tensors explained", "q_proj.bias"),
        ({"model.layers.3.mlp.experts.0.w1.weight": ("BF16", [4, 4])}, "tensors explained", "experts.0.w1.weight"),
        ({"model.layers.32.mlp.up_proj.weight": ("BF16", [14336, 4096])}, "tensors explained", "model.layers.32."),
        ({"model.layers.9.self_attn.k_proj.weight": ("BF16", [4096, 4096])}, "shapes", "layers.9.self_attn.k_proj"),
        (
            {"model.layers.5.mlp.down_proj.weight": ("BF16", [14336, 4096])},
            "shapes",
            "layers.5.mlp.down_proj.weight is",
        ),
        ({"model.norm.weight": ("F8_E4M3", [4096])}, "dtypes", "model.norm.weight is F8_E4M3"),
    ],
)
def test_a_checkpoint_at_odds_with_its_config_fails_by_name(
    tmp_path: Path, change: dict[str, Any], check: str, named: str
) -> None:
    tensors = {name: t for name, t in {**published_table(tmp_path), **change}.items() if t is not None}
    write_holes(tmp_path / "model.safetensors", tensors)
    profile = describe(tmp_path)
    assert profile.verdict is Verdict.FAIL
    failed = [c for c in profile.checks if c.verdict is Verdict.FAIL]
    assert [c.name for c in failed] == [check]
    assert named in failed[0].reason
    assert any(named in warning for warning in profile.warnings)


def test_what_is_stored_for_a_known_reason_is_a_warning(tmp_path: Path) -> None:
    buffers = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": ("F32", [64]) for i in range(32)}
    tensors: dict[str, Any] = {**published_table(tmp_path), **buffers}
    write_holes(tmp_path / "model.safetensors", tensors)
    profile = describe(tmp_path)
    assert profile.verdict is Verdict.PASS
    assert profile.parameters.total == 8_030_261_248
    assert any("32 tensors such as model.layers.0.self_attn.rotary_emb.inv_freq" in w for w in profile.warnings)


def test_a_stored_head_of_a_tied_model_is_a_warning_and_not_counted(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=False)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    profile = describe(tmp_path)
    assert profile.verdict is Verdict.PASS
    assert any("lm_head.weight is stored" in warning for warning in profile.warnings)
    assert "head" not in profile.parameters.by_kind
    assert profile.architecture["stored_head"] is True


def test_a_small_release_and_its_folder(tmp_path: Path) -> None:
    profile = describe(make_tiny_llama(tmp_path, layers=3, tied=True))
    assert profile.verdict is Verdict.PASS
    assert profile.checkpoint is not None
    assert profile.checkpoint.files == 2
    assert profile.architecture["chat_template"] is True
    assert profile.architecture["tokenizer"] == "tokenizer.json"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('executed')")
    without = describe(tmp_path)
    assert without.architecture["chat_template"] is False
    assert any("chat template" in warning for warning in without.warnings)
    assert any("modeling_own.py" in warning for warning in without.warnings)


def test_an_unreadable_tokenizer_config_is_a_warning(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert any("tokenizer_config.json is not JSON" in warning for warning in describe(tmp_path).warnings)


def test_a_broken_header_is_unusable_input(tmp_path: Path) -> None:
    root = make_tiny_llama(tmp_path)
    shard = next(root.glob("model-00001*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InputError, match=shard.name):
        describe(root)


def test_an_unknown_cache_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="int3"):
        describe(LLAMA_8B, kv_dtype="int3")


def test_the_profile_is_the_same_each_time(tmp_path: Path) -> None:
    root = make_tiny_llama(tmp_path)
    assert describe(root).digest == describe(root).digest
