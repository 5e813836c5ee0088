"""Accepted kernels in a whole run: used, counted, handed over; one that fails there is fallen back from and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.kernels.find import kernels_folder
from tests.flows.chain import Home, engines_of, reason, shared, verdicts
from tests.models.smollm2 import make_smollm2

pytestmark = [pytest.mark.engine, pytest.mark.reference, pytest.mark.compiler, pytest.mark.timeout(1800)]


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
    """Two of the project's kernels: one is right wherever it is tried, and raises in the engine."""
    folder = tmp_path_factory.mktemp("sources") / "kernels"
    for name in ("rotary", "gated_activation", "common"):
        shutil.copytree(kernels_folder() / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    source = folder / "gated_activation" / "cpu" / "kernel.cpp"
    text = source.read_text()
    first = "  STD_TORCH_CHECK(x.dim() >= 1"
    raises = '  STD_TORCH_CHECK(std::getenv("VLLM_NO_USAGE_STATS") == nullptr, "no such block size");\n'
    assert text.count(first) >= 1
    source.write_text("#include <cstdlib>\n" + text.replace(first, raises + first))
    return folder


def test_a_kernel_that_fails_in_the_engine_is_fallen_back_from_and_named(
    home: Home, release: Path, kernels: Path
) -> None:
    exit_code, result = home.day0("adapt", f"dir:{release}", "--kernels", "accepted", DAY0_KERNELS=str(kernels))
    assert exit_code == 0, result
    assert verdicts(result)["kernels"] == verdicts(result)["smoke"] == "pass"
    said = reason(result, "smoke")
    assert "rotary for vllm::rotary_embedding" in said
    assert "to follow up: kernel gated_activation failed" in said
    assert "no such block size" in said
    smoke = home.report("smoke", result["run"])["content"]
    assert smoke["exact"]["error"]["mean"] < 1e-4  # the engine's own activation answered
    uses = next(check for check in smoke["checks"] if check["name"] == "kernels")["measured"]["uses"]
    counts = {use["operator"]: (use["calls"], use["fallbacks"]) for use in uses}
    assert counts["vllm::rotary_embedding"][0] > 0
    assert counts["vllm::rotary_embedding"][1] == 0
    assert counts["vllm::silu_and_mul"][0] == 0
    assert counts["vllm::silu_and_mul"][1] > 0

    recipe = Path(result["recipe"])
    described = sorted(recipe.glob("kernels/day0_kernels/*/kernel.json"))
    assert [path.parent.name for path in described] == ["gated_activation", "rotary"]
    assert (recipe / "kernels" / "day0_kernels" / "rotary" / "rotary.so").is_file()
    readme = (recipe / "README.md").read_text()
    assert "## To follow up\n\n- kernel gated_activation failed" in readme
    assert 'PYTHONPATH="$KERNELS_DIR"' in (recipe / "launch.sh").read_text()

    again_code, again = home.day0("rerun", result["run"], DAY0_KERNELS=str(kernels))
    assert again_code == 0
    assert all(stage["cached"] for stage in again["stages"]), "the run keeps which kernels it was asked to use"


@pytest.mark.docker
def test_the_same_in_a_container_with_its_fences(home: Home, release: Path, kernels: Path) -> None:
    request = ("adapt", f"dir:{release}", "--kernels", "accepted", "--runtime", "docker", "--until", "smoke")
    exit_code, result = home.day0(*request, DAY0_KERNELS=str(kernels))
    assert exit_code == 0, result
    assert "rotary for vllm::rotary_embedding" in reason(result, "smoke")
    assert "no such block size" in reason(result, "smoke")
    service = home.report("service", result["run"])["content"]
    assert {mount["target"]: mount["read_only"] for mount in service["security"]["mounts"]} == {
        "/model": True, "/kernels": True
    }  # fmt: skip
    assert service["launch"]["env"]["PYTHONPATH"] == "/kernels"
