"""Other families than Llama, and quantised weights, through adapt: tiny random releases on the real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.pipeline import ORDER
from tests.flows.chain import Home, engines_of, reason, verdicts
from tests.models.families import make_tiny_deepseek_v3, make_tiny_gpt_oss, make_tiny_qwen3_moe

pytestmark = [pytest.mark.engine, pytest.mark.reference, pytest.mark.timeout(900)]

GOOD = dict.fromkeys(ORDER[1:], "pass") | {"kernels": "skipped", "multimodal": "skipped"}  # a folder is not surveyed


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home.make(tmp_path_factory.mktemp("families") / "home")
    yield home
    assert engines_of(home) == []
    home.close()


def test_a_mixture_of_experts_passes_every_stage(home: Home, tmp_path: Path) -> None:
    release = make_tiny_qwen3_moe(tmp_path / "qwen3-moe")
    exit_code, result = home.day0("adapt", f"dir:{release}")
    assert exit_code == 0, result
    assert verdicts(result) == GOOD
    assert result["rung"] == "runs"
    smoke = home.report("smoke", result["run"])["content"]
    assert smoke["exact"]["error"]["mean"] < 1e-4
    roofline = home.report("benchmark", result["run"])["content"]["roofline"]
    profile = home.report("profile", result["run"])["content"]
    assert 0.9 < roofline["weight_bytes"] / (2 * profile["parameters"]["active_without_embedding"]) < 1.1


def test_fp8_is_computed_out_where_the_target_has_no_kernel_for_it(home: Home, tmp_path: Path) -> None:
    release = make_tiny_qwen3_moe(tmp_path / "fp8", kv_heads=4, fp8=True)
    exit_code, result = home.day0("adapt", f"dir:{release}", "--until", "smoke")
    assert exit_code == 0, result
    plan = home.report("plan", result["run"])["content"]
    assert (plan["convert_to"], plan["weight_dtype"]) == ("bfloat16", "bfloat16")
    assert "cpu has no kernel for fp8_block" in plan["weight_reason"]
    smoke = home.report("smoke", result["run"])["content"]
    assert smoke["reference"]["weights_computed_out_to"] == "bfloat16"
    assert smoke["exact"]["error"]["mean"] < 1e-4


def test_mxfp4_is_computed_out_and_answers(home: Home, tmp_path: Path) -> None:
    """As far as the service: for chats the engine wants the tokens of the real gpt-oss, which a small one has not."""
    exit_code, result = home.day0("adapt", f"dir:{make_tiny_gpt_oss(tmp_path / 'mxfp4')}", "--until", "service")
    assert exit_code == 0, result
    assert verdicts(result)["service"] == "pass"
    assert home.report("plan", result["run"])["content"]["convert_to"] == "bfloat16"


def test_latent_attention_answers_as_the_reference(home: Home, tmp_path: Path) -> None:
    exit_code, result = home.day0("adapt", f"dir:{make_tiny_deepseek_v3(tmp_path / 'deepseek')}", "--until", "smoke")
    assert exit_code == 0, reason(result, "smoke")
    assert home.report("smoke", result["run"])["content"]["exact"]["error"]["mean"] < 1e-4
