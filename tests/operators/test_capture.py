"""The capture of real models of transformers on the meta device."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flows.commands.operators import command
from tasks.operators.records import Capture, CaptureRequest
from tests.models.tiny import make_tiny_llama

pytestmark = pytest.mark.reference

ATTENTION = "aten::scaled_dot_product_attention"

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}

#: Llama-3.1-405B, from its published config.json.
LLAMA_405B = TINY | {
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def ask(config: dict[str, Any], prompt: int = 32, context: int = 48) -> Capture:
    from tasks.operators.capture import capture  # torch: only where these tests run

    return capture(CaptureRequest(config=config, prompt=prompt, context=context, dispatch_key="CPU"))


def totals(found: Capture, phase: str) -> tuple[float, float]:
    operators = found.phases[phase]
    assert all(o.flops is not None and o.bytes is not None for o in operators)
    return sum(o.flops or 0 for o in operators), sum(o.bytes or 0 for o in operators)


KINDS = {
    "alike": (TINY, 1),
    "two kinds of attention": (
        TINY
        | {"model_type": "qwen2", "layer_types": ["sliding_attention", "full_attention"] * 3}
        | {"use_sliding_window": True, "sliding_window": 8},
        2,
    ),
    "latent attention and experts": (
        TINY
        | {"model_type": "deepseek_v3", "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8}
        | {"qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2}
        | {"topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 2, "num_key_value_heads": 4}
        | {"head_dim": 8},
        2,
    ),
    "a recurrent layer": (
        TINY
        | {"model_type": "qwen3_next", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
        | {"linear_value_head_dim": 8, "shared_expert_intermediate_size": 32},
        2,
    ),
    "sinks": (
        TINY
        | {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
        | {"pad_token_id": 0},
        2,
    ),
    "state spaces": (
        TINY
        | {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M", "mamba_num_heads": 4, "mamba_head_dim": 16}
        | {"ssm_state_size": 8, "n_groups": 2},
        3,
    ),
}


@pytest.mark.parametrize(("config", "kinds"), KINDS.values(), ids=KINDS)
def test_a_layer_of_each_kind_repeated_is_the_whole_model(
    config: dict[str, Any], kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = ask(config)
    assert (repeated.traced_layers, repeated.layers) == (kinds, 6)
    numbers = itertools.count()
    monkeypatch.setattr("tasks.operators.blocks._kind", lambda layer: f"its own: {next(numbers)}")
    whole = ask(config)
    assert whole.traced_layers == 6
    # Sums in another order: a call of the same tensors costs the same.
    assert repeated.phases == whole.phases
    assert repeated.before == whole.before
    assert repeated.scopes == whole.scopes


def test_the_work_of_prefill_and_decode() -> None:
    block = 64 * (64 + 2 * 32 + 64) + 3 * 64 * 128
    found = ask(TINY, prompt=32, context=48)
    flops = {p: {o.name: o.flops for o in operators} for p, operators in found.phases.items()}
    assert flops["prefill"]["aten::mm"] == 2 * (32 * 6 * block + 64 * 512)  # logits of the last position only
    assert flops["decode"]["aten::mm"] == 2 * (6 * block + 64 * 512)
    assert flops["prefill"][ATTENTION] == 6 * 4 * 64 * (32 * 33 // 2)
    assert flops["decode"][ATTENTION] == 6 * 4 * 64 * 49


def test_a_model_of_405b_parameters_needs_two_flops_a_parameter() -> None:
    found = ask(LLAMA_405B, prompt=512, context=512)
    decode_flops, decode_bytes = totals(found, "decode")
    assert decode_flops == pytest.approx(811.7e9, rel=1e-3)
    # Every weight but the embedding is read once, and that is nearly all that moves.
    weights = 2 * (405_853_388_800 - 128256 * 16384)
    assert weights < decode_bytes < 1.01 * weights
    layers_only = 405_853_388_800 - 2 * 128256 * 16384
    assert totals(found, "prefill")[0] == pytest.approx(2 * layers_only * 512, rel=0.01)


def test_attention_is_one_operator_whatever_the_device() -> None:
    found = ask(TINY)
    names = {o.name for o in found.phases["prefill"]}
    assert ATTENTION in names
    assert not names & {"aten::bmm", "aten::_softmax", "aten::_safe_softmax"}
    assert found.parts[ATTENTION]["CPU"] == ("aten::_scaled_dot_product_flash_attention_for_cpu",)
    assert "aten::bmm" in found.parts[ATTENTION]["decomposed"]
    assert set(found.parts[ATTENTION]["decomposed"]) <= set(found.registrations)


def test_what_generation_calls_outside_the_model_is_there() -> None:
    for operators in ask(TINY).phases.values():
        assert {"aten::argmax", "aten::isin.Tensor_Tensor"} <= {o.name for o in operators}


@pytest.mark.parametrize("model_type", ["kimi_k3", "clip_vision_model", None, ["llama"]])
def test_a_model_type_that_cannot_be_built_is_said(model_type: object) -> None:
    found = ask(TINY | {"model_type": model_type, "auto_map": {"AutoConfig": "evil.Config"}})
    assert found.unsupported is not None
    assert found.phases == {}


def test_a_model_that_cannot_be_traced_is_said() -> None:
    found = ask(TINY | {"num_key_value_heads": 3})
    assert found.unsupported is not None
    assert "could not be traced" in found.unsupported
    assert found.registrations


@pytest.mark.parametrize("value", ["many", True, None, 1.5])
def test_a_config_that_the_library_refuses_is_said(value: object) -> None:
    found = ask(TINY | {"num_hidden_layers": value})
    assert found.unsupported is not None
    assert found.phases == {}


def test_infinities_of_a_config_reach_the_library() -> None:
    """Nemotron-H has one, and was not read with null in its place."""
    asked = CaptureRequest(config={"a": [0.0, math.inf]}, prompt=1, context=1, dispatch_key=None)
    assert CaptureRequest.model_validate_json(json.dumps(asked.to_json())) == asked


def test_how_a_model_was_run_elsewhere_does_not_count() -> None:
    elsewhere = {"_attn_implementation": "flash_attention_2", "quantization_config": {"quant_method": "fp8"}}
    assert ask(TINY | elsewhere).phases == ask(TINY).phases


def test_fake_tensors_tell_the_same() -> None:
    """Where the meta device lacks a function, fake tensors stand in; they lift the constants that they are made of."""
    from tasks.operators.capture import captured
    from tasks.operators.models import describe
    from tasks.operators.tracing import trace

    model, _ = describe(TINY)
    assert model is not None
    request = CaptureRequest(config=TINY, prompt=32, context=48, dispatch_key="CPU")
    on_meta, faked = (trace(model, request, fake=fake).logs for fake in (False, True))
    for phase, log in on_meta.items():
        expected = {o.name: (o.calls, o.flops, o.bytes) for o in captured(log)}
        found = {o.name: (o.calls, o.flops, o.bytes) for o in captured(faked[phase]) if o.name != "aten::lift_fresh"}
        assert found == expected


@pytest.mark.parametrize("layers", [0, 10**9])
def test_a_count_of_layers_that_cannot_be_is_not_built(layers: int) -> None:
    assert f"{layers:,} layers" in (ask(TINY | {"num_hidden_layers": layers}).unsupported or "")


def test_registrations_tell_real_kernels_from_what_only_looks_so() -> None:
    from tasks.operators.registrations import registrations, structured_delegates

    assert structured_delegates()["aten::mul.Tensor"] == "aten::mul.out"
    found = registrations({"aten::mm", "vllm::x"}, "PrivateUse1")
    assert found["aten::mm"].delegate == "aten::mm.out"
    assert "PrivateUse1" not in {*found["aten::mm"].keys, *found["aten::mm.out"].keys}
    assert not found["vllm::x"].exists


def test_the_command_on_a_model_folder(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path / "model", layers=4)
    result = CliRunner().invoke(command, [str(tmp_path / "model"), "--target", "cpu", "--prompt", "16", "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["verdict"] == "pass"
    assert answer["gaps"] == []
    assert set(answer["phases"]) == {"prefill", "decode"}
    assert sum(o["share"] for o in answer["phases"]["decode"]["operators"]) == pytest.approx(1)


def test_the_command_on_an_unknown_model_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"model_type": "llama_5"}))
    result = CliRunner().invoke(command, [str(tmp_path / "config.json"), "--target", "cpu", "--json"])
    assert result.exit_code == 3
    answer = json.loads(result.stdout)
    assert "'llama_5'" in answer["reason"]
    assert answer["source"] == "formulas"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": 10**9}, "a model of 1,000,000,000 layers is not believed"),
        ({"model_type": "qwen3", "num_hidden_layers": 10**9}, "a model of 1,000,000,000 layers is not believed"),
        ({"vision_config": {"depth": 10**9}}, "a model of 1,000,000,000 layers is not believed"),
        ({"model_type": "../../etc/passwd"}, "does not know the model type '../../etc/passwd'"),
        ({"model_type": ["llama"]}, "does not know the model type ['llama']"),
        ({"vocab_size": 10**18}, "could not be traced"),
        ({"hidden_size": -4}, "could not be traced"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
    ],
)
def test_absurd_configs_are_refused_without_time_or_memory(change: dict[str, Any], said: str) -> None:
    from tasks.operators.capture import capture

    asked = CaptureRequest(config=TINY | change, prompt=8, context=8, dispatch_key="CPU")
    assert said in (capture(asked).unsupported or "")


def test_a_capture_takes_no_more_memory_than_it_is_given(tmp_path: Path) -> None:
    asked = tmp_path / "request.json"
    # Rotary frequencies are not made on the meta device.
    config = TINY | {"head_dim": 1 << 33}
    asked.write_text(CaptureRequest(config=config, prompt=8, context=8, dispatch_key="CPU").model_dump_json())
    command = [sys.executable, "-m", "tasks.operators.capture", str(asked), str(tmp_path / "answer.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 or "allocate memory" in ended.stderr
    if ended.returncode == 0:
        assert "allocate memory" in (tmp_path / "answer.json").read_text()
