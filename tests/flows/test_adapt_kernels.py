"""Accepted kernels in a whole run: used, counted, handed over; one that fails there is fallen back from and named."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from day0.kernel_uses import read_uses
from tasks.kernels.find import kernels_folder
from tasks.service.process import free_port
from tests.flows.chain import Home, engines_of, reason, shared, verdicts
from tests.models.smollm2 import make_smollm2

pytestmark = [pytest.mark.engine, pytest.mark.reference, pytest.mark.compiler, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home.make(tmp_path_factory.mktemp("kernels") / "home")
    yield home
    assert engines_of(home) == []
    home.close()


@pytest.fixture(scope="module")
def release() -> Path:
    return make_smollm2(shared() / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three of the project's kernels. One is right wherever it is tried; in the engine the second raises, and the third
    kills the process after it has answered the calls of the engine's start."""
    folder = tmp_path_factory.mktemp("sources") / "kernels"
    for name in ("rotary", "gated_activation", "fused_add_rms_norm", "common"):
        shutil.copytree(kernels_folder() / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    plant(folder / "gated_activation", '  STD_TORCH_CHECK(!in_engine, "no such block size");\n')
    plant(folder / "fused_add_rms_norm", "  static int calls = 0;\n  if (in_engine && ++calls > 3000) std::abort();\n")
    return folder


def plant(kernel: Path, fault: str) -> None:
    """Put a fault that shows only in the engine before a kernel's first check of its arguments."""
    source = kernel / "cpu" / "kernel.cpp"
    before, check, after = source.read_text().partition("  check_cpu(kOp")
    assert check
    told = '  const bool in_engine = std::getenv("VLLM_NO_USAGE_STATS") != nullptr;\n'
    source.write_text("#include <cstdlib>\n" + before + told + fault + check + after)


@pytest.fixture(scope="module")
def run(home: Home, release: Path, kernels: Path) -> dict[str, Any]:
    exit_code, result = home.day0("adapt", f"dir:{release}", "--kernels", "accepted", DAY0_KERNELS=str(kernels))
    assert exit_code == 0, [stage for stage in result["stages"] if stage["verdict"] != "pass"]
    return result


def test_a_kernel_that_fails_in_the_engine_is_fallen_back_from_and_named(
    home: Home, run: dict[str, Any], kernels: Path
) -> None:
    assert verdicts(run)["kernels"] == verdicts(run)["smoke"] == "pass"
    said = reason(run, "smoke")
    assert "rotary for vllm::rotary_embedding" in said
    assert "to follow up: kernel gated_activation failed" in said
    assert "no such block size" in said
    smoke = home.report("smoke", run["run"])["content"]
    assert smoke["exact"]["error"]["mean"] < 1e-4  # the engine's own activation answered
    uses = next(check for check in smoke["checks"] if check["name"] == "kernels")["measured"]["uses"]
    counts = {use["operator"]: (use["calls"], use["fallbacks"]) for use in uses}
    assert counts["vllm::rotary_embedding"][0] > 0
    assert counts["vllm::rotary_embedding"][1] == 0
    assert counts["vllm::silu_and_mul"][0] == 0
    assert counts["vllm::silu_and_mul"][1] > 0
    assert "## To follow up\n\n- kernel gated_activation failed" in (Path(run["recipe"]) / "README.md").read_text()

    again_code, again = home.day0("rerun", run["run"], DAY0_KERNELS=str(kernels))
    assert again_code == 0
    assert all(stage["cached"] for stage in again["stages"]), "the run keeps which kernels it was asked to use"


def test_a_kernel_that_kills_the_engine_is_taken_out_and_named(home: Home, run: dict[str, Any]) -> None:
    service, smoke = (home.report(stage, run["run"])["content"] for stage in ("service", "smoke"))
    assert [kernel["name"] for kernel in service["launch"]["given"]] == [
        "fused_add_rms_norm", "gated_activation", "rotary"
    ]  # fmt: skip
    assert [kernel["name"] for kernel in smoke["launch"]["given"]] == ["gated_activation", "rotary"]
    said = reason(run, "smoke")
    assert "the engine ended in kernel fused_add_rms_norm for vllm_ir::fused_add_rms_norm: " in said
    assert "Fatal Python error: Aborted" in said
    assert "it went on with gated_activation, rotary" in said
    check = next(check for check in smoke["checks"] if check["name"] == "kernels_taken_out")
    assert any(line.endswith("in day0_kernel_fused_add_rms_norm") for line in check["measured"]["log"][0])
    recipe = Path(run["recipe"])
    readme = (recipe / "README.md").read_text()
    assert "\n- the engine ended in kernel fused_add_rms_norm" in readme
    assert "accepted kernels in `kernels/`: gated_activation, rotary." in readme
    there = sorted(path.parent.name for path in recipe.glob("kernels/day0_kernels/*/kernel.json"))
    assert there == ["gated_activation", "rotary"]


@contextmanager
def started(script: Path, folder: Path, **env: str) -> Iterator[str]:
    """The address of an engine that a recipe's script has started, once it has answered a completion."""
    url = f"http://127.0.0.1:{env['PORT']}"
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(
            [str(script)], env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **env},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        while completed(url) is None:
            assert engine.poll() is None, (folder / "log").read_text()[-4000:]
            time.sleep(1)
        yield url
    finally:
        os.killpg(engine.pid, signal.SIGTERM)
        engine.wait(60)


def completed(url: str) -> str | None:
    try:
        model = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"]
    except httpx.TransportError:
        return None
    body = {"model": model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120, trust_env=False)
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_the_recipe_starts_the_engine_with_the_kernels_that_are_left(run: dict[str, Any], tmp_path: Path) -> None:
    recipe = shutil.copytree(Path(run["recipe"]), tmp_path / "handed over")
    uses = tmp_path / "uses"
    with started(recipe / "launch.sh", tmp_path, PORT=str(free_port()), DAY0_KERNEL_USES=str(uses)) as url:
        assert "Paris" in (completed(url) or "")
        time.sleep(1.5)  # counts are written twice a second
        found = {use.operator: use for use in read_uses(path.read_bytes() for path in uses.glob("*.json"))}
    assert {use.kernel for use in found.values()} == {"gated_activation", "rotary"}
    assert found["vllm::rotary_embedding"].calls > 0
    assert found["vllm::silu_and_mul"].fallbacks > 0
    log = (tmp_path / "log").read_text()
    assert "follow-up: kernel gated_activation for vllm::silu_and_mul" in log


@pytest.mark.docker
def test_the_same_in_a_container_with_its_fences(home: Home, release: Path, kernels: Path) -> None:
    request = ("adapt", f"dir:{release}", "--kernels", "accepted", "--runtime", "docker", "--until", "smoke")
    exit_code, result = home.day0(*request, DAY0_KERNELS=str(kernels))
    assert exit_code == 0, result
    assert "rotary for vllm::rotary_embedding" in reason(result, "smoke")
    assert "no such block size" in reason(result, "smoke")
    assert "the engine ended in kernel fused_add_rms_norm" in reason(result, "smoke")  # its stack is in the log
    service = home.report("service", result["run"])["content"]
    assert {mount["target"]: mount["read_only"] for mount in service["security"]["mounts"]} == {
        "/model": True, "/kernels": True
    }  # fmt: skip
    assert service["launch"]["env"]["PYTHONPATH"] == "/kernels"
