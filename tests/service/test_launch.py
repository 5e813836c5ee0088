from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from day0.artifacts.service import LaunchSpec, Runtime
from day0.errors import CheckFailed, InputError
from tasks.service.engine import EngineConfig
from tasks.service.environment import Prepared
from tasks.service.launch import attention_kinds, check_launch, check_readable, launch_spec
from tests.models.families import make_tiny_deepseek_v3

ARGS = {
    "tensor_parallel_size": 2,
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16",
    "kv_cache_bytes": 1 << 28,
}
FULL = frozenset({"full"})
PREPARED = Prepared("/environment", "d" * 64)

Spec = Callable[..., LaunchSpec]


@pytest.fixture
def spec(model: Path, engine: EngineConfig) -> Spec:
    def make(
        runtime: Runtime = "process", memory: int = 1 << 20, attention: frozenset[str] = FULL, **args: object
    ) -> LaunchSpec:
        return launch_spec(
            model,
            ARGS | args,
            "vllm-cpu",
            engine,
            runtime,
            PREPARED,
            served_name="tiny",
            attention=attention,
            memory_bytes=memory,
        )

    return make


def option(launch: LaunchSpec, name: str) -> str:
    return launch.command[launch.command.index(name) + 1]


def test_the_plan_becomes_the_engines_options(spec: Spec, model: Path) -> None:
    launch = spec()
    assert launch.command[:3] == ("python", "-m", "vllm.entrypoints.openai.api_server")
    assert option(launch, "--model") == str(model)
    assert option(launch, "--tensor-parallel-size") == "2"
    assert option(launch, "--max-model-len") == "1024"
    assert option(launch, "--kv-cache-memory-bytes") == str(1 << 28)
    assert option(launch, "--host") == "127.0.0.1"
    assert "--enable-prompt-tokens-details" in launch.command
    assert "--kv-cache-dtype" not in launch.command, "the model's own dtype is what engines call auto"
    assert launch.engine_version == "0.32.0"


def test_another_cache_dtype_is_passed_and_an_absent_value_is_not(spec: Spec) -> None:
    launch = spec(kv_cache_dtype="fp8", max_num_seqs=None)
    assert option(launch, "--kv-cache-dtype") == "fp8"
    assert "--max-num-seqs" not in launch.command


def test_a_container_sees_its_own_paths_only(spec: Spec, model: Path) -> None:
    launch = spec("docker")
    assert option(launch, "--model") == "/model"
    assert option(launch, "--port") == "8000"
    assert str(model) not in launch.command


def test_resharded_folders_are_loaded_as_such(spec: Spec, model: Path) -> None:
    assert option(spec(), "--load-format") == "auto"
    (model / "ranks.json").write_text("{}")
    assert option(spec(), "--load-format") == "sharded_state"


def test_an_argument_without_an_option_is_named(spec: Spec) -> None:
    with pytest.raises(InputError, match="'speculation'"):
        spec(speculation=3)


@pytest.mark.parametrize("argument", ["expert_parallel_size", "data_parallel_size", "decode_context_parallel_size"])
def test_what_the_engine_must_not_be_given_is_refused_with_the_reason(spec: Spec, argument: str) -> None:
    with pytest.raises(InputError, match=rf"engine 'vllm-cpu' cannot serve the plan's {argument} 2: .*; plan with "):
        spec(**{argument: 2})


def test_latent_attention_is_served_without_the_kernel_that_rotates_it_wrongly(spec: Spec, tmp_path: Path) -> None:
    kinds = attention_kinds(make_tiny_deepseek_v3(tmp_path / "deepseek"))
    assert kinds == {"latent"}
    assert json.loads(option(spec(attention=kinds), "--compilation-config")) == {
        "custom_ops": ["all", "-rotary_embedding"]
    }
    assert "--compilation-config" not in spec().command


def test_arguments_for_an_attention_that_does_not_exist(engine: EngineConfig) -> None:
    wrong = engine.to_json() | {"for_attention": [{"kinds": ["latnet"], "arguments": ["--x"]}]}
    with pytest.raises(ValidationError, match="'latnet' is no kind of attention"):
        EngineConfig.model_validate(wrong)


def test_a_good_folder_passes(spec: Spec) -> None:
    check_launch(spec())


def test_a_missing_chat_template_is_found_before_launch(spec: Spec, model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with pytest.raises(CheckFailed, match="chat template missing"):
        check_launch(spec())
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": "{{ messages }}"}))
    check_launch(spec())


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "cannot be read"),
        ("config.json", "[]", "not a JSON object"),
        ("config.json", "{}", "names no architecture"),
        ("tokenizer.json", None, "tokenizer missing"),
        ("ranks.json", '{"ranks": []}', "lists no ranks"),
        ("ranks.json", '{"engine": "vllm 0.32.0", "ranks": [{"rank": 0}]}', "lists no files"),
        ("ranks.json", '{"engine": "vllm 0.31.0", "ranks": [{"rank": 0}]}', "is written for vllm 0.31.0"),
        ("ranks.json", '{"engine": "none", "layout": "hf", "ranks": [{"rank": 0}]}', "for none .layout 'hf'."),
        (
            "ranks.json",
            '{"engine": "vllm 0.32.0", "ranks": [{"rank": 0, "files": ["model-rank-0-part-0.safetensors"]}]}',
            "model-rank-0-part-0.safetensors is missing",
        ),
    ],
)
def test_a_folder_that_cannot_be_served(spec: Spec, model: Path, file: str, content: str | None, message: str) -> None:
    if content is None:
        (model / file).unlink()
    else:
        (model / file).write_text(content)
    with pytest.raises(CheckFailed, match=message):
        check_launch(spec())


def test_more_memory_than_the_machine_has(spec: Spec) -> None:
    with pytest.raises(CheckFailed, match=r"the engine needs 1024\.0 GiB"):
        check_launch(spec(memory=1 << 40))


def test_private_files_are_opened_only_where_day0_made_them(model: Path) -> None:
    config = model / "config.json"
    config.chmod(0o600)
    with pytest.raises(CheckFailed, match=r"config.json \(mode 600\) is not readable"):
        check_readable(model, own=False)
    check_readable(model, own=True)
    assert config.stat().st_mode & 0o777 == 0o604


def test_a_link_out_of_the_folder_is_refused(model: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    os.symlink(outside, model / "linked")
    with pytest.raises(CheckFailed, match="linked is a link out of the model folder"):
        check_readable(model, own=True)
