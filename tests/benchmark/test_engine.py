"""A real engine that ends in an accepted kernel while it is measured: all is measured again without that kernel."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from day0.artifacts.benchmark import BenchmarkReport
from day0.artifacts.service import Service
from day0.endpoint import EngineDied
from day0.engine_kernels import on_service, with_kernels
from day0.verdict import Verdict, follow_up
from tasks.benchmark.run import run_benchmark
from tasks.benchmark.settings import load_settings
from tasks.kernels.engine_plugin.bundle import write_plugin
from tasks.kernels.find import kernels_folder
from tasks.service.session import EngineSession
from tests.flows.test_adapt_kernels import plant
from tests.kernels.test_engine_plugin import CPU, chosen, plain
from tests.models.tiny import make_tiny_llama
from tests.service.conftest import engine_home
from tests.service.test_session import service_of

__all__ = ["engine_home"]

pytestmark = [pytest.mark.engine, pytest.mark.compiler, pytest.mark.timeout(1200)]

SETTINGS = load_settings().model_copy(
    update={
        "concurrency": (1,),
        "prefix_cache": ("cold",),
        "input_tokens": 64,
        "output_tokens": 64,
        "shared_prefix_tokens": 32,
        "requests_per_stream": 4,
        "warmup_requests": 1,
    }
)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """Two of the project's kernels; the first kills the process in the middle of the benchmark: each of its
    320 tokens is four calls or more, and the engine's start with its first completion less than a hundred."""
    folder = tmp_path / "kernels"
    for name in ("fused_add_rms_norm", "rotary", "common"):
        shutil.copytree(kernels_folder() / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    plant(folder / "fused_add_rms_norm", "  static int calls = 0;\n  if (in_engine && ++calls > 500) std::abort();\n")
    return folder


def test_the_benchmark_goes_on_without_a_kernel_that_kills_the_engine(
    tmp_path: Path, engine_home: Path, kernels: Path
) -> None:
    bundle, started = tmp_path / "bundle", list[list[str]]()
    plugin = write_plugin(bundle, CPU, [chosen(name, folder=kernels) for name in ("fused_add_rms_norm", "rotary")])
    launch = with_kernels(plain(make_tiny_llama(tmp_path / "model", hidden=256)), plugin.kernels, bundle)
    died: list[str] = []

    with EngineSession("test-benchmark") as session:

        def measure(its: Service) -> BenchmarkReport:
            endpoint = session.endpoint(its)
            started.append([kernel.name for kernel in its.launch.given])
            try:
                return run_benchmark(endpoint, range(10, 400), SETTINGS)
            except EngineDied as error:
                died.append(str(error))
                raise

        report = on_service(service_of(launch), session, measure)

    assert started == [["fused_add_rms_norm", "rotary"], ["rotary"]], "it started, and ended while it was measured"
    assert len(died) == 1
    assert report.verdict is Verdict.PASS, report.reason
    assert report.cells[0].completed == 4
    assert report.launch is not None
    assert [kernel.name for kernel in report.launch.given] == ["rotary"]
    (said,) = follow_up(report.checks)
    assert said.startswith("the engine ended in kernel fused_add_rms_norm for vllm_ir::fused_add_rms_norm: ")
    assert "went on with rotary" in report.reason
